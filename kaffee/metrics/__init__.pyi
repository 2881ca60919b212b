from .geometry import d_stsp_histogram as d_stsp_histogram
from .geometry import d_stsp_kernel as d_stsp_kernel
from .geometry import d_stsp_mixture as d_stsp_mixture
from .spectra import d_hellinger as d_hellinger
from .spectra import power_spectrum as power_spectrum
