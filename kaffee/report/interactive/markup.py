"""An interactive figure as HTML, and the script and style that it needs."""

from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, Protocol

from kaffee.report.interactive.embed import script_json

SCRIPTS = ("base", "scale", "geometry", "marks", "legend", "numbers", "plot", "cursor", "turning", "attractor", "start")
"""Parts of the page's script, in the order in which they build on each other."""


class InteractiveFigure(Protocol):
    """What a section can show: `Plot`, `Attractor`, or anything else that the script knows how to draw."""

    @property
    def title(self) -> str: ...

    @property
    def caption(self) -> str: ...

    def to_data(self) -> dict[str, Any]:
        """What the page's script draws it from."""
        ...


def figure_html(figure: InteractiveFigure) -> str:
    """The figure's place in the page: its texts, and its data for the script that draws it."""
    data = {**figure.to_data(), "title": str(figure.title), "caption": str(figure.caption)}
    return (
        f"<figure class='interactive'><h3>{escape(str(figure.title))}</h3>"
        f"<p class='caption'>{escape(str(figure.caption))}</p>"
        "<noscript><p class='note'>This figure is drawn by a script inside this file, which your browser does not run. "
        "Its numbers are in the source of the page, as JSON.</p></noscript>"
        f"<script type='application/json'>{script_json(data)}</script></figure>"
    )


@cache
def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return (files("kaffee.report.interactive") / "assets" / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """The script of a page with interactive figures: one function, so that its names stay its own."""
    parts = "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    return f"(() => {{\n'use strict';\n{parts}}})();\n"
