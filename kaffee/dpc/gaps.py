"""Definition 1: a refinement that lowers the score S_H and raises a certification loss D."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple


class Measured(NamedTuple):
    """A loss that is estimated from free runs, with its standard error; infinite if a run diverged."""

    value: float
    se: float = 0.0


@dataclass(frozen=True)
class Entry:
    """One look at a model during training.

    Attributes:
        update: How many updates it has seen.
        score: S_H, the objective of the run on fixed windows; lower is better.
        losses: The certification losses D by name; lower is better.
    """

    update: int
    score: float
    losses: Mapping[str, Measured]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; what is not finite becomes a word."""
        losses = {name: {"value": _plain(loss.value), "se": _plain(loss.se)} for name, loss in self.losses.items()}
        return {"update": self.update, "score": _plain(self.score), "losses": losses}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Entry":
        losses = {name: Measured(float(m["value"]), float(m["se"])) for name, m in record["losses"].items()}
        return cls(int(record["update"]), float(record["score"]), losses)


def _plain(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


@dataclass(frozen=True)
class Gap:
    """A step theta -> theta' with S_H(theta') < S_H(theta) but D(theta') > D(theta).

    Attributes:
        before, after: Updates between which it happened.
        loss: Which D.
        score_change: Negative.
        loss_change: Positive, and larger than its standard error times the significance asked for.
    """

    before: int
    after: int
    loss: str
    score_change: float
    loss_change: float
    loss_change_se: float


def find_gaps(entries: Sequence[Entry], *, significance: float = 2.0) -> list[Gap]:
    """The gaps between consecutive entries.

    The score is evaluated on fixed windows and has no sampling error; a loss has to rise by `significance` combined
    standard errors, because free runs of a chaotic model are samples.

    >>> calm, broken = {"D": Measured(0.2, 0.01)}, {"D": Measured(0.9, 0.01)}
    >>> [(g.before, g.after, g.loss) for g in find_gaps([Entry(0, 1.5, calm), Entry(10, 1.2, broken)])]
    [(0, 10, 'D')]
    """
    found = []
    for old, new in pairwise(entries):
        if not new.score < old.score:
            continue
        for name, loss in new.losses.items():
            before = old.losses[name]
            se = math.hypot(before.se, loss.se)
            if loss.value > before.value and not loss.value - before.value <= significance * se:
                change = loss.value - before.value
                found.append(Gap(old.update, new.update, name, new.score - old.score, change, se))
    return found


def overall_gaps(entries: Sequence[Entry], *, significance: float = 2.0) -> list[Gap]:
    """The gaps of the run as a whole, from its first entry to its last."""
    return [] if len(entries) < 2 else find_gaps([entries[0], entries[-1]], significance=significance)
