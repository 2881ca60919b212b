"""The clock of a stream: how many steps of the model lie between its lines."""

import math
from datetime import UTC, datetime
from typing import Any

from kaffee.inference.lines import BrokenLine
from kaffee.inference.matching import STEP_TOLERANCE

MOST_SKIPPED = 10_000
"""Steps without a line that are filled in; after more of them nothing is left of what was known."""
JITTER = 0.05
"""Steps by which a time may be off, as in recordings; a clock that runs a little fast or slow adds to it."""


class Clock:
    """Counts steps from line to line by their times; a line without a time is one step.

    A time that does not fit breaks its line and is kept in mind: if the next one fits to it, the clock was set anew.

    Args:
        step: Time of one step; None: all lines are one step each, whatever their times are.
        time: Of the last line, if there was one.
    """

    def __init__(self, step: float | None, time: float | None = None) -> None:
        self._step, self.time = step, time
        self._odd: float | None = None

    def tick(self) -> None:
        """A line without a time."""
        if self.time is not None and self._step is not None:
            self.time += self._step

    def skipped(self, time: Any) -> int:
        """How many steps were left out before a line of this time.

        Raises:
            BrokenLine: if its time does not lie whole steps ahead, or too many of them.
        """
        now = _number(time)
        if now is None or self._step is None:
            self.tick()
            return 0
        steps = 1 if self.time is None else self._steps(self.time, now)
        if isinstance(steps, str):
            anew = steps if self._odd is None else self._steps(self._odd, now)
            if isinstance(anew, str):
                self._odd = now
                raise BrokenLine(steps)
            steps = self._since_set(anew, now)
        self.time, self._odd = now, None
        return steps - 1

    def _steps(self, before: float, now: float) -> int | str:
        """Steps from one time to another, or what is wrong."""
        assert self._step is not None
        if now <= before:
            return f"time {'repeats' if now == before else 'goes back'}: {now:.12g} after {before:.12g}"
        ratio = (now - before) / self._step
        if not ratio < MOST_SKIPPED + 1.5:
            return f"time jumps by {ratio:.6g} steps, from {before:.12g} to {now:.12g}; {MOST_SKIPPED} can be filled in"
        steps = round(ratio)
        # times of large magnitude (seconds since 1970) carry rounding of their own
        rounding = 4.0 * math.ulp(max(abs(now), abs(before))) / self._step
        if steps < 1 or abs(ratio - steps) > JITTER + STEP_TOLERANCE * steps + rounding:
            return f"time goes on by {ratio:.6g} steps, no whole number, from {before:.12g} to {now:.12g}"
        return steps

    def _since_set(self, steps: int, now: float) -> int:
        """Steps since the last good line, after the clock was set: ahead by so much, or back by nobody knows what."""
        assert self._step is not None
        assert self.time is not None
        ahead = (now - self.time) / self._step
        return steps if ahead < 1.0 else round(min(ahead, MOST_SKIPPED + 1.0))


def _number(time: Any) -> float | None:
    """A time as a number, ISO 8601 as seconds since 1970; None for what is neither."""
    if isinstance(time, str):
        try:
            stamp = datetime.fromisoformat(time)
        except ValueError:
            return None
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
    return None if time is None else float(time)
