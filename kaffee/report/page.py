"""Write a report as one HTML file: no network, every text escaped, readable on a phone and in the dark."""

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kaffee.certification.certificate import AXES
from kaffee.certification.verdicts import Verdict
from kaffee.errors import ConfigError, unknown
from kaffee.report.style import DARK_TEMPLATE, IN_THE_DARK, TEMPLATE
from kaffee.tables import Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

# A verdict is told by word, symbol and colour: any one of them is enough. The worst comes first.
_SYMBOLS = {"fail": "✕", "warn": "!", "unknown": "?", "pass": "✓"}
_SHOWN_ROWS = (100, 1500)
"""Rows of a table of numbers under a figure, and of all its tables; longer ones are thinned."""
# What the number of a verdict is where the verdict does not say it, as in older files.
_MEANING = {
    "calibration": "normalised innovation squared",
    "whiteness": "autocorrelation that stands out most",
    "skill": "gain over the best baseline, nats",
    "spread": "share of the attainable correlation",
    "tangents": "rank correlation of growths",
    "stochastic run": "excess of D_stsp, linear model = 1",
    "core": "excess of D_stsp, linear model = 1",
}


def _name_quantity(verdict: Mapping[str, Any]) -> str:
    """Return the name of the number that decided a stored verdict."""
    return verdict.get("quantity") or _MEANING.get(verdict.get("name", ""), str(verdict.get("name", "")))


def _format_value(value: Any) -> str:
    """Format the number of a verdict.

    >>> _format_value(1.0349), _format_value(12), _format_value(None), _format_value(math.nan)
    ('1.03', '12', '–', '–')
    """
    return f"{value:.3g}" if isinstance(value, int | float) and not math.isnan(value) else "–"


def describe_decision(verdict: Mapping[str, Any]) -> str:
    """Format the deciding quantity of a verdict, also for certificates that do not name it.

    >>> describe_decision({"name": "calibration", "value": 1.03})
    'normalised innovation squared: 1.03'
    """
    value = _format_value(verdict.get("value"))
    return value if value == "–" else f"{_name_quantity(verdict)}: {value}"


