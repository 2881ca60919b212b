"""What decided a verdict, in one way for terminal, page and comparison; also of certificates that do not say it."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

# What the number of a verdict is where the verdict does not say it, as in older files.
MEANING = {
    "calibration": "normalised innovation squared",
    "whiteness": "autocorrelation that stands out most",
    "skill": "gain over the best baseline, nats",
    "spread": "share of the attainable correlation",
    "tangents": "rank correlation of growths",
    "stochastic run": "excess of D_stsp, linear model = 1",
    "core": "excess of D_stsp, linear model = 1",
}


def quantity_of(verdict: Mapping[str, Any]) -> str:
    """What the number of a stored verdict is."""
    return verdict.get("quantity") or MEANING.get(verdict.get("name", ""), str(verdict.get("name", "")))


def shown(value: Any) -> str:
    """The number of a verdict.

    >>> shown(1.0349), shown(12), shown(None), shown(math.nan)
    ('1.03', '12', '–', '–')
    """
    return f"{value:.3g}" if isinstance(value, int | float) and not math.isnan(value) else "–"


def decided_by(verdict: Mapping[str, Any]) -> str:
    """The number of a stored verdict with its name.

    >>> decided_by({"name": "calibration", "value": 0.4, "quantity": "bias in standard deviations, x"})
    'bias in standard deviations, x: 0.4'
    >>> decided_by({"name": "calibration", "value": 1.03})
    'normalised innovation squared: 1.03'
    """
    value = shown(verdict.get("value"))
    return value if value == "–" else f"{quantity_of(verdict)}: {value}"


def reasons(verdicts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The sentence of each stored verdict that does not pass; checks with the same one share a line."""
    checks: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if verdict.get("status") != "pass" and verdict.get("sentence"):
            checks.setdefault((str(verdict.get("status")), verdict["sentence"]), []).append(str(verdict.get("name")))
    return [f"{', '.join(names)} ({status}): {sentence}" for (status, sentence), names in checks.items()]
