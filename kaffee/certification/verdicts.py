"""What a verdict is, and how a number becomes one.

The rules of `local_verdicts` and `run_verdicts` are written out beside their results. Thresholds are effect sizes: with
thousands of readings any model of real data is significantly wrong, and the question is by how much. Where there are
few readings, what chance alone would give passes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np

Status = Literal["pass", "warn", "fail", "unknown"]
SEVERITY: dict[Status, int] = {"unknown": 0, "pass": 1, "warn": 2, "fail": 3}


@dataclass(frozen=True)
class Verdict:
    """One check.

    Attributes:
        axis: 1 local probabilistic, 2 stochastic free run, 3 deterministic core.
        name: Of the check.
        value: The number that decided; None if there is none.
        rule: When it passes, in words and numbers.
        sentence: What was found.
        quantity: What the number is.
    """

    axis: int
    name: str
    status: Status
    value: float | None
    rule: str
    sentence: str
    quantity: str = ""


class Finding(NamedTuple):
    """One of the numbers that a check looks at.

    Attributes:
        quantity: What it is.
        share: How much of its limit it takes; more than 1 does not pass.
    """

    quantity: str
    value: float
    status: Status
    share: float


class Graded(Protocol):
    """What has a status, and a share of its limit that it takes."""

    @property
    def status(self) -> Status: ...

    @property
    def share(self) -> float: ...


G = TypeVar("G", bound=Graded)


def decisive(found: Iterable[G]) -> G:
    """The one with the worst status, and among these the one that is farthest beyond its limit."""
    return max(found, key=lambda one: (SEVERITY[one.status], one.share))


def worst(statuses: Sequence[Status]) -> Status:
    """The most severe; "unknown" only if nothing else is known.

    >>> worst(["pass", "unknown", "warn"])
    'warn'
    """
    return max(statuses, key=SEVERITY.__getitem__, default="unknown")


def graded(value: float, limits: tuple[float, float], chance: float = 0.0) -> Status:
    """Small is good: "pass" up to the first limit or what chance gives, "warn" up to the second, else "fail".

    >>> graded(0.2, (0.1, 0.3)), graded(float("nan"), (0.1, 0.3))
    ('warn', 'fail')
    """
    if not np.isfinite(value):
        return "fail"
    return "pass" if value <= max(limits[0], chance) else "warn" if value <= max(limits[1], chance) else "fail"
