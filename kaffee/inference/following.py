"""Filtering a stream of lines: every line in is one JSON line out, in order."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np

from kaffee.inference.encoding import LineWriter
from kaffee.inference.lines import BrokenLine, LineReader, Reading
from kaffee.inference.online import OnlineFilter
from kaffee.inference.stream import LONGEST_LINE, Interruptible, Line, batches


@dataclass
class Followed:
    """What went through.

    Attributes:
        lines: All that came in.
        steps: Steps that the filter took.
        broken: Lines that were no reading; each was reported.
        rejected: Entries that were read but not believed.
        restarts: How often the belief was lost and started anew.
        closed: Whether nobody listened any more.
    """

    lines: int = 0
    steps: int = 0
    broken: int = 0
    rejected: int = 0
    restarts: int = 0
    closed: bool = False

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def follow(
    online: OnlineFilter,
    source: IO[bytes] | Interruptible,
    target: IO[str],
    report: Callable[[str], Any],
    *,
    skip_broken: bool = False,
) -> Followed:
    """Filter lines until the stream ends, or nobody listens.

    All lines that are waiting are filtered in one go and written at once; results do not depend on how lines arrive. A
    broken line is a step without reading, since the sensor's clock went on: its belief comes with an `error`.

    Args:
        report: Called with a sentence for every broken line.
        skip_broken: A broken line is no step at all: its object holds only `line` and `error`.
    """
    reader = LineReader(online.columns)
    writer = LineWriter(online.columns, np.dtype(online.reconstruction.model.dtype).name)
    total = Followed()
    try:
        for lines in batches(source):
            if total.lines == 0 and reader.is_header(_text(lines[0], first=True)):
                total.lines, lines = 1, lines[1:]
            readings = [_read(reader, line, first=total.lines + i == 0) for i, line in enumerate(lines)]
            for i, reading in enumerate(readings):
                if isinstance(reading, str):
                    total.broken += 1
                    report(f"line {total.lines + i + 1}: {reading}")
            target.writelines(_objects(online, writer, readings, total, skip_broken))
            target.flush()
    except BrokenPipeError:
        total.closed = True
    return total


def _text(line: Line, *, first: bool) -> str:
    text = line.decode("utf-8", errors="replace")
    return text.removeprefix("\ufeff") if first else text


def _read(reader: LineReader, line: Line, *, first: bool) -> Reading | str:
    """A reading, or what is wrong with the line."""
    if line.too_long:
        return f"longer than {LONGEST_LINE} bytes"
    try:
        return reader.read(_text(line, first=first))
    except BrokenLine as error:
        return str(error)


def _objects(
    online: OnlineFilter, writer: LineWriter, readings: list[Reading | str], total: Followed, skip_broken: bool
) -> list[str]:
    """The JSON lines of a batch; counts them in `total`."""
    missing = [np.nan] * len(online.columns)
    kept = [r for r in readings if isinstance(r, Reading) or not skip_broken]
    values = np.array([r.values if isinstance(r, Reading) else missing for r in kept]).reshape(-1, len(missing))
    restarts = 0 if online.num_steps else -1
    estimate = online.run(values)
    total.rejected += int(estimate.rejected.sum())
    total.restarts += int(estimate.restarted.sum()) + (restarts if len(kept) else 0)
    total.steps += len(kept)
    fields, found = writer.encode(estimate), []
    for reading in readings:
        total.lines += 1
        parts = [f'"line": {total.lines}']
        if isinstance(reading, str):
            parts.append(f'"error": {json.dumps(reading)}')
        elif reading.time is not None:
            parts.append(f'"t": {json.dumps(reading.time)}')
        if isinstance(reading, Reading) or not skip_broken:
            parts.append(next(fields))
        found.append("{" + ", ".join(parts) + "}\n")
    return found
