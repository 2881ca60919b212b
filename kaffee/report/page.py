"""What a report may do in a browser: run its own script, show its own pictures, and nothing else."""

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import Any, Protocol

from matplotlib.figure import Figure

from kaffee.errors import ConfigError, unknown
from kaffee.report.interactive.markup import InteractiveFigure, asset, figure_html, script
from kaffee.report.style import COLOURS
from kaffee.tables import Table


@cache
def page_style_sheet() -> str:
    """The style of all pages, with the colours of kaffee's figures as variables."""
    # The truth is black on paper and must not be so on a dark screen.
    variables = "".join(f"--{name}:{colour};" for name, colour in COLOURS.items())
    return f":root{{{variables}--grey:#6b6b6b;}}\n{asset('style.css')}"


def content_security_policy(style: str, script: str) -> str:
    """Forbids every request and every script and style but these two, which are known by their hashes.

    Data elements (`application/json`) are not run and need no permission.
    """
    allowed = f"'{_hash(script)}'" if script else "'none'"
    return (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# The first screen of a report: a badge for each axis that says what decides it, then a card for each check.


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


# A report as one self-contained HTML file: no network, every text escaped, readable on a phone.


NAVIGATION_FROM = 3
"""Sections from which on a page has a list of them."""


@dataclass(frozen=True)
class Section:
    """A heading with text, interactive figures, tables and still figures, in this order.

    Attributes:
        figures: (figure, alternative text) pairs.
        interactive: Figures of `kaffee.report.interactive.all`.
    """

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[tuple[Figure, str]] = ()
    code: str = ""
    interactive: Sequence[InteractiveFigure] = ()


@dataclass(frozen=True)
class Report:
    """A titled list of sections.

    Attributes:
        subtitle: One line under the title.
        verdicts: Cards for the first screen; anything with the attributes of a `Verdict`.
        provenance: Where the results come from: command, seed, versions, fingerprint; the last section.
    """

    title: str
    sections: Sequence[Section] = field(default_factory=list)
    subtitle: str = ""
    verdicts: Sequence[Verdict] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_html(self) -> str:
        """The whole page."""
        style = page_style_sheet()
        code = script() if any(section.interactive for section in self.sections) else ""
        titles = [section.title for section in self.sections] + (["Provenance"] if self.provenance else [])
        page = (
            "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>"
            f'<meta http-equiv="Content-Security-Policy" content="{content_security_policy(style, code)}">'
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<title>{escape(self.title)}</title><style>{style}</style></head>"
            f"<body><header><h1>{escape(self.title)}</h1>{_paragraph(self.subtitle, 'subtitle')}</header>"
            f"{_navigation(titles)}<main>{Verdicts(self.verdicts).to_html()}"
            f"{''.join(_section(section, i) for i, section in enumerate(self.sections))}"
            f"{_provenance(self.provenance, len(self.sections))}</main>"
            f"{f'<script>{code}</script>' if code else ''}</body></html>\n"
        )
        # File names that are no valid Unicode: a question mark instead of a page that cannot be written.
        return page.encode("utf-8", "replace").decode("utf-8")


def png(figure: Figure) -> bytes:
    """A figure as PNG bytes without the date and version that would make equal figures differ."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _paragraph(text: str, kind: str = "") -> str:
    attribute = f" class='{kind}'" if kind else ""
    return f"<p{attribute}>{escape(text)}</p>" if text else ""


def _navigation(titles: Sequence[str]) -> str:
    if len(titles) < NAVIGATION_FROM:
        return ""
    entries = "".join(f"<li><a href='#section-{i}'>{escape(title)}</a></li>" for i, title in enumerate(titles))
    return f"<nav aria-label='Sections'><ul>{entries}</ul></nav>"


def _section(section: Section, i: int) -> str:
    parts = [f"<section id='section-{i}'><h2>{escape(section.title)}</h2>", _paragraph(section.text)]
    parts += [figure_html(figure) for figure in section.interactive]
    parts += [table.to_html() for table in section.tables]
    for figure, alternative in section.figures:
        data = base64.b64encode(png(figure)).decode()
        parts.append(
            f"<figure><img alt='{escape(alternative, quote=True)}' src='data:image/png;base64,{data}'>"
            f"<figcaption>{escape(alternative)}</figcaption></figure>"
        )
    if section.code:
        parts.append(f"<pre>{escape(section.code)}</pre>")
    return "".join([*parts, "</section>"])


def _provenance(facts: Mapping[str, Any], i: int) -> str:
    if not facts:
        return ""
    rows = "".join(
        f"<div><dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd></div>" for key, value in facts.items()
    )
    return f"<section id='section-{i}'><h2>Provenance</h2><dl class='facts'>{rows}</dl></section>"
