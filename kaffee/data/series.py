"""The data type of kaffee: recordings of unequal length, with missing values, names and times."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from kaffee.data.scaler import Scaler
from kaffee.data.timeaxis import NUMBERED, Origin, check_same_step, mean_step, regularise_time
from kaffee.data.validation import Times, Values, as_recordings, check_columns, check_finite, check_times, find_column
from kaffee.errors import ConfigError, DataError
from kaffee.metrics.spectra import decorrelation_time


@dataclass(frozen=True, eq=False, repr=False)
class Series:
    """One or several recordings of the same N coordinates at the same time step; NaN is missing.

    Arrays are copied on entry and read-only from then on. Two series with the same content are equal, whatever their
    names and sources.

    Args:
        recordings: Arrays (T_i, N).
        columns: One name for each coordinate; x1..xN by default.
        times: Increasing times (T_i,) for each recording, or None.
        name, source: A short name for reports, and the file or files it was read from.
        notes: Sentences on what the reader did, for reports.
        origin: Names and form of times and recordings in the file, for writing results.
        inputs: Known external inputs at the same rows, complete: what acts on the system and is not predicted.
        groups: The name of the group (subject, site, session) of each recording; empty: there are none.

    >>> Series.from_arrays([[1.0, 2.0], [3.0, float("nan")], [5.0, 6.0]], columns=["x", "y"])
    Series(1 recording, 3 steps, 2 coordinates: x, y; 16.7 % missing)
    """

    recordings: tuple[Values, ...]
    columns: tuple[str, ...] = ()
    times: tuple[Times, ...] | None = None
    name: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    origin: Origin = NUMBERED
    inputs: "Series | None" = None
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = self.label
        recordings = as_recordings(list(self.recordings), where)
        columns = check_columns(self.columns or None, recordings[0].shape[1], where)
        for r, values in enumerate(recordings):
            check_finite(values, columns, lambda row, r=r: f"{where}, recording {r}, row {row}")  # type: ignore[misc]
        if all(np.isnan(values).all() for values in recordings):
            raise DataError(f"{where}: no value is observed, all are missing. Check the export.")
        times = None
        if self.times is not None:
            pairs = zip(_check_number(self.times, recordings, where), recordings, strict=True)
            times = tuple(check_times(t, len(v), f"{where}, recording {r}") for r, (t, v) in enumerate(pairs))
        for array in (*recordings, *(times or ())):
            array.setflags(write=False)
        if self.inputs is not None:
            _check_inputs(self.inputs, tuple(map(len, recordings)), columns, where)
        if self.groups and len(self.groups) != len(recordings):
            raise DataError(f"{where}: {len(self.groups)} groups for {len(recordings)} recordings. Name one for each.")
        groups = tuple(map(str, self.groups))
        self.__dict__.update(recordings=tuple(recordings), columns=columns, times=times, groups=groups)

    @classmethod
    def from_arrays(
        cls,
        data: Any,
        columns: Sequence[str] | None = None,
        times: ArrayLike | Sequence[ArrayLike] | None = None,
        name: str = "",
        *,
        source: str = "",
        notes: Sequence[str] = (),
        time_tolerance: float = 0.05,
    ) -> "Series":
        """Make a series of arrays in memory.

        Args:
            data: (T,) for one coordinate, (T, N) for one recording, a list of (T_i, N) arrays or (R, T, N) for several.
                Integers and floats of any size; NaN and masked entries are missing.
            times: (T,) for one recording or shared by all, or one array for each. Gaps of whole steps are filled with
                missing rows, see `regularise_time`.
            columns, name, source, notes: As in `Series`.
            time_tolerance: Allowed deviation of times from whole steps, in steps.
        """
        where = source or name or "series"
        recordings, axes = as_recordings(data, where), None
        if times is not None:
            labels = [f"{where}, recording {r}" for r in range(len(recordings))]
            parts = zip(_split_times(times, recordings, where), recordings, labels, strict=True)
            pairs = [regularise_time(t, x, tolerance=time_tolerance, where=label) for t, x, label in parts]
            axes = tuple(t for t, _ in pairs)
            check_same_step(axes, labels, time_tolerance)
            added = sum(map(len, axes)) - sum(map(len, recordings))
            notes = (*notes, f"{added} missing rows inserted at gaps in time") if added else notes
            recordings = [x for _, x in pairs]
        return cls(tuple(recordings), tuple(columns or ()), axes, name, source, tuple(notes))

    @property
    def label(self) -> str:
        """Name of this series in messages: its source, else its name."""
        return self.source or self.name or "series"

    @property
    def num_recordings(self) -> int:
        """Count the recordings."""
        return len(self.recordings)

    @property
    def num_coordinates(self) -> int:
        """Count the coordinates N."""
        return int(self.recordings[0].shape[1])

    @property
    def lengths(self) -> tuple[int, ...]:
        """Count the steps in each recording."""
        return tuple(len(values) for values in self.recordings)

    @property
    def num_steps(self) -> int:
        """Count the steps in all recordings together."""
        return sum(self.lengths)

    @property
    def mask(self) -> tuple[Bool[np.ndarray, "T N"], ...]:
        """Return for each recording an array that is True where a value was observed."""
        return tuple(~np.isnan(values) for values in self.recordings)

    @property
    def missing_fraction(self) -> float:
        """Compute the fraction of values that are missing."""
        missing = sum(int(np.isnan(values).sum()) for values in self.recordings)
        return missing / (self.num_steps * self.num_coordinates)

    @property
    def time_step(self) -> float | None:
        """Compute the mean time step, None without times."""
        steps = [step for t in self.times or () if (step := mean_step(t)) is not None]
        return float(np.mean(steps)) if steps else None

    @property
    def row_times(self) -> tuple[Float[np.ndarray, " T"], ...]:
        """Return the times of all rows in units of the time step, so that a period has one phase in all recordings."""
        if self.times is None:
            return tuple(np.arange(T, dtype=float) for T in self.lengths)
        return tuple(np.round(t / (self.time_step or 1.0)) for t in self.times)

    @property
    def frequency(self) -> str | None:
        """Name the calendar whose steps the times count, such as "MS" for months; None if they are equally long."""
        dates = self.origin.dates
        return None if dates is None or dates.calendar is None else dates.calendar.frequency

    @cached_property
    def decorrelation_time(self) -> float:
        """Estimate the steps until the autocorrelation falls below 1/e, see `kaffee.metrics.spectra`."""
        return decorrelation_time(self.recordings)

    @cached_property
    def fingerprint(self) -> str:
        """Hash the content (SHA-256): shapes, names, values and times, not name, source or notes.

        Values are hashed as little-endian float64 with one bit pattern for NaN: the same on every platform, from every
        file format.
        """
        head: dict[str, Any] = {"columns": self.columns, "lengths": self.lengths, "times": self.times is not None}
        if self.groups:
            head["groups"] = self.groups
        digest = hashlib.sha256(b"kaffee series 1\n" + json.dumps(head).encode())
        for array in (*self.recordings, *(self.times or ())):
            digest.update(np.where(np.isnan(array), np.nan, array).astype("<f8").tobytes())
        if self.inputs is not None:
            digest.update(b"\ninputs " + self.inputs.fingerprint.encode())
        return digest.hexdigest()

    def split(self, fraction: float = 0.8, *, test_steps: int | None = None) -> tuple["Series", "Series"]:
        """Split into train and test part, by time within each recording: the test part always lies later.

        A recording too short to be cut goes to training as a whole, so the test part may have fewer recordings.

        Args:
            fraction: Part of each recording that goes to training, rounded down to whole steps.
            test_steps: Instead of `fraction`, the number of last steps of each recording for the test part.
        """
        if test_steps is None and not 0 < fraction < 1:
            raise ConfigError(f"fraction={fraction} does not split a series. Use a number between 0 and 1.")
        if test_steps is not None and test_steps < 1:
            raise ConfigError(f"test_steps={test_steps} leaves no test part. Use 1 or more.")
        # The small term keeps 0.8 * 10 at 8 when the product rounds below the whole number.
        cuts = [int(fraction * T + 1e-9) if test_steps is None else T - test_steps for T in self.lengths]
        cuts = [cut if 0 < cut < T else T for cut, T in zip(cuts, self.lengths, strict=True)]
        if tuple(cuts) == self.lengths:
            asked = f"fraction={fraction}" if test_steps is None else f"test_steps={test_steps}"
            raise DataError(
                f"{self.label}: {asked} leaves an empty train or test part; the longest recording has "
                f"{max(self.lengths)} steps. Take a smaller test part, or bring longer recordings."
            )
        train = self.take([(r, slice(0, cut)) for r, cut in enumerate(cuts)], " (train part)")
        later = [(r, slice(cut, None)) for r, cut in enumerate(cuts) if cut < self.lengths[r]]
        return train, self.take(later, " (test part)")

    def take(self, rows: Sequence[tuple[int, slice]], part: str = "") -> "Series":
        """Make a recording of each pair of a recording's number and rows of it."""
        return replace(
            self,
            recordings=tuple(self.recordings[r][some] for r, some in rows),
            times=None if self.times is None else tuple(self.times[r][some] for r, some in rows),
            name=(self.name + part).lstrip(),
            source=self.source and self.source + part,
            origin=self.origin.of([r for r, _ in rows]),
            inputs=None if self.inputs is None else self.inputs.take(rows, part),
            groups=tuple(self.groups[r] for r, _ in rows) if self.groups else (),
        )

    @property
    def group_names(self) -> tuple[str, ...]:
        """Return the names of the groups, each once, in the order in which they occur."""
        return tuple(dict.fromkeys(self.groups))

    def of_group(self, name: str) -> "Series":
        """Take the recordings of one group, as a series without groups."""
        rows = [(r, slice(None)) for r, group in enumerate(self.groups) if group == name]
        if not rows:
            raise DataError(f"{self.label}: there is no group '{name}'; there are {', '.join(self.group_names)}.")
        return replace(self.take(rows, f" ({name})"), groups=())

    def pieces(self, length: int) -> "Series":
        """Cut every recording into pieces of `length` rows, each a recording of its own; the last may be shorter.

        >>> Series.from_arrays([0.0, 1.0, 2.0, 3.0, 4.0]).pieces(2).lengths
        (2, 2, 1)
        """
        if length < 1:
            raise ConfigError(f"A piece has at least 1 row, not {length}.")
        return self.take([(r, slice(a, a + length)) for r, T in enumerate(self.lengths) for a in range(0, T, length)])

    def select(self, columns: Sequence[str | int]) -> "Series":
        """Select coordinates by name or 0-based index, in the given order."""
        given = [columns] if isinstance(columns, str | int) else columns
        index = [find_column(column, self.columns, self.label) for column in given]
        if not index:
            raise DataError(f"{self.label}: no column selected. Name at least one of: {', '.join(self.columns)}.")
        names = tuple(self.columns[j] for j in index)
        return replace(self, recordings=tuple(values[:, index] for values in self.recordings), columns=names)

    def with_inputs(self, columns: Sequence[str | int]) -> "Series":
        """Take some columns for known inputs instead of coordinates, in the given order.

        Gaps of an input, which has no model to fill them, are filled by the value before, the first ones by that after.

        >>> series = Series.from_arrays([[1.0, 0.0], [2.0, float("nan")], [3.0, 1.0]], columns=["x", "stimulus"])
        >>> series.with_inputs(["stimulus"]).inputs.recordings[0].ravel().tolist()
        [0.0, 0.0, 1.0]
        """
        chosen = self.select(columns)
        others = [name for name in self.columns if name not in chosen.columns]
        if not others:
            raise DataError(f"{self.label}: all columns are inputs, so that nothing is left to model. Name fewer.")
        return self.select(others).driven_by(chosen)

    def driven_by(self, inputs: "Series | None") -> "Series":
        """Return the series with the inputs in another one, which has the same rows; None: without inputs."""
        if inputs is None:
            return replace(self, inputs=None)
        missing = sum(int(np.isnan(values).sum()) for values in inputs.recordings)
        filled = tuple(_hold(values, inputs.columns, self.label) for values in inputs.recordings)
        plural = "" if missing == 1 else "s"
        notes = (
            (*self.notes, f"{missing} missing value{plural} of inputs filled by the value before") if missing else ()
        )
        return replace(self, inputs=replace(inputs, recordings=filled, inputs=None), notes=notes or self.notes)

    @property
    def num_inputs(self) -> int:
        """Count the inputs."""
        return 0 if self.inputs is None else self.inputs.num_coordinates

    def standardised(self, scaler: Scaler) -> "Series":
        """Convert to the standard units of a scaler, usually `Scaler.fit(train)`; inputs to those of its own for them.

        A scaler without one leaves the inputs out: it belongs to a model that takes none.
        """
        inputs = None
        if self.inputs is not None and scaler.inputs is not None:
            inputs = self.inputs.standardised(scaler.inputs)
        recordings = tuple(scaler.transform(values) for values in self.recordings)
        return replace(self, recordings=recordings, inputs=inputs)

    def concatenated(self) -> Values:
        """Stack all recordings one after the other; `locate` tells which row belongs to which."""
        return np.concatenate(self.recordings)

    def rows_with_inputs(self, recording: int) -> Float[np.ndarray, "T D"]:
        """Return the rows of a recording with its inputs after the coordinates, as models read them."""
        values = self.recordings[recording]
        return values if self.inputs is None else np.hstack([values, self.inputs.recordings[recording]])

    def locate(self, row: int) -> tuple[int, int]:
        """Find the recording, and the row within it, of a row of `concatenated()`."""
        ends = np.cumsum(self.lengths)
        if not 0 <= row < self.num_steps:
            raise ConfigError(f"Row {row} does not exist, {self.label} has {self.num_steps} steps.")
        recording = int(np.searchsorted(ends, row, side="right"))
        return recording, int(row - ends[recording] + self.lengths[recording])

    def describe(self) -> dict[str, Any]:
        """Summarise in plain JSON values for reports."""
        return {
            "name": self.name,
            "source": self.source,
            "num_recordings": self.num_recordings,
            "num_coordinates": self.num_coordinates,
            "num_steps": self.num_steps,
            "shortest": min(self.lengths),
            "longest": max(self.lengths),
            "columns": list(self.columns),
            "missing_fraction": self.missing_fraction,
            "time_step": self.time_step,
            "fingerprint": self.fingerprint,
            "notes": list(self.notes),
            **({} if self.inputs is None else {"inputs": list(self.inputs.columns)}),
        }

    def __repr__(self) -> str:
        names = ", ".join(self.columns[:6]) + (", ..." if self.num_coordinates > 6 else "")
        called = f"{self.name!r}: " if self.name else ""
        step = f", step {self.time_step:.6g}" if self.time_step else ""
        counts = {"recording": self.num_recordings, "step": self.num_steps, "coordinate": self.num_coordinates}
        recordings, steps, coordinates = (f"{n} {word}{'s' * (n > 1)}" for word, n in counts.items())
        missing = f"{100 * self.missing_fraction:.3g} % missing"
        driven = "" if self.inputs is None else f"; driven by {', '.join(self.inputs.columns)}"
        return f"Series({called}{recordings}, {steps}{step}, {coordinates}: {names}; {missing}{driven})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def _check_inputs(inputs: Series, lengths: tuple[int, ...], columns: tuple[str, ...], where: str) -> None:
    if inputs.lengths != lengths:
        raise DataError(
            f"{where}: inputs have {', '.join(map(str, inputs.lengths))} rows, the recordings "
            f"{', '.join(map(str, lengths))}. Give one row of inputs for each row, recording by recording."
        )
    if twice := set(inputs.columns) & set(columns):
        raise DataError(f"{where}: '{min(twice)}' is both an input and a coordinate. Give one of them another name.")
    if inputs.missing_fraction:
        raise DataError(f"{where}: inputs have missing values. Use Series.driven_by, which fills them.")


