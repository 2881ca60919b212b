"""kaffee: probabilistic dynamical systems reconstruction.

The public API is the list of names in `__init__.pyi`. Names load on first use: `import kaffee` loads no JAX, changes no
global setting and touches no network.
"""

import lazy_loader as _lazy

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__all__ = ["__version__", *__all__]
