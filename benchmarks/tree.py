"""Measure the size of the tree: files, lines and public names of every package, beside those before it was reordered.

`python -m benchmarks.tree` prints the table; `docs/architecture.md` holds it, filled by `python docs/fill.py`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kaffee.tables import Table

ROOT = Path(__file__).parents[1] / "kaffee"
TOP = "top level"


class Size(NamedTuple):
    """Files, lines, and functions and classes at module level that neither they nor their module mark as private."""

    files: int = 0
    lines: int = 0
    names: int = 0

    def plus(self, other: "Size") -> "Size":
        """Add two sizes."""
        return Size(*(a + b for a, b in zip(self, other, strict=True)))


# At a603d53, every module counted in the package that its content moved to.
BEFORE = {
    "paper": Size(46, 4032, 156),
    "cli": Size(20, 1939, 48),
    "report": Size(24, 2491, 78),
    "theory": Size(14, 1438, 52),
    "fitting": Size(8, 1130, 42),
    "certification": Size(34, 3664, 132),
    "foundation": Size(10, 1062, 29),
    "inference": Size(16, 1588, 38),
    "checkpoint": Size(3, 336, 13),
    "training": Size(11, 1172, 42),
    "filtering": Size(14, 1396, 61),
    "model": Size(14, 1601, 29),
    "systems": Size(6, 768, 25),
    "data": Size(27, 3489, 95),
    "metrics": Size(9, 814, 22),
    TOP: Size(11, 920, 21),
}
JAVASCRIPT_BEFORE = 1082


def modules(root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Yield every module of the package with the name of the subpackage it belongs to."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        yield (parts[0] if len(parts) > 1 else TOP), path


def public_names(path: Path) -> list[str]:
    """List the functions and classes at module level without a leading underscore; a private module has none."""
    if path.name.startswith("_"):
        return []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def measure(root: Path = ROOT) -> dict[str, Size]:
    """Measure every subpackage."""
    sizes: dict[str, Size] = {}
    for package, path in modules(root):
        lines = path.read_text(encoding="utf-8").count("\n")
        sizes[package] = sizes.get(package, Size()).plus(Size(1, lines, len(public_names(path))))
    return sizes


def count_javascript(root: Path = ROOT) -> int:
    """Count the lines of our own JavaScript: files, and scripts inside templates."""
    lines = 0
    for path in root.rglob("*"):
        if path.suffix == ".js":
            lines += path.read_text(encoding="utf-8").count("\n")
        elif path.suffix in (".html", ".j2"):
            text = path.read_text(encoding="utf-8")
            lines += sum(part.split("</script>")[0].count("\n") for part in text.split("<script")[1:])
    return lines


def table() -> Table:
    """Tabulate the sizes before and after."""
    after = measure()
    names = [*BEFORE, *sorted(set(after) - set(BEFORE))]
    rows = [_row(name, BEFORE.get(name, Size()), after.get(name, Size())) for name in names]
    total_before, total_after = Size(), Size()
    for name in names:
        total_before, total_after = (
            total_before.plus(BEFORE.get(name, Size())),
            total_after.plus(after.get(name, Size())),
        )
    rows.append(_row("all", total_before, total_after))
    columns = ["package", "files before", "after", "lines before", "after", "public names before", "after"]
    note = f"Own JavaScript: {JAVASCRIPT_BEFORE} lines before, {count_javascript()} after."
    return Table("Size of the tree", columns, rows, note)


def _row(name: str, before: Size, after: Size) -> list[str]:
    return [name, *(str(value) for pair in zip(before, after, strict=True) for value in pair)]


if __name__ == "__main__":
    print(table().to_markdown())
