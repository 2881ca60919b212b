"""Transition maps: what the surrogate believes the dynamics are, without any noise."""

from kaffee.cores.alrnn import ALRNN as ALRNN
from kaffee.cores.confined import Confined as Confined
from kaffee.cores.core import Core as Core
from kaffee.cores.custom import Custom as Custom
from kaffee.cores.custom import as_core as as_core
from kaffee.cores.linear import Linear as Linear
from kaffee.cores.mlp import ResidualMLP as ResidualMLP
from kaffee.cores.polynomial import Polynomial as Polynomial
from kaffee.dynamix.core import DynaMix

CORE_TYPES: dict[str, type[Core]] = {
    "alrnn": ALRNN,
    "linear": Linear,
    "polynomial": Polynomial,
    "mlp": ResidualMLP,
    "dynamix": DynaMix,
}
