"""kaffee: probabilistic dynamical systems reconstruction.

The public API is the list of names in `__init__.pyi`. Names load on first use: `import kaffee` loads no JAX, changes no
global setting and touches no network.
"""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules

import lazy_loader as _lazy

__version__ = "0.2.0"

_get_name, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__all__ = ["__version__", *__all__]


def __getattr__(name: str) -> object:
    """Load a public name, or a subpackage, so that `kaffee.inference.forecast` needs no import of its own."""
    if name in (found.name for found in _iter_modules(__path__) if found.ispkg):
        return _import_module(f"{__name__}.{name}")
    return _get_name(name)
