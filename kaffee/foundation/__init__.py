"""Foundation models (section 5.2, appendix C.5): weights, hub, zero-shot forecasts, in-context adaptation."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
