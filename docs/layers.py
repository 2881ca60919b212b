"""Draw the layers of the package from the contract that import-linter enforces: `python docs/layers.py`.

The order comes from pyproject.toml and the descriptions from the packages' docstrings, so that the picture says what
the linter checks.
"""

import ast
import textwrap
import tomllib
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "layers.svg"
# From the top of the contract: what stands on the numerics, the numerics, and what they stand on.
COLOURS = {"use": "#dbe9f6", "numerics": "#e5f2e0", "ground": "#f3ead9"}
NUMERICS = ("certification", "inference", "checkpoint", "training", "filtering", "model", "systems", "foundation")
GROUND = ("data", "metrics", "tables", "records", "errors")


def read_layers() -> list[list[str]]:
    """Read the layers of the contract, highest first; siblings stand together."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip().removeprefix("kaffee.") for name in layer.replace("|", ":").split(":")] for layer in layers]


def describe(name: str) -> str:
    """Read the first sentence of a package's or module's docstring."""
    folder = ROOT / "kaffee" / name
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


def draw() -> Figure:
    """Draw one box for each layer, highest first; an import may only point downward."""
    layers = read_layers()
    figure = Figure(figsize=(9.6, 0.52 * len(layers) + 0.4))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, 100)
    axes.set_ylim(-len(layers) - 0.2, 0.4)
    for place, layer in enumerate(layers):
        kind = "ground" if layer[0] in GROUND else "numerics" if layer[0] in NUMERICS else "use"
        box = FancyBboxPatch((4, -place - 0.82), 94, 0.7, boxstyle="round,pad=0.08", fc=COLOURS[kind], ec="#777777")
        axes.add_patch(box)
        axes.text(5.5, -place - 0.47, "  ·  ".join(layer), va="center", size=10.5, weight="bold", family="monospace")
        text = " / ".join(describe(name) for name in layer)
        axes.text(29, -place - 0.47, textwrap.fill(text, 96), va="center", fontsize=7.5)
    axes.annotate("", (1.8, -len(layers) + 0.2), (1.8, -0.2), arrowprops={"arrowstyle": "-|>", "color": "#777777"})
    axes.text(0.9, -len(layers) / 2, "imports", rotation=90, va="center", ha="center", fontsize=8, color="#555555")
    return figure


if __name__ == "__main__":
    # A fixed salt keeps the identifiers of the file, so that an unchanged contract gives an unchanged picture.
    import matplotlib

    # Text stays text: a file of 30 lines for each layer, that can be searched.
    matplotlib.rcParams.update({"svg.hashsalt": "kaffee", "svg.fonttype": "none"})
    draw().savefig(PICTURE, metadata={"Date": None})
    print(f"wrote {PICTURE.relative_to(ROOT)}")
