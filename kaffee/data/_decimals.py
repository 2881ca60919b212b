"""Decimal commas: which mark of a number is the decimal one, decided for each column of a text file.

A mark with exactly three digits behind it may also separate thousands: `1,000` is one or a thousand. A column decides
by cells with one reading only (`1,5`, `0,125`, `1.234,5`, `1.234.567`, `1.5`); else the file does, if the mark is the
only decimal one that it shows. What stays open is an error, as soon as the column is read as numbers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_OUTSIDE = r'(?=(?:[^"]*"[^"]*")*[^"]*$)'
_SIGN, _EXPONENT = "[+-]?", "([eE][+-]?[0-9]+)?"
_GROUPED = r"[1-9][0-9]{{0,2}}({mark}[0-9]{{3}})"


def _spellings(mark: str, other: str) -> re.Pattern[str]:
    """Match numbers whose decimal mark can only be `mark`."""
    thousands = _GROUPED.format(mark=other)
    plain = rf"[0-9]*{mark}(?![0-9]{{3}}(?![0-9]))[0-9]+|(0[0-9]*|[0-9]{{4,}}|){mark}[0-9]+"
    return re.compile(rf"{_SIGN}({thousands}+{mark}[0-9]*|{thousands}{{2,}}|{plain}){_EXPONENT}")


_CERTAIN = {",": _spellings(",", r"\."), ".": _spellings(r"\.", ",")}
_OPEN = {f"open {mark}": re.compile(_SIGN + _GROUPED.format(mark=re.escape(mark)) + _EXPONENT) for mark in ",."}
_KINDS = {**_CERTAIN, **_OPEN}


class Cell(NamedTuple):
    """A cell and the number of its line in the file."""

    line: int
    text: str


class Doubt(NamedTuple):
    """Why the numbers of a column cannot be read, and in which line that shows."""

    line: int
    reason: str


def resolve_decimals(
    lines: Sequence[str], numbers: Sequence[int], delimiter: str, decimal: str | None
) -> tuple[list[str], dict[int, Doubt]]:
    """Write numbers with decimal points and without thousands; also return the columns where that stays in doubt.

    Args:
        numbers: Of the lines in the file, for messages.
        decimal: "," or "." where the caller knows it; None decides as the module says.
    """
    rows = [_split(line, delimiter) for line in lines]
    columns = [_survey(rows, numbers, j) for j in range(max(map(len, rows)))]
    shown = {mark for cells in columns for mark in _CERTAIN if mark in cells}
    choices = [_decide(cells, shown, decimal) for cells in columns]
    for row in rows:
        for j, cell in enumerate(row):
            mark = choices[j]
            if isinstance(mark, str) and columns[j] and _classify(cell) is not None:
                row[j] = cell.replace("." if mark == "," else ",", "").replace(mark, ".")
    doubts = {j: choice for j, choice in enumerate(choices) if isinstance(choice, Doubt)}
    return [delimiter.join(row) for row in rows], doubts


def _split(line: str, delimiter: str) -> list[str]:
    """Split a line at the delimiters that are not in quotes; cells keep their quotes."""
    if '"' in line:
        return re.split((r"\s+" if delimiter == " " else re.escape(delimiter)) + _OUTSIDE, line)
    return line.split(None if delimiter == " " else delimiter)


def _survey(rows: Iterable[Sequence[str]], numbers: Iterable[int], column: int) -> dict[str, Cell]:
    """Find the first cell of each kind in a column."""
    cells: dict[str, Cell] = {}
    for row, number in zip(rows, numbers, strict=True):
        if column < len(row) and (kind := _classify(row[column])) is not None:
            cells.setdefault(kind, Cell(number, row[column].strip(' "')))
    return cells


def _classify(cell: str) -> str | None:
    """Tell the decimal mark of a number, "open" before it if there are two readings; None for all without a mark."""
    if "," not in cell and "." not in cell:
        return None
    text = cell.strip(' "')
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(text)), None)


def _decide(cells: Mapping[str, Cell], shown: set[str], decimal: str | None) -> str | Doubt:
    """Choose the decimal mark of a column, where `shown` are those that the whole file is certain of."""
    certain = [mark for mark in _CERTAIN if mark in cells]
    if decimal is not None and (wrong := [mark for mark in certain if mark != decimal]):
        cell = cells[wrong[0]]
        return Doubt(cell.line, f"{cell.text!r:.40} does not have the decimal mark {decimal!r} that was asked for.")
    if certain == [","] and decimal is None and "." in shown:
        cell = cells[","]
        reason = (
            "has a decimal comma, but other columns have decimal points. Write all decimals with a point; or, if the"
        )
        return Doubt(cell.line, f"{cell.text!r:.40} {reason} others hold no numbers, pass decimal=','.")
    if decimal is not None or len(certain) == 1:
        return decimal or certain[0]
    if certain:
        above, below = sorted(cells[mark] for mark in certain)
        return Doubt(
            below.line,
            f"{below.text!r:.40} has another decimal mark than {above.text!r:.40} in line {above.line}. Write all "
            "decimals of the column with a point.",
        )
    unsure = [mark for mark in _CERTAIN if f"open {mark}" in cells]
    # Points alone are decimal points, as in every other file.
    if not unsure or (len(unsure) == 1 and shown <= {unsure[0]} and (shown or unsure == ["."])):
        return unsure[0] if unsure else "."
    cell = cells[f"open {unsure[0]}"]
    one, thousand = cell.text.replace(",", "."), re.sub("[,.]", "", cell.text)
    return Doubt(
        cell.line,
        f"{cell.text!r:.40} could be {one:.40} or {thousand:.40}; the file does not say which. Pass decimal=',' or "
        "decimal='.', or write decimals with a point and no thousands.",
    )
