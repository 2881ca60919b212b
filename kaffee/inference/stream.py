"""Lines from a stream as they come: all that are waiting at once, never more memory than one long line."""

import json
import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import FrameType, TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np

from kaffee.inference.lines import NAN, BrokenLine, Clock, LineReader, LineWriter
from kaffee.inference.online import OnlineFilter

READ_SIZE = 1 << 16
LONGEST_LINE = 1 << 20
"""Bytes; a longer line is cut to an empty one that says so."""


class Line(bytes):
    """The bytes of a line without its end."""

    too_long = False


class _TooLong(Line):
    too_long = True


def batches(stream: "IO[bytes] | Interruptible") -> Iterator[list[Line]]:
    """Complete lines, as many as are waiting; blocks only when none is.

    The last line counts even without a line end, unless Ctrl-C cut it off. A line beyond `LONGEST_LINE` is dropped as
    it is read and comes as one that is `too_long`.
    """
    rest, dropping = b"", False
    while True:
        content = stream.read1(READ_SIZE)  # type: ignore[union-attr]
        if not content:
            break
        *complete, rest = (rest + content).split(b"\n")
        lines = [Line(line) for line in complete]
        if dropping and lines:
            lines[0], dropping = _TooLong(), False
        if len(rest) > LONGEST_LINE:
            rest, dropping = b"", True
        elif dropping:
            rest = b""
        if lines:
            yield lines
    if (rest or dropping) and not getattr(stream, "interrupted", False):
        yield [_TooLong() if dropping else Line(rest)]


class Interruptible:
    """A stream that ends at Ctrl-C: at once while it waits for input, and after the work at hand otherwise.

    So no line that was taken in is lost on its way out.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._waiting = stream, False
        self._before: Any = None
        self.interrupted = False

    def read1(self, size: int) -> bytes:
        """Up to `size` bytes, as soon as there are any; none at the end."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


# Filtering a stream of lines: every line in is one JSON line out, in order.


PORTION = 4096
"""Steps that are filtered in one go."""


@dataclass
class Followed:
    """What went through.

    Attributes:
        lines: All that came in.
        steps: Steps that the filter took.
        skipped: Those of them that no line came for, as times tell.
        broken: Lines that were no reading; each was reported.
        rejected: Entries that were read but not believed.
        restarts: How often the belief was lost and started anew.
        closed: Whether nobody listened any more.
    """

    lines: int = 0
    steps: int = 0
    skipped: int = 0
    broken: int = 0
    rejected: int = 0
    restarts: int = 0
    closed: bool = False

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


class Answer(NamedTuple):
    """What comes back for a line.

    Attributes:
        values: The reading; None if the line is no step.
        error: What is wrong with the line, if anything.
        skipped: Steps before this one that no line came for.
    """

    values: list[float] | None
    time: Any = None
    error: str = ""
    skipped: int = 0


def follow(
    online: OnlineFilter,
    source: IO[bytes] | Interruptible,
    target: IO[str],
    report: Callable[[str], Any],
    *,
    skip_broken: bool = False,
    any_step: bool = False,
    time_column: str | None = None,
    levels: Sequence[float] = (),
) -> Followed:
    """Filter lines until the stream ends, or nobody listens.

    All lines that are waiting are filtered in one go and written at once; results do not depend on how lines arrive.

    A line is one step; broken and blank ones are steps without a reading. Once a line has told a time, times count the
    steps: those that no line came for are filled in, a reading without a time is one step, and a line that is broken,
    blank without a time, or of a time that does not fit, is none.

    Args:
        report: Called with a sentence for every broken line.
        skip_broken: A broken line is never a step: its object holds only `line` and `error`.
        any_step: Every line is one step, whatever its time is.
        time_column: The column of times; found by its name if left out.
        levels: Quantiles of the signal that are written, too.
    """
    reader = LineReader(online.columns, time_column)
    writer = LineWriter(online.columns, np.dtype(online.reconstruction.model.dtype).name, levels)
    clock = Clock(None if any_step else online.reconstruction.dt, online.time, online.steps_since_time)
    total = Followed()
    try:
        for lines in batches(source):
            if total.lines == 0 and reader.is_header(_text(lines[0], first=True)):
                total.lines, lines = 1, lines[1:]
            start = total.lines
            read = (_read(reader, clock, line, skip_broken, first=start + i == 0) for i, line in enumerate(lines))
            for answers in _portions(read):
                _report(answers, total, report)
                target.writelines(_objects(online, writer, answers, total))
                online.time, online.steps_since_time = clock.time, clock.steps_since_time
            target.flush()
    except BrokenPipeError:
        total.closed = True
    return total


def _text(line: Line, *, first: bool) -> str:
    text = line.decode("utf-8", errors="replace")
    return text.removeprefix("\ufeff") if first else text


def _read(reader: LineReader, clock: Clock, line: Line, skip_broken: bool, *, first: bool) -> Answer:
    """What a line says, and how many steps were left out before it."""
    try:
        if line.too_long:
            raise BrokenLine(f"longer than {LONGEST_LINE} bytes")
        reading = reader.read(_text(line, first=first))
    except BrokenLine as error:
        if skip_broken or clock.misses(None):
            return Answer(None, error=str(error))
        clock.tick()
        return Answer([NAN] * len(reader.columns), error=str(error))
    if all(map(math.isnan, reading.values)) and clock.misses(reading.time):
        return Answer(None, reading.time)
    try:
        return Answer(reading.values, reading.time, skipped=clock.skipped(reading.time))
    except BrokenLine as error:
        return Answer(None, reading.time, str(error))


def _portions(answers: Iterable[Answer]) -> Iterator[list[Answer]]:
    """Answers in lists of so many steps that their beliefs fit into memory, however long the gaps are."""
    kept: list[Answer] = []
    steps = 0
    for answer in answers:
        kept.append(answer)
        steps += 1 + answer.skipped
        if steps >= PORTION:
            yield kept
            kept, steps = [], 0
    if kept:
        yield kept


def _report(answers: list[Answer], total: Followed, report: Callable[[str], Any]) -> None:
    for i, answer in enumerate(answers):
        if answer.error:
            total.broken += 1
            report(f"line {total.lines + i + 1}: {answer.error}")


def _objects(online: OnlineFilter, writer: LineWriter, answers: list[Answer], total: Followed) -> list[str]:
    """The JSON lines of answers; counts them in `total`."""
    steps = [answer for answer in answers if answer.values is not None]
    rows = np.cumsum([1 + answer.skipped for answer in steps], dtype=np.int64) - 1
    values = np.full((int(rows[-1]) + 1 if steps else 0, len(online.columns)), np.nan)
    values[rows] = np.array([answer.values for answer in steps]).reshape(-1, len(online.columns))
    first = online.num_steps == 0 and bool(steps)
    estimate = online.run(values)
    total.rejected += int(estimate.rejected.sum())
    total.restarts += int(estimate.restarted.sum()) - first
    total.steps += len(values)
    total.skipped += len(values) - len(steps)
    fields, found = writer.encode(estimate if len(steps) == len(values) else estimate.at(rows)), []
    for answer in answers:
        total.lines += 1
        parts = [f'"line": {total.lines}']
        if answer.time is not None:
            parts.append(f'"t": {json.dumps(answer.time)}')
        if answer.error:
            parts.append(f'"error": {json.dumps(answer.error)}')
        if answer.skipped:
            parts.append(f'"skipped": {answer.skipped}')
        if answer.values is not None:
            parts.append(next(fields))
        found.append("{" + ", ".join(parts) + "}\n")
    return found
