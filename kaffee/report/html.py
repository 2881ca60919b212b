"""A report as one self-contained HTML file: no network, every text escaped, readable on a phone."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from matplotlib.figure import Figure

from kaffee.report.interactive.markup import InteractiveFigure, figure_html, script
from kaffee.report.policy import content_security_policy, page_style_sheet
from kaffee.report.verdicts import Verdict, Verdicts
from kaffee.tables import Table

NAVIGATION_FROM = 3
"""Sections from which on a page has a list of them."""


@dataclass(frozen=True)
class Section:
    """A heading with text, interactive figures, tables and still figures, in this order.

    Attributes:
        figures: (figure, alternative text) pairs.
        interactive: Figures of `kaffee.report.interactive`.
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
