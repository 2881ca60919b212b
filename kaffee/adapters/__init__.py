"""kaffee for other tools: forecasters of sktime, ensembles in xarray and ArviZ, programs in StableHLO, model hubs."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
