"""DynaMix (section 5.2, appendix C.5): the foundation model, its weights, and zero-shot forecasts by it."""

from typing import TYPE_CHECKING, Any

# First: `kaffee.cores` registers DynaMix among the cores, so it must be complete up to there when DynaMix is defined.
import kaffee.cores as _cores  # noqa: F401
from kaffee.dynamix.core import DynaMix as DynaMix

if TYPE_CHECKING:
    from kaffee.dynamix.forecasting import ZeroShot as ZeroShot
    from kaffee.dynamix.forecasting import zero_shot as zero_shot
    from kaffee.dynamix.hub import from_pretrained as from_pretrained

__all__ = ["DynaMix", "ZeroShot", "from_pretrained", "zero_shot"]


def __getattr__(name: str) -> Any:
    if name in ("ZeroShot", "zero_shot"):
        from kaffee.dynamix import forecasting

        return getattr(forecasting, name)
    if name == "from_pretrained":
        from kaffee.dynamix.hub import from_pretrained

        return from_pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
