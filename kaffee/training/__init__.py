"""Training: teacher forcing, adaptation through the filter, and the one loop they share."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
