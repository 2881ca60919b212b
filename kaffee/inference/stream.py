"""Filter a stream of lines as they come: every line in is one JSON line out, in order."""

import json
import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any, Self

import numpy as np

from kaffee.filtering.particles import COLLAPSED, describe_collapse
from kaffee.inference._lines import BrokenLine, Clock, LineReader, LineWriter, Reading
from kaffee.inference.matching import model_frequency
from kaffee.inference.online import OnlineFilter

READ_SIZE = 1 << 16
LONGEST_LINE = 1 << 20  # bytes; a longer line is dropped and reported
PORTION = 4096  # steps that are filtered in one go
ENOUGH = 100  # readings from which on a stream is told that its particles collapsed, without waiting for its end


@dataclass
class _Followed:
    """Counts of what went through a stream.

    Attributes:
        skipped: Steps that no line came for, as times tell.
        broken: Lines that were no reading; each was reported.
        rejected: Entries that were read but not believed.
        read: Steps with a reading that was believed, in a belief that had begun.
        collapsed: Those of them after which fewer than two particles count; None for filters that weigh none.
        closed: Whether the reader of the output left.
    """

    lines: int = 0
    steps: int = 0
    skipped: int = 0
    broken: int = 0
    rejected: int = 0
    restarts: int = 0
    read: int = 0
    collapsed: int | None = None
    closed: bool = False


def follow(
    online: OnlineFilter,
    source: "IO[bytes] | Interruptible",
    target: IO[str],
    report: Callable[[str], Any],
    *,
    skip_broken: bool = False,
    any_step: bool = False,
    time_column: str | None = None,
    levels: Sequence[float] = (),
) -> _Followed:
    """Filter lines until the stream ends, or the reader of the output leaves.

    All lines that are waiting are filtered in one go and written at once; results do not depend on how lines arrive.

    Inputs of a driven model are columns like others; missing ones are those of the line before.

    A line is one step; broken and blank ones are steps without a reading. From the first line with a time on, times
    count the steps: those that no line came for are filled in, a reading without a time is one step, and a line that is
    broken, blank without a time, or of a time that does not fit, is none.

    Args:
        report: Called with a sentence for every broken line, and once if particles have collapsed.
        skip_broken: A broken line is never a step: its object holds only `line` and `error`.
        any_step: Every line is one step, whatever its time is.
        time_column: The column of times; found by its name if left out.
        levels: Quantiles of the signal that are written, too.
    """
    reader = LineReader((*online.columns, *online.reconstruction.inputs), time_column)
    writer = LineWriter(online.columns, np.dtype(online.reconstruction.model.dtype).name, levels)
    step, frequency = online.reconstruction.dt, model_frequency(online.reconstruction) or None
    clock = Clock(None if any_step else step, online.time, online.steps_since_time, frequency)
    total = _Followed()
    told = False

    def tell_collapse() -> bool:
        sentence = describe_collapse(
            total.collapsed / total.read if total.collapsed is not None and total.read else None
        )
        if sentence:
            report(f"warning: {sentence}")
        return bool(sentence)

    try:
        for lines in _read_batches(source):
            texts = [None if line is None else line.decode("utf-8", errors="replace") for line in lines]
            if total.lines == 0 and texts[0] is not None:
                texts[0] = texts[0].removeprefix("\ufeff")
                if reader.is_header(texts[0]):
                    total.lines, texts = 1, texts[1:]
            for readings in _portions(_read(reader, clock, text, skip_broken) for text in texts):
                for number, reading in enumerate(readings, start=total.lines + 1):
                    if reading.error:
                        total.broken += 1
                        report(f"line {number}: {reading.error}")
                target.writelines(_encode(online, writer, readings, total))
                online.time, online.steps_since_time = clock.time, clock.steps_since_time
                told = told or (total.read >= ENOUGH and tell_collapse())
            target.flush()
    except BrokenPipeError:
        total.closed = True
    if not told:
        tell_collapse()
    return total


