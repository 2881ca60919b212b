"""The theory of appendix A, executable on any model and series."""

from kaffee.diagnostics.attenuation import ScalarSystem as ScalarSystem
from kaffee.diagnostics.attenuation import fit_one_step as fit_one_step
from kaffee.diagnostics.attenuation import fit_open_loop as fit_open_loop
from kaffee.diagnostics.attenuation import series_attenuation as series_attenuation
from kaffee.diagnostics.contraction import anti_contraction as anti_contraction
from kaffee.diagnostics.contraction import dispersion as dispersion
from kaffee.diagnostics.contraction import rescaling_derivative as rescaling_derivative
from kaffee.diagnostics.contraction import rescaling_of_run as rescaling_of_run
from kaffee.diagnostics.diagnosis import Diagnosis as Diagnosis
from kaffee.diagnostics.diagnosis import diagnose as diagnose
from kaffee.diagnostics.forcing import filter_factors as filter_factors
from kaffee.diagnostics.forcing import forcing_strengths as forcing_strengths
from kaffee.diagnostics.forcing import sensitivity as sensitivity
from kaffee.diagnostics.identify import fit_kalman as fit_kalman
from kaffee.diagnostics.tracing import Trace as Trace
from kaffee.diagnostics.tracing import trace as trace
from kaffee.diagnostics.volume import assimilation as assimilation
from kaffee.diagnostics.volume import pressure as pressure
from kaffee.diagnostics.volume import transport_terms as transport_terms
