"""kaffee: probabilistic dynamical systems reconstruction.

This is the map of the public API. Names load on first use, so that `import kaffee` costs nothing, changes no global
setting and touches no network.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kaffee._version import __version__ as __version__

if TYPE_CHECKING:
    from kaffee.checkpoint import Reconstruction as Reconstruction
    from kaffee.checkpoint import load as load
    from kaffee.checkpoint import save as save
    from kaffee.checks import check as check
    from kaffee.config import override as override
    from kaffee.cores import ALRNN as ALRNN
    from kaffee.cores import Core as Core
    from kaffee.cores import Linear as Linear
    from kaffee.cores import Polynomial as Polynomial
    from kaffee.cores import ResidualMLP as ResidualMLP
    from kaffee.cores import as_core as as_core
    from kaffee.data import Scaler as Scaler
    from kaffee.data import Series as Series
    from kaffee.data import WindowSampler as WindowSampler
    from kaffee.data import read_series as read_series
    from kaffee.data import write_series as write_series
    from kaffee.dynamix import DynaMix as DynaMix
    from kaffee.dynamix.forecasting import zero_shot as zero_shot
    from kaffee.dynamix.hub import from_pretrained as from_pretrained
    from kaffee.errors import KaffeeError as KaffeeError
    from kaffee.filtering import run_filter as run_filter
    from kaffee.fitting import fit as fit
    from kaffee.incontext import adapt_foundation_model as adapt_foundation_model
    from kaffee.inference import OnlineFilter as OnlineFilter
    from kaffee.inference import filter_recordings as filter_recordings
    from kaffee.inference import impute as impute
    from kaffee.inference import smooth as smooth
    from kaffee.lyapunov import lyapunov_spectrum as lyapunov_spectrum
    from kaffee.methods import BLIND as BLIND
    from kaffee.methods import CORE_COLLAPSE as CORE_COLLAPSE
    from kaffee.methods import FROZEN_CORE as FROZEN_CORE
    from kaffee.methods import KAFFEE as KAFFEE
    from kaffee.methods import NOISE_MASKING as NOISE_MASKING
    from kaffee.methods import Method as Method
    from kaffee.objectives import window_nll as window_nll
    from kaffee.observation import LinearObservation as LinearObservation
    from kaffee.observation import Projection as Projection
    from kaffee.recursion import Recursion as Recursion
    from kaffee.rollout import free_run as free_run
    from kaffee.settings import FitSettings as FitSettings
    from kaffee.shell import Shell as Shell
    from kaffee.ssm import StateSpaceModel as StateSpaceModel
    from kaffee.surrogate import Surrogate as Surrogate
    from kaffee.systems import System as System
    from kaffee.systems import get_system as get_system
    from kaffee.systems import simulate as simulate
    from kaffee.systems import system_names as system_names
    from kaffee.training.adaptation import Adaptation as Adaptation
    from kaffee.training.adaptation import adapt as adapt
    from kaffee.training.forcing import Forcing as Forcing
    from kaffee.training.initialise import initialise_shell as initialise_shell
    from kaffee.training.loop import Schedule as Schedule
    from kaffee.training.optimiser import Optimiser as Optimiser
    from kaffee.training.pretraining import Pretraining as Pretraining
    from kaffee.training.pretraining import pretrain as pretrain

_HOME = {
    "checkpoint": ("Reconstruction", "load", "save"),
    "checks": ("check",),
    "config": ("override",),
    "cores": ("ALRNN", "Core", "Linear", "Polynomial", "ResidualMLP", "as_core"),
    "data": ("Scaler", "Series", "WindowSampler", "read_series", "write_series"),
    "dynamix": ("DynaMix",),
    "dynamix.forecasting": ("zero_shot",),
    "dynamix.hub": ("from_pretrained",),
    "errors": ("KaffeeError",),
    "filtering": ("run_filter",),
    "fitting": ("fit",),
    "incontext": ("adapt_foundation_model",),
    "inference": ("OnlineFilter", "filter_recordings", "impute", "smooth"),
    "lyapunov": ("lyapunov_spectrum",),
    "methods": ("BLIND", "CORE_COLLAPSE", "FROZEN_CORE", "KAFFEE", "NOISE_MASKING", "Method"),
    "objectives": ("window_nll",),
    "observation": ("LinearObservation", "Projection"),
    "recursion": ("Recursion",),
    "rollout": ("free_run",),
    "settings": ("FitSettings",),
    "shell": ("Shell",),
    "ssm": ("StateSpaceModel",),
    "surrogate": ("Surrogate",),
    "systems": ("System", "get_system", "simulate", "system_names"),
    "training.adaptation": ("Adaptation", "adapt"),
    "training.forcing": ("Forcing",),
    "training.initialise": ("initialise_shell",),
    "training.loop": ("Schedule",),
    "training.optimiser": ("Optimiser",),
    "training.pretraining": ("Pretraining", "pretrain"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'kaffee' has no attribute '{name}'")
    value = getattr(import_module(f"kaffee.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
