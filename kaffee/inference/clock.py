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
    """Counts steps from time to time; a reading without a time is one of them, or one more.

    A time that does not fit breaks its line and is kept in mind: if the next one fits to it, the clock was set anew.

    Args:
        step: Time of one step; None: all lines are one step each, whatever their times are.
        time: The last that was told, if any.
        steps_since_time: Steps that were taken since then.
    """

    def __init__(self, step: float | None, time: float | None = None, steps_since_time: int = 0) -> None:
        self._step, self.time, self.steps_since_time = step, time, steps_since_time
        self._odd: float | None = None
        self._steps_since_odd = 0

    def misses(self, time: Any) -> bool:
        """Whether steps are counted by times, and this is none."""
        return self._step is not None and self.time is not None and _number(time) is None

    def tick(self) -> None:
        """One step, at a time that nobody told."""
        self.steps_since_time += self.time is not None
        self._steps_since_odd += 1

    def skipped(self, time: Any) -> int:
        """How many steps were left out before the one of this time.

        Raises:
            BrokenLine: if its time does not lie whole steps ahead, or too many of them.
        """
        now = _number(time)
        if now is None or self._step is None:
            self.tick()
            return 0
        left_out = 0 if self.time is None else self._left_out(self.time, self.steps_since_time, now)
        if isinstance(left_out, str):
            anew = left_out if self._odd is None else self._left_out(self._odd, self._steps_since_odd, now)
            if isinstance(anew, str):
                self._odd, self._steps_since_odd = now, 0
                raise BrokenLine(left_out)
            left_out = self._left_out_since_set(anew, now)
        self.time, self.steps_since_time, self._odd = now, 0, None
        return left_out

    def _left_out(self, before: float, taken: int, now: float) -> int | str:
        """Steps between two times that were not taken yet, or what is wrong."""
        assert self._step is not None
        if now <= before:
            return f"time {'repeats' if now == before else 'goes back'}: {now:.12g} after {before:.12g}"
        ratio = (now - before) / self._step
        if not ratio - 1.5 < MOST_SKIPPED + taken:
            return f"time jumps by {ratio:.6g} steps, from {before:.12g} to {now:.12g}; {MOST_SKIPPED} can be filled in"
        steps = round(ratio)
        # times of large magnitude (seconds since 1970) carry rounding of their own
        rounding = 4.0 * math.ulp(max(abs(now), abs(before))) / self._step
        if steps < 1 or abs(ratio - steps) > JITTER + STEP_TOLERANCE * steps + rounding:
            return f"time goes on by {ratio:.6g} steps, no whole number, from {before:.12g} to {now:.12g}"
        return max(steps - 1 - taken, 0)

    def _left_out_since_set(self, anew: int, now: float) -> int:
        """Steps left out after the clock was set: ahead by so much, or back by nobody knows what."""
        assert self._step is not None
        assert self.time is not None
        ahead = (now - self.time) / self._step
        if ahead < 1.0:
            return anew
        taken = 1 + self.steps_since_time
        return max(round(min(ahead, MOST_SKIPPED + taken)) - taken, 0)


def _number(time: Any) -> float | None:
    """A time as a number, ISO 8601 as seconds since 1970; None for what is neither."""
    if isinstance(time, str):
        try:
            stamp = datetime.fromisoformat(time)
        except ValueError:
            return None
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
    return None if time is None else float(time)
