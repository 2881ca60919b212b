"""Lines from a stream as they come: all that are waiting at once, never more memory than one long line."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import IO, Any, Self

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
