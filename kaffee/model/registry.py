"""Transition maps: what the surrogate believes the dynamics are, without any noise."""

from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Core
from kaffee.model.dynamix import DynaMix
from kaffee.model.maps import Linear, Polynomial, ResidualMLP

CORE_TYPES: dict[str, type[Core]] = {
    "alrnn": ALRNN,
    "linear": Linear,
    "polynomial": Polynomial,
    "mlp": ResidualMLP,
    "dynamix": DynaMix,
}
