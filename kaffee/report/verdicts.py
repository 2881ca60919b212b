"""The first screen of a report: a verdict for each axis, with the rule it follows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from kaffee.errors import ConfigError, unknown

SYMBOLS = {"pass": "✓", "warn": "!", "fail": "✕", "unknown": "?"}
"""A verdict is told by word, symbol and colour: any one of them is enough."""


class Verdict(Protocol):
    """What a verdict must say; where it comes from is none of the report's business."""

    @property
    def axis(self) -> str:
        """What is judged, such as calibration."""
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
    """Cards with verdicts, under a line that counts them."""

    verdicts: Sequence[Verdict]

    def summary(self) -> str:
        """How many there are of each, the worst first.

        >>> from types import SimpleNamespace
        >>> Verdicts([SimpleNamespace(status="pass"), SimpleNamespace(status="fail")]).summary()
        '1 fail, 1 pass'
        """
        counts = Counter(verdict.status for verdict in self.verdicts)
        return ", ".join(
            f"{counts[status]} {status}" for status in ("fail", "warn", "unknown", "pass") if counts[status]
        )

    def to_html(self) -> str:
        if not self.verdicts:
            return ""
        cards = "".join(_card(verdict) for verdict in self.verdicts)
        return (
            "<section id='verdicts' class='verdicts' aria-label='Verdicts'>"
            f"<p class='summary'>{escape(self.summary())}</p><ul class='cards'>{cards}</ul></section>"
        )


def _card(verdict: Verdict) -> str:
    status = str(verdict.status)
    if status not in SYMBOLS:
        raise ConfigError(unknown("status of a verdict", status, SYMBOLS))
    return (
        f"<li class='card {status}'><p class='status'><span class='symbol' aria-hidden='true'>{SYMBOLS[status]}</span>"
        f"<span class='word'>{status}</span></p>"
        f"<p class='judged'>{escape(str(verdict.axis))}</p>"
        f"<p class='value'><span class='name'>{escape(str(verdict.name))}</span> "
        f"<strong>{escape(str(verdict.value))}</strong></p>"
        f"<p class='sentence'>{escape(str(verdict.sentence))}</p>"
        f"<p class='rule'><span>Rule</span> {escape(str(verdict.rule))}</p></li>"
    )
