"""How figures look: colour-blind safe, readable at column width."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl

# Okabe and Ito's palette.
COLOURS = {
    "truth": "#000000",
    "prior": "#E69F00",
    "kaffee": "#0072B2",
    "blind": "#56B4E9",
    "core_collapse": "#D55E00",
    "noise_masking": "#CC79A7",
    "frozen_core": "#009E73",
}

SETTINGS: Any = {
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


@contextmanager
def figure_style() -> Iterator[None]:
    """Use the settings of kaffee inside, and leave the user's alone outside."""
    with mpl.rc_context(SETTINGS):
        yield


WIDTH = 17 / 2.54
"""Of a figure in inches: the text width of a page."""


@contextmanager
def page_style() -> Iterator[None]:
    """The figure style at the size of a printed page."""
    sizes: Any = {
        "font.size": 7.5,
        "axes.titlesize": 8,
        "axes.titlelocation": "left",
        "legend.fontsize": 7,
        "svg.hashsalt": "kaffee",  # the same file for the same results
    }
    with figure_style(), mpl.rc_context(sizes):
        yield
