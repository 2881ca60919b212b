"""Does a recording fit a model? Its columns by name, its time step by the clock."""

from dataclasses import replace

from kaffee.checkpoint import Reconstruction
from kaffee.data.series import Series
from kaffee.data.validate import check_columns, quoted
from kaffee.errors import DataError

STEP_TOLERANCE = 0.01


def model_columns(reconstruction: Reconstruction) -> tuple[str, ...]:
    """The names of the observed coordinates; x1..xN for a model that was never told."""
    return check_columns(reconstruction.columns or None, reconstruction.model.num_observed, "model")


def matched(reconstruction: Reconstruction, series: Series, *, any_step: bool = False) -> Series:
    """The model's columns of a series, in the model's order.

    Arrays without names, and models fitted to such, are matched by position. Other columns are left out.

    Args:
        any_step: Accept a time step that is not the model's.

    Raises:
        DataError: for a column that is not there, or another time step than the model's.
    """
    wanted = model_columns(reconstruction)
    if set(wanted) <= set(series.columns):
        chosen = series.select(list(wanted))
    elif len(wanted) == series.num_coordinates and _nameless(wanted, series.columns):
        chosen = replace(series, columns=wanted)
    else:
        missing = [name for name in wanted if name not in series.columns]
        raise DataError(
            f"{series.label}: the model needs {quoted(wanted)}, but {quoted(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not among {quoted(series.columns)}. Rename the columns, or name "
            "those that take their place, in the model's order (--columns, or Series.select)."
        )
    if not any_step:
        _check_step(reconstruction, chosen)
    return chosen


def _nameless(*names: tuple[str, ...]) -> bool:
    return any(given == check_columns(None, len(given), "names") for given in names)


def _check_step(reconstruction: Reconstruction, series: Series) -> None:
    step, dt = series.time_step, reconstruction.dt
    if step is not None and abs(step - dt) > STEP_TOLERANCE * dt:
        raise DataError(
            f"{series.label}: a row every {step:.6g}, but one step of the model is {dt:.6g}. Resample the recording; "
            "or, if its times are in another unit than those the model was fitted to, pass any_step (--any-step)."
        )