def list_reasons(verdicts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the sentence of each stored verdict that does not pass; checks with the same one share a line."""
    checks: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if verdict.get("status") != "pass" and verdict.get("sentence"):
            checks.setdefault((str(verdict.get("status")), verdict["sentence"]), []).append(str(verdict.get("name")))
    return [f"{', '.join(names)} ({status}): {sentence}" for (status, sentence), names in checks.items()]


class Picture(NamedTuple):
    """An interactive figure with its title and one sentence on what to see."""

    title: str
    caption: str
    figure: "go.Figure"


@dataclass(frozen=True)
class Section:
    """A heading with text, figures, tables and code, in this order."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    code: str = ""


@dataclass(frozen=True)
class Report:
    """A titled list of sections.

    Attributes:
        subtitle: One line under the title.
        purpose: What the model is good for, above the verdicts.
        verdicts: Shown on the first screen.
        provenance: Where the results come from: command, seed, versions, fingerprint; the last section.
    """

    title: str
    sections: Sequence[Section] = ()
    subtitle: str = ""
    purpose: str = ""
    verdicts: Sequence[Verdict] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_html(self) -> str:
        """Return the whole page."""
        from jinja2 import Environment

        scripts = []
        if any(section.pictures for section in self.sections):
            from plotly.offline import get_plotlyjs

            scripts = [get_plotlyjs(), _read_asset("page.js")]
        text = (
            Environment(autoescape=True)
            .from_string(_read_asset("page.html.j2"))
            .render(
                report=self,
                titles=[*(section.title for section in self.sections), *(["Provenance"] if self.provenance else [])],
                symbols=_SYMBOLS,
                cards=_rank_verdicts(self.verdicts),
                badges=_judge_axes(self.verdicts),
                counts=Counter(verdict.status for verdict in self.verdicts),
                style=_read_asset("style.css"),
                looks=json.dumps({"light": TEMPLATE, "dark": DARK_TEMPLATE, "colours": IN_THE_DARK}),
                scripts=scripts,
                policy=_make_policy(scripts),
                embed=_embed,
                tabulate=_tabulate_numbers,
            )
        )
        # File names that are not valid Unicode: a question mark instead of a page that cannot be written.
        return text.encode("utf-8", "replace").decode("utf-8") + "\n"


def _rank_verdicts(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return what the card of each verdict shows, the worst first."""
    cards = []
    for i, verdict in enumerate(verdicts):
        if verdict.status not in _SYMBOLS:
            raise ConfigError(unknown("status of a verdict", str(verdict.status), _SYMBOLS))
        shown = {"axis": _name_axis(verdict.axis), "value": _format_value(verdict.value)}
        cards.append({**vars(verdict), **shown, "quantity": _name_quantity(vars(verdict)), "number": i})
    return sorted(cards, key=lambda card: list(_SYMBOLS).index(card["status"]))


def _judge_axes(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Judge each axis by its worst verdict; what is unknown does not hide what is known.

    >>> first = Verdict(1, "skill", "pass", 1.0, "", "")
    >>> _judge_axes([first, Verdict(1, "spread", "unknown", None, "", "")])[0]["reason"]
    'all known checks pass; unknown: spread'
    """
    badges = []
    for axis in dict.fromkeys(verdict.axis for verdict in verdicts):
        own = [(i, verdict) for i, verdict in enumerate(verdicts) if verdict.axis == axis]
        names = {status: [v.name for _, v in own if v.status == status] for status in _SYMBOLS}
        status = next(status for status in ("fail", "warn", "pass", "unknown") if names[status])
        rest = f"; unknown: {', '.join(names['unknown'])}" if names["unknown"] and status != "unknown" else ""
        reason = f"decided by {', '.join(names[status])}{rest}"
        if status == "pass":
            reason = f"all {'known ' * bool(rest)}checks pass{rest}"
        card = next(i for i, v in own if v.status == status)
        badges.append({"axis": _name_axis(axis), "status": status, "reason": reason, "card": card})
    return badges


def _name_axis(axis: int) -> str:
    return f"{axis} {AXES[axis]}"


def _tabulate_numbers(figure: "go.Figure") -> list[Table]:
    """Return the numbers behind a figure: one table for all curves of a panel over the same x."""
    groups: dict[tuple[str, bytes], list[Any]] = {}
    for trace in figure.data:
        groups.setdefault((trace.meta or "", np.asarray(trace.x).tobytes()), []).append(trace)
    tables = []
    shown = max(min(_SHOWN_ROWS[0], _SHOWN_ROWS[1] // max(len(groups), 1)), 10)
    for (panel, _), traces in groups.items():
        solid = hasattr(traces[0], "z")
        x = "x" if solid else unescape(figure.layout.xaxis.title.text or "x")
        columns: list[tuple[str, Any]] = [(x, traces[0].x)]
        for trace in traces:
            columns += [("y", trace.y), ("z", trace.z)] if solid else [(unescape(trace.name), trace.y)]
            bars = getattr(trace, "error_y", None)
            if bars is not None and bars.array is not None:
                columns.append((f"± {unescape(trace.name)}", bars.array))
        count = len(columns[0][1])
        every = max(-(-count // shown), 1)
        own = unescape(traces[0].name) if solid or len(traces) == 1 else ""
        title = ": ".join(filter(None, (panel, own))) + (f" (every {every} of {count} rows)" if every > 1 else "")
        rows = list(zip(*(np.asarray(values)[::every].tolist() for _, values in columns), strict=True))
        tables.append(Table(title, [name for name, _ in columns], rows, digits=4))
    return tables


def _read_asset(name: str) -> str:
    return (files("kaffee.report") / name).read_text(encoding="utf-8")


def _embed(text: str) -> str:
    """Escape JSON so that no text in it can end its own element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def _make_policy(scripts: Sequence[str]) -> str:
    """Forbid every request, and every script but these, which are known by their hashes.

    Plotly sets styles of its own, so styles may stand in the page; data elements are not run and need no permission.
    """
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )
