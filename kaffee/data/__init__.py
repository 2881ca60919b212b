"""Series of noisy, gappy, multivariate recordings: read, check, standardise, split, sample windows, write."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