def _hold(values: Values, columns: tuple[str, ...], where: str) -> Values:
    """Fill gaps by the value before, those at the beginning by the first value."""
    known = ~np.isnan(values)
    if known.all():
        return values
    if not known.any(axis=0).all():
        name = columns[int(np.argmin(known.any(axis=0)))]
        raise DataError(
            f"{where}: the input '{name}' has no value in a whole recording. Fill it in, or leave the input out."
        )
    rows = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(known, rows, -1), axis=0)
    return np.take_along_axis(values, np.where(last < 0, known.argmax(axis=0), last), axis=0)


def _split_times(times: Any, recordings: Sequence[np.ndarray], where: str) -> Sequence[ArrayLike]:
    """Return one array of times for each recording, from one shared array or a list."""
    listed = isinstance(times, list | tuple) and len(times) > 0 and np.ndim(times[0]) == 1
    own = listed or np.ndim(times) == 2
    return _check_number(times, recordings, where) if own else [times] * len(recordings)


def _check_number(times: Sequence[ArrayLike], recordings: Sequence[np.ndarray], where: str) -> Sequence[ArrayLike]:
    if len(times) != len(recordings):
        raise DataError(
            f"{where}: {len(times)} arrays of times for {len(recordings)} recordings. Give one for each recording."
        )
    return times
