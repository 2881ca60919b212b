"""A report as one self-contained HTML file: no network, every text escaped, readable on a phone."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from matplotlib.figure import Figure

from kaffee.tables import Table

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; margin: 0 auto; max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 1.6rem 0 .4rem; }
figure { margin: 0; } figure img { max-width: 100%; height: auto; }
figcaption, .note { color: #555; font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: #555; font-size: .9rem; padding-bottom: .3rem; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #999; }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; font-size: .85rem; }
"""


@dataclass(frozen=True)
class Section:
    """A heading with text, tables and figures.

    Attributes:
        figures: (figure, alternative text) pairs.
    """

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[tuple[Figure, str]] = ()
    code: str = ""


@dataclass(frozen=True)
class Report:
    """A titled list of sections."""

    title: str
    sections: Sequence[Section] = field(default_factory=list)

    def to_html(self) -> str:
        """The whole page."""
        body = "".join(_section(section) for section in self.sections)
        return (
            "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head>"
            f"<body><h1>{escape(self.title)}</h1>{body}</body></html>\n"
        )


def png(figure: Figure) -> bytes:
    """A figure as PNG bytes without the date and version that would make equal figures differ."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _section(section: Section) -> str:
    parts = [f"<section><h2>{escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
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
