"""Metrics: each its own function with its equation, on plain arrays."""

from kaffee.metrics.geometry import d_stsp_histogram as d_stsp_histogram
from kaffee.metrics.geometry import d_stsp_kernel as d_stsp_kernel
from kaffee.metrics.geometry import d_stsp_mixture as d_stsp_mixture
from kaffee.metrics.spectra import d_hellinger as d_hellinger
from kaffee.metrics.spectra import power_spectrum as power_spectrum
