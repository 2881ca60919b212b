"""kaffee: probabilistic dynamical systems reconstruction."""

from kaffee._version import __version__ as __version__
