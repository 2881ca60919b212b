"""One way to write a table: for a terminal, for Markdown, for HTML, for JSON."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rich.table


def number(value: Any, digits: int = 3) -> str:
    """A value as people read it.

    >>> number(0.123456), number(None), number(float("nan")), number(1234), number("x")
    ('0.123', '–', '–', '1234', 'x')
    """
    if value is None or value != value:
        return "–"
    if not isinstance(value, float) and not hasattr(value, "dtype"):
        return str(value)
    value = float(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.{max(digits - 2, 0)}e}"
    return f"{value:.{digits}f}"


@dataclass(frozen=True)
class Table:
    """Rows of values under named columns; the first column is text, the others are right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    digits: int = 3

    def _cells(self) -> list[list[str]]:
        return [[number(value, self.digits) for value in row] for row in self.rows]

    def to_rich(self) -> "rich.table.Table":
        """For a terminal."""
        from rich.table import Table as RichTable
        from rich.text import Text  # plain text: a name in brackets is not a colour

        table = RichTable(
            title=Text(self.title),
            caption=Text(self.note) if self.note else None,
            title_justify="left",
            caption_justify="left",
        )
        cells = self._cells()
        for i, column in enumerate(self.columns):
            # Names and numbers stay whole; only a column of long texts folds.
            whole = i == 0 or all(len(row[i]) <= 24 for row in cells)
            justify: Any = "left" if i == 0 else "right"
            table.add_column(Text(column), justify=justify, no_wrap=whole, overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        return table

    def to_markdown(self) -> str:
        """For docs."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [list(self.columns), rule, *self._cells()]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return body + (f"\n\n{self.note}" if self.note else "") + "\n"

    def to_html(self) -> str:
        """For reports; every cell is escaped."""
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in self._cells()
        )
        note = f"<p class='note'>{escape(self.note)}</p>" if self.note else ""
        return (
            f"<div class='scroll'><table><caption>{escape(self.title)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
        )

    def to_json(self) -> list[dict[str, Any]]:
        """A list of objects; NaN and infinities, which JSON does not have, become None."""
        return [{c: _plain(v) for c, v in zip(self.columns, row, strict=True)} for row in self.rows]


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
