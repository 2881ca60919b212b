"""Use a trained model: filter, smooth, forecast, simulate, impute; whole recordings or reading by reading."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
