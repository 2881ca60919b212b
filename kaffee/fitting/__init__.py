"""From a recording to a run: settings, defaults from the data, the pipeline, the run folder."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
