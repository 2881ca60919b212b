"""Ensembles for ArviZ: forecasts as its predictions, draws of filtered states as its posterior.

Needs ArviZ (`pip install 'kaffee[arviz]'`), which nothing else of kaffee imports.
"""

from typing import Any

from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError, KaffeeError
from kaffee.inference.results import Estimates

_GROUPS = {"forecast": "predictions", "filtered draws": "posterior"}


def to_inference_data(estimates: Estimates, observed: Series | None = None) -> Any:
    """Make ArviZ's data of an ensemble: one chain, whose draws are the members.

    Each column is a variable over (chain, draw, time), or (chain, draw, recording, time) if there are several. Members
    that left the attractor are NaN from there, and ArviZ counts them as such.

    Args:
        estimates: Of `kaffee.inference.forecast` or `kaffee.inference.draw_filtered`.
        observed: The recordings, for the group `observed_data`.

    Returns:
        An `arviz.InferenceData`; with ArviZ 1, the `xarray.DataTree` that takes its place.
    """
    try:
        import arviz
    except ModuleNotFoundError as error:
        raise KaffeeError("This needs ArviZ. Install it: pip install 'kaffee[arviz]'") from error
    if estimates.kind not in _GROUPS:
        raise ConfigError(
            f"Estimates of the kind '{estimates.kind}' have no members. Give a forecast, or kaffee.inference."
            "draw_filtered(model, series) for draws of filtered states."
        )
    drawn = estimates.to_xarray()["members"].rename(member="draw").expand_dims("chain")
    groups = {_GROUPS[estimates.kind]: _split(drawn.transpose("chain", "draw", ...))}
    if observed is not None:
        if observed.columns != estimates[0].columns:
            raise DataError(
                f"observed has the columns {', '.join(observed.columns)}, the estimates "
                f"{', '.join(estimates[0].columns)}. Select them: series.select([...])."
            )
        groups["observed_data"] = _split(_label(observed))
    if hasattr(arviz, "InferenceData"):
        return arviz.InferenceData(**groups)
    from xarray import DataTree

    return DataTree.from_dict(groups)


def _label(series: Series) -> Any:
    """Label the readings by time and variable."""
    from kaffee.inference.results import Estimate

    times = series.times or (None,) * series.num_recordings
    parts = tuple(Estimate(series.columns, t, {"values": x}) for t, x in zip(times, series.recordings, strict=True))
    return Estimates(parts, "observed", {}, series.name, series.origin).to_xarray()["values"]


def _split(array: Any) -> Any:
    """Make a Dataset with a variable for each column."""
    return array.to_dataset("variable")