def _read_batches(stream: "IO[bytes] | Interruptible") -> Iterator[list[bytes | None]]:
    """Read complete lines, as many as are waiting; blocks only when none is.

    The last line counts even without a line end, unless Ctrl-C cut it off. A line beyond `LONGEST_LINE` is dropped as
    it is read and comes as None, so that memory stays bounded.
    """
    rest, dropping = b"", False
    while content := stream.read1(READ_SIZE):  # type: ignore[union-attr]
        *complete, rest = (rest + content).split(b"\n")
        lines: list[bytes | None] = [*complete]
        if dropping and lines:
            lines[0], dropping = None, False
        if dropping or len(rest) > LONGEST_LINE:
            rest, dropping = b"", True
        if lines:
            yield lines
    if (rest or dropping) and not getattr(stream, "interrupted", False):
        yield [None if dropping else rest]


class Interruptible:
    """A stream that ends at Ctrl-C: at once while it waits for input, and after the work at hand otherwise.

    So no line that was taken in is lost on its way out.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._waiting = stream, False
        self._before: Any = None
        self.interrupted = False

    def read1(self, size: int) -> bytes:
        """Read up to `size` bytes, as soon as there are any; none at the end."""
        try:
            self._waiting = True
            return b"" if self.interrupted else self._stream.read1(size)  # type: ignore[attr-defined]
        except KeyboardInterrupt:
            self.interrupted = True
            return b""
        finally:
            self._waiting = False

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        if self._waiting:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _read(reader: LineReader, clock: Clock, line: str | None, skip_broken: bool) -> Reading:
    """Read a line, and count the steps that were left out before it."""
    nothing = [math.nan] * len(reader.columns)
    try:
        if line is None:
            raise BrokenLine(f"longer than {LONGEST_LINE} bytes")
        reading = reader.read(line)
    except BrokenLine as error:
        if skip_broken or clock.misses(None):
            return Reading(None, error=str(error))
        clock.tick()
        return Reading(nothing, error=str(error))
    if all(map(math.isnan, reading.values or nothing)) and clock.misses(reading.time):
        return reading._replace(values=None)
    try:
        return reading._replace(skipped=clock.count_skipped(reading.time))
    except BrokenLine as error:
        return reading._replace(values=None, error=str(error))


def _portions(readings: Iterable[Reading]) -> Iterator[list[Reading]]:
    """Group readings into lists of so many steps that their beliefs fit into memory, however long the gaps are."""
    kept, steps = [], 0
    for reading in readings:
        kept.append(reading)
        steps += 1 + reading.skipped
        if steps >= PORTION:
            yield kept
            kept, steps = [], 0
    if kept:
        yield kept


def _encode(online: OnlineFilter, writer: LineWriter, readings: list[Reading], total: _Followed) -> list[str]:
    """Filter readings and write their JSON lines; counts them in `total`."""
    steps = [reading for reading in readings if reading.values is not None]
    rows = np.cumsum([1 + reading.skipped for reading in steps], dtype=np.int64) - 1
    N, width = len(online.columns), len(online.columns) + len(online.reconstruction.inputs)
    values = np.full((int(rows[-1]) + 1 if steps else 0, width), np.nan)
    values[rows] = np.array([reading.values for reading in steps]).reshape(-1, width)
    first = online.num_steps == 0 and bool(steps)
    estimate = online.run(values[:, :N], values[:, N:])
    total.rejected += int(estimate.rejected.sum())
    total.restarts += int(estimate.restarted.sum()) - first
    read = estimate.accepted.any(axis=1) & ~estimate.restarted
    total.read += int(read.sum())
    if "effective_particles" in estimate.arrays:
        total.collapsed = (total.collapsed or 0) + int((estimate.effective_particles[read] < COLLAPSED).sum())
    total.steps += len(values)
    total.skipped += len(values) - len(steps)
    fields = writer.encode(estimate if len(steps) == len(values) else estimate.at(rows))
    objects = []
    for reading in readings:
        total.lines += 1
        notes = {"t": reading.time, "error": reading.error or None, "skipped": reading.skipped or None}
        parts = [f'"{key}": {json.dumps(value)}' for key, value in notes.items() if value is not None]
        if reading.values is not None:
            parts.append(next(fields))
        objects.append("{" + ", ".join([f'"line": {total.lines}', *parts]) + "}\n")
    return objects
