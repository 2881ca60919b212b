"""Tables for the terminal, Markdown, HTML and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rich.console


def number(value: Any, digits: int = 3) -> str:
    """Format a value for people.

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

    def __rich_console__(self, _: "rich.console.Console", options: "rich.console.ConsoleOptions") -> Iterator[Any]:
        """Render for a terminal, `Console().print(table)`; a table that is too wide is split into several."""
        from rich.table import Table as RichTable
        from rich.text import Text  # rather than str, in which a name in brackets would be markup

        cells = self._cells()
        # Long texts may wrap; names and numbers may not.
        wraps = [i > 0 and any(len(row[i]) > 24 for row in cells) for i in range(len(self.columns))]
        widths = [max(len(row[i]) for row in [self.columns, *cells]) for i in range(len(self.columns))]
        sizes = [3 + (24 if wrap else width) for wrap, width in zip(wraps, widths, strict=True)]
        parts, used = [[0]], sizes[0] + 1
        for i, size in enumerate(sizes[1:], 1):
            if used + size > options.max_width and len(parts[-1]) > 1:
                parts.append([0])
                used = sizes[0] + 1
            parts[-1].append(i)
            used += size
        for part in parts:
            title, note = self.title if part is parts[0] else "", self.note if part is parts[-1] else ""
            table = RichTable(title=Text(title) if title else None, caption=Text(note) if note else None)
            table.title_justify = table.caption_justify = "left"
            for i in part:
                justify: Any = "right" if i else "left"
                table.add_column(Text(self.columns[i]), justify=justify, no_wrap=not wraps[i], overflow="fold")
            for row in cells:
                table.add_row(*[Text(row[i]) for i in part])
            yield table

    def to_markdown(self) -> str:
        """Render as Markdown."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [list(self.columns), rule, *self._cells()]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return body + (f"\n\n{self.note}" if self.note else "") + "\n"

    def to_html(self) -> str:
        """Render as HTML; every cell is escaped."""
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
        """Convert to a list of objects; NaN and infinities, which JSON does not have, become None."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.to_record()["rows"]]

    def to_record(self) -> dict[str, Any]:
        """Convert to JSON values from which `Table(**record)` builds a table that looks the same."""
        from kaffee.records import jsonable  # imports NumPy, which printing a table does not need

        return jsonable(self)
