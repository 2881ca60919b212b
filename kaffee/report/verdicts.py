"""The first screen of a report: a badge for each axis that says what decides it, then a card for each check."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from kaffee.errors import ConfigError, unknown

SYMBOLS = {"pass": "✓", "warn": "!", "fail": "✕", "unknown": "?"}
"""A verdict is told by word, symbol and colour: any one of them is enough."""
WORST_FIRST = ("fail", "warn", "unknown", "pass")


class Verdict(Protocol):
    """What a verdict must say; where it comes from is none of the report's business."""

    @property
    def axis(self) -> str:
        """What is judged; verdicts of one axis share a badge."""
        ...

    @property
    def check(self) -> str:
        """By which question, such as calibration."""
        ...

    @property
    def name(self) -> str:
        """By which quantity."""
        ...

    @property
    def status(self) -> str:
        """pass, warn, fail or unknown."""
        ...

    @property
    def value(self) -> str:
        """What was found."""
        ...

    @property
    def rule(self) -> str:
        """What must hold."""
        ...

    @property
    def sentence(self) -> str:
        """What that means."""
        ...


@dataclass(frozen=True)
class Verdicts:
    """Badges of axes, then cards of checks, the worst first."""

    verdicts: Sequence[Verdict]

    def summary(self) -> str:
        """How many there are of each, the worst first.

        >>> from types import SimpleNamespace
        >>> Verdicts([SimpleNamespace(status="pass"), SimpleNamespace(status="fail")]).summary()
        '1 fail, 1 pass'
        """
        counts = Counter(verdict.status for verdict in self.verdicts)
        return ", ".join(f"{counts[status]} {status}" for status in WORST_FIRST if counts[status])

    def to_html(self) -> str:
        if not self.verdicts:
            return ""
        for verdict in self.verdicts:
            if verdict.status not in SYMBOLS:
                raise ConfigError(unknown("status of a verdict", str(verdict.status), SYMBOLS))
        axes: dict[str, list[tuple[int, Verdict]]] = {}
        for i, verdict in enumerate(self.verdicts):
            axes.setdefault(verdict.axis, []).append((i, verdict))
        badges = "".join(_badge(found) for found in axes.values())
        ordered = sorted(enumerate(self.verdicts), key=lambda one: WORST_FIRST.index(one[1].status))
        cards = "".join(_card(verdict, i) for i, verdict in ordered)
        return (
            "<section id='verdicts' class='verdicts' aria-label='Verdicts'>"
            f"<ul class='badges' aria-label='Axes'>{badges}</ul>"
            f"<p class='summary'>An axis is as good as its worst check: {escape(self.summary())}.</p>"
            f"<ul class='cards'>{cards}</ul></section>"
        )


def decision(verdicts: Sequence[Verdict]) -> tuple[str, str]:
    """The status of an axis and what decides it; what is unknown does not hide what is known.

    >>> from types import SimpleNamespace
    >>> skill, spread = SimpleNamespace(status="pass", check="skill"), SimpleNamespace(status="unknown", check="spread")
    >>> decision([skill, spread])
    ('pass', 'all known checks pass; unknown: spread')
    """
    checks = {status: [str(v.check) for v in verdicts if v.status == status] for status in WORST_FIRST}
    status = next(status for status in ("fail", "warn", "pass", "unknown") if checks[status])
    rest = f"; unknown: {', '.join(checks['unknown'])}" if checks["unknown"] and status != "unknown" else ""
    if status == "pass":
        return status, f"all {'known ' * bool(rest)}checks pass{rest}"
    return status, f"decided by {', '.join(checks[status])}{rest}"


def _mark(status: str) -> str:
    return f"<span class='symbol' aria-hidden='true'>{SYMBOLS[status]}</span><span class='word'>{escape(status)}</span>"


def _badge(found: Sequence[tuple[int, Verdict]]) -> str:
    """The verdict on an axis, with a link to the card that decides it."""
    status, why = decision([verdict for _, verdict in found])
    first = next(i for i, verdict in found if verdict.status == status)
    return (
        f"<li><a class='badge {status}' href='#verdict-{first}'><span class='status'>{_mark(status)}</span>"
        f"<span class='judged'>{escape(str(found[0][1].axis))}</span><span class='why'>{escape(why)}</span></a></li>"
    )


def _card(verdict: Verdict, i: int) -> str:
    status = str(verdict.status)
    return (
        f"<li class='card {status}' id='verdict-{i}' tabindex='-1'><p class='status'>{_mark(status)}</p>"
        f"<p class='which'>{escape(str(verdict.axis))}</p><p class='judged'>{escape(str(verdict.check))}</p>"
        f"<p class='value'><span class='name'>{escape(str(verdict.name))}</span> "
        f"<strong>{escape(str(verdict.value))}</strong></p>"
        f"<p class='sentence'>{escape(str(verdict.sentence))}</p>"
        f"<p class='rule'><span>Rule</span> {escape(str(verdict.rule))}</p></li>"
    )
