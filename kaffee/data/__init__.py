"""Series of noisy, gappy, multivariate recordings: read, check, standardise, split, sample windows, write.

Only `WindowSampler` and `WindowBatch` need JAX; they load on first use, so reading a file stays quick.
"""

from typing import TYPE_CHECKING, Any

from kaffee.data.readers import read_series
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.timeaxis import regularise_time
from kaffee.data.writers import write_series

if TYPE_CHECKING:
    from kaffee.data.windows import WindowBatch, WindowSampler

__all__ = [
    "Scaler",
    "Series",
    "WindowBatch",
    "WindowSampler",
    "read_series",
    "regularise_time",
    "write_series",
]


def __getattr__(name: str) -> Any:
    if name in ("WindowBatch", "WindowSampler"):
        from kaffee.data import windows

        return getattr(windows, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
