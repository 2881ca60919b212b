"""Match a recording to a model: its columns by name, its time step by the clock."""

import warnings
from dataclasses import replace
from typing import Literal

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.data.validation import check_columns, quoted
from kaffee.errors import DataError

STEP_TOLERANCE = 0.01


def model_columns(reconstruction: Reconstruction) -> tuple[str, ...]:
    """Name the observed coordinates; x1..xN for a model that was never told."""
    return check_columns(reconstruction.columns or None, reconstruction.model.num_observed, "model")


def model_frequency(reconstruction: Reconstruction) -> str | Literal[False] | None:
    """Name the calendar of the dates that a model was fitted to; False if it counts in seconds, None if unknown."""
    stored = reconstruction.provenance.get("frequency")
    return stored if isinstance(stored, str) else None if reconstruction.dt == 1.0 else False


def match_series(reconstruction: Reconstruction, series: Series, *, any_step: bool = False) -> Series:
    """Take the model's columns of a series, in the model's order.

    Columns are found by name; others are left out. Where only one side has names of its own, and none of them is one of
    the other's, position decides, with a warning if it is the series that has them. `any_step` accepts a time step that
    is not the model's. The model's inputs are taken from those of the series, else from its columns.
    """
    series, inputs = _match_inputs(reconstruction, series)
    wanted = model_columns(reconstruction.group(None))
    if set(wanted) <= set(series.columns):
        chosen = series.select(list(wanted))
    elif _decided_by_position(wanted, series, stacklevel=4):
        chosen = replace(series, columns=wanted)
    else:
        missing = [name for name in wanted if name not in series.columns]
        raise DataError(
            f"{series.label}: the model needs {quoted(wanted)}, but {quoted(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not among {quoted(series.columns)}. Rename the columns, or name "
            "those that take their place, in the model's order (--columns, or Series.select)."
        )
    step, dt = chosen.time_step, reconstruction.dt
    if not any_step and step is not None and abs(step - dt) > STEP_TOLERANCE * dt:
        raise DataError(
            f"{series.label}: a row every {step:.6g}, but one step of the model is {dt:.6g}. Resample the recording; "
            "or, if its times are in another unit than those the model was fitted to, pass any_step (--any-step)."
        )
    return chosen.driven_by(inputs)


def match_inputs(reconstruction: Reconstruction, inputs: Series) -> Series:
    """Take the model's inputs of a series that holds nothing but inputs, or also others; by name, else by position."""
    wanted = reconstruction.inputs
    if set(wanted) <= set(inputs.columns):
        return inputs.select(list(wanted))
    if _decided_by_position(wanted, inputs, stacklevel=5):
        return replace(inputs, columns=wanted)
    raise DataError(
        f"{inputs.label}: the model is driven by {quoted(wanted)}, which are not all among {quoted(inputs.columns)}. "
        "Rename the columns, or give them in the model's order without names."
    )


def _match_inputs(reconstruction: Reconstruction, series: Series) -> tuple[Series, Series | None]:
    """Return the series without its inputs, and the model's inputs in its order; None if it takes none."""
    wanted, given = reconstruction.inputs, series.inputs
    bare = series.driven_by(None)
    if not wanted:
        return bare, None
    if given is not None:
        return bare, match_inputs(reconstruction, given)
    if set(wanted) <= set(series.columns):
        taken = bare.with_inputs(wanted)
        return taken.driven_by(None), taken.inputs
    missing = [name for name in wanted if name not in series.columns]
    raise DataError(
        f"{series.label}: the model is driven by {quoted(wanted)}, but {quoted(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} not among {quoted(series.columns)}. Add the columns to the recording, "
        "or in Python give inputs= with one row for each row."
    )


def adopt_columns(reconstruction: Reconstruction, series: Series) -> Reconstruction:
    """Give a model without names of its own those of a series that fits it by position."""
    wanted = model_columns(reconstruction)
    if _are_automatic(wanted) and _decided_by_position(wanted, series, stacklevel=5):
        return replace(reconstruction, columns=series.columns)
    return reconstruction


def _decided_by_position(wanted: tuple[str, ...], series: Series, *, stacklevel: int) -> bool:
    """Tell whether only position can match the columns: as many, one side without names, none in common.

    Warns if the series has names of its own, which then do not count.
    """
    given = series.columns
    nameless = _are_automatic(wanted) or _are_automatic(given)
    if len(wanted) != len(given) or not nameless or set(wanted) & set(given):
        return False
    if not _are_automatic(given):
        warnings.warn(
            f"{series.label}: {quoted(given)} are taken for the model's {quoted(wanted)}, by their position. "
            "Rename them, or on the command line name them in the model's order (--columns), to be sure.",
            UserWarning,
            stacklevel=stacklevel,
        )
    return True


def _are_automatic(names: tuple[str, ...]) -> bool:
    """Tell whether these are default names: x1..xN, u1..uK of inputs, or 0..N-1 as pandas calls them."""
    counted = tuple(map(str, range(len(names))))
    return names in (check_columns(None, len(names), "names"), tuple(f"u{k + 1}" for k in range(len(names))), counted)
