"""Set the look of figures: colours safe for colour-blind readers, sizes for a page, templates for light and dark."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "grey"
# Okabe and Ito's palette.
COLOURS = {
    "truth": "#000000",
    "prior": "#E69F00",
    "kaffee": "#0072B2",
    "blind": "#56B4E9",
    "core_collapse": "#D55E00",
    "noise_masking": "#CC79A7",
    "frozen_core": "#009E73",
    GREY: "#6b6b6b",
}
IN_THE_DARK = {
    COLOURS["truth"]: "#f2f2f0",
    COLOURS["kaffee"]: "#3f9fdc",
    COLOURS[GREY]: "#9a9a98",
    "rgba(0,114,178,": "rgba(63,159,220,",  # bands of kaffee's colour
}
"""What replaces colours that cannot be seen on a dark page."""


def _make_template(ink: str, soft: str, lines: str, paper: str) -> dict[str, Any]:
    """Return a Plotly template with these colours of text, ticks, grid lines and boxes."""
    axis = {"gridcolor": lines, "linecolor": soft, "zerolinecolor": lines, "automargin": True, "title": {"standoff": 8}}
    wall = {"gridcolor": lines, "showbackground": False, "zerolinecolor": lines, "color": soft, "nticks": 5}
    clear = "rgba(0,0,0,0)"
    box = {"bgcolor": paper, "bordercolor": lines, "font": {"color": ink}}
    layout = {
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 13, "color": ink},
        "paper_bgcolor": clear,
        "plot_bgcolor": clear,
        "margin": {"l": 10, "r": 10, "t": 56, "b": 10},
        "xaxis": axis,
        "yaxis": axis,
        "scene": {"xaxis": wall, "yaxis": wall, "zaxis": wall, "bgcolor": clear, "dragmode": "turntable"},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.2, "yanchor": "top", "bgcolor": clear},
        "hoverlabel": box,
        "updatemenudefaults": box,
        "modebar": {"bgcolor": clear, "color": soft, "activecolor": ink},
    }
    return {"layout": layout}


TEMPLATE = _make_template("#1a1a1a", "#595959", "#d9d9d9", "#ffffff")
DARK_TEMPLATE = _make_template("#e8e8e6", "#a8a8a6", "#3a3d42", "#1f2226")

WIDTH = 17 / 2.54
"""Width of a figure in inches: the text width of a page."""
_FIGURE: Any = {
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "figure.constrained_layout.use": True,
}
_PAGE: Any = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "legend.fontsize": 7,
    "svg.hashsalt": "kaffee",  # the same file for the same results
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Use the settings of kaffee inside, and leave the user's alone outside."""
    import matplotlib as mpl

    with mpl.rc_context(_FIGURE):
        yield


@contextmanager
def page_style() -> Iterator[None]:
    """Use the figure style at the size of a printed page."""
    import matplotlib as mpl

    with mpl.rc_context(_FIGURE | _PAGE):
        yield


def encode_png(figure: "Figure") -> bytes:
    """Return a still figure as PNG bytes without the date and version that would make equal figures differ."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
