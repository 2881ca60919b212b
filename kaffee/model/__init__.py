"""The state-space model: transition maps (cores), observation map and noise scales (shell)."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
