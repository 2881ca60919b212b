"""Certification: what held-out data say about a surrogate, beside honest baselines."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
