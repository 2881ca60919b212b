"""The extended Kalman filter: one recursion, its adjoint, likelihoods, smoothing and free runs."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
