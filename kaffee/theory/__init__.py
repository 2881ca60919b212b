"""The theory of appendix A and the DPC gap (definition 1), executable on any model and series."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
