"""Text tables: comma, tab, semicolon or white space, with or without a header."""

import csv
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from kaffee.data.readers._table import Choice, float_labels, missing_label
from kaffee.data.timeaxis import Dates, is_timestamp, seconds, shown
from kaffee.errors import ConfigError, DataError

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "+nan", "-nan", "null", "none"})
_WHITE_SPACE = " "
_DELIMITERS = ("\t", ";", ",", _WHITE_SPACE)
_QUOTED = re.compile(r'"[^"]*"')
_WORD = re.compile(r'"[^"]*"|\S+')
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
_SNIFFED_LINES = 50


@dataclass(frozen=True)
class TextTable:
    """Lines of a text file. NumPy reads clean numbers in C; all else goes cell by cell, to name the place."""

    source: str
    names: tuple[str, ...]
    lines: list[str]
    line_numbers: list[int]
    delimiter: str
    first_line: int

    @property
    def num_rows(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> str:
        return f"{self.source}, line {self.line_numbers[row]}"

    @cached_property
    def _matrix(self) -> np.ndarray | None:
        """All columns by the fast path, None if there is any cell it does not take."""
        matrix = self._load(self.lines)
        return matrix if matrix is not None else self._load(self._missing_spelled_out())

    def _load(self, lines: Iterable[str]) -> np.ndarray | None:
        delimiter = None if self.delimiter == _WHITE_SPACE else self.delimiter
        try:
            matrix = np.loadtxt(lines, delimiter=delimiter, comments=None, ndmin=2)
        except ValueError:  # the careful path finds the cell, and whether it matters
            return None
        return matrix if matrix.shape == (len(self.lines), len(self.names)) else None

    def _missing_spelled_out(self) -> Iterator[str]:
        """Lines with nan in every missing cell; lazy, since the fast path may stop at the first line."""
        for line in self.lines:
            # a quoted cell may hold the delimiter and must not be split again
            if '"' in line:
                raise ValueError(line)
            cells = line.split(None if self.delimiter == _WHITE_SPACE else self.delimiter)
            if len(cells) == len(self.names) + 1 and not cells[-1].strip():
                cells.pop()
            yield self.delimiter.join("nan" if cell.strip().lower() in MISSING else cell for cell in cells)

    @cached_property
    def _columns(self) -> list[list[str]]:
        """Cells by column: a list for each row would keep the garbage collector busy in long files."""
        width = len(self.names)
        columns: list[list[str]] = [[] for _ in range(width)]
        for row, line in enumerate(self.lines):
            cells = split_line(line, self.delimiter, lambda row=row: self.place(row))  # type: ignore[misc]
            if len(cells) != width:
                if len(cells) == width + 1 and cells[-1] == "":
                    cells.pop()
                else:
                    raise self._ragged(row, cells)
            for column, cell in zip(columns, cells, strict=True):
                column.append(cell)
        return columns

    def _ragged(self, row: int, cells: list[str]) -> DataError:
        hint = ""
        if self.delimiter == "," and any(";" in cell for cell in cells):
            hint = " If ';' separates the cells, pass delimiter=';'."
        return DataError(
            f"{self.place(row)}: {len(cells)} cells, but line {self.first_line} has {len(self.names)}. "
            f"Fix the line; write nan for a missing value.{hint}"
        )

    def numbers(self, column: int) -> np.ndarray:
        if self._matrix is not None:
            return self._matrix[:, column]
        cells = self._columns[column]
        result = np.empty(len(cells))
        for row, cell in enumerate(cells):
            value = parse_number(cell)
            if value is None:
                raise self._not_a_number(row, column, cell)
            result[row] = value
        return result

    def _not_a_number(self, row: int, column: int, cell: str) -> DataError:
        name = self.names[column] or f"x{column + 1}"
        advice = "Fix the cell (empty, NA or nan mean missing), or choose other columns with columns=."
        if _DECIMAL_COMMA.fullmatch(cell):
            advice = "Write decimals with a point instead of a comma."
        elif is_timestamp(cell):
            advice = f"If it holds the time, pass time_column={name!r}."
        elif self.line_numbers[row] == self.first_line:
            advice += " If this line holds column names, pass header=True."
        else:
            advice += f" If the column tells recordings apart, pass recording_column={name!r}."
        return DataError(f"{self.place(row)}, column '{name}': {shown(cell)} is not a number. {advice}")

    def times(self, column: int) -> np.ndarray:
        if self._matrix is not None:
            return self._matrix[:, column]
        cells = self._columns[column]
        numbers = [parse_number(cell) for cell in cells]
        text = [row for row, number in enumerate(numbers) if number is None]
        if not text:
            return np.array(numbers, dtype=np.float64)
        missing = next((row for row, cell in enumerate(cells) if cell.lower() in MISSING), None)
        if missing is not None:
            raise DataError(
                f"{self.place(missing)}, column '{self.names[column]}': the time is missing. Fill it in, or "
                "remove the row: a row that is left out is treated as missing."
            )
        if text[0] > 0:
            raise DataError(
                f"{self.place(text[0])}, column '{self.names[column]}': {shown(cells[text[0]])} is not a "
                "number as the times above it are. Fix the cell, or choose another column with time_column=."
            )
        return seconds(cells, self.place, self.names[column])

    def dates(self, column: int) -> Dates | None:
        if self._matrix is not None:
            return None
        first = self._columns[column][0]
        return Dates.like(first) if parse_number(first) is None and is_timestamp(first) else None

    def labels(self, column: int) -> Sequence[Hashable]:
        if self._matrix is not None:
            return float_labels(self._matrix[:, column], self.place, self.names[column])
        labels = self._columns[column]
        for row, label in enumerate(labels):
            if label.lower() in MISSING:
                raise missing_label(self.place(row), self.names[column])
        return labels


def read_text(path: Path, source: str, choice: Choice) -> TextTable:
    """Read a text file up to the point where the roles of its columns are needed."""
    raw = _decode(path.read_bytes(), source)
    lines, numbers, comments, blank = [], [], {}, []
    for number, line in enumerate(raw.split("\n"), start=1):
        line = line.strip(" ")  # not tabs: an empty cell may stand first or last
        if not line.strip():
            blank.append(number)
        elif line.startswith("#") and not line.upper().startswith("#N/A"):
            comments[number] = line.lstrip("# ").rstrip()
        else:
            lines.append(line)
            numbers.append(number)
    if not lines:
        raise DataError(f"{source}: no data, only blank or comment lines. Check that the export has finished.")
    delimiter = choice.delimiter or sniff_delimiter(lines[:_SNIFFED_LINES])
    if delimiter not in _DELIMITERS and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ConfigError(f"delimiter={delimiter!r} is not a single character. Use ',', ';', ' ' or a tab.")
    if delimiter == ";":
        lines = _with_points(lines)
    first = split_line(lines[0], delimiter, lambda: f"{source}, line {numbers[0]}")
    first_line = numbers[0]
    has_header = choice.header if choice.header is not None else _looks_like_header(first, lines, delimiter)
    if has_header:
        names = first
        del lines[0], numbers[0]
        if not lines:
            raise DataError(f"{source}: only a header line, no data rows. Check that the export has finished.")
    else:
        names = [f"x{j + 1}" for j in range(len(first))]
        if choice.header is None:
            names = _commented_header(comments.get(first_line - 1, ""), first, delimiter) or names
    if len(names) == 1:
        inside = [number for number in blank if numbers[0] < number < numbers[-1]]
        if inside:
            raise DataError(
                f"{source}, line {inside[0]}: a blank line inside a file of one column could be a missing "
                "value. Write nan if it is, or delete the line."
            )
    if len(names) > 1 and first[-1] == "" and all(line.endswith(delimiter) for line in lines):
        names = names[:-1]  # a delimiter at the end of every line is a habit of some exporters
    unique = _checked_names(names, f"{source}, line {first_line}")
    return TextTable(source, unique, lines, numbers, delimiter, first_line)


def _with_points(lines: list[str]) -> list[str]:
    """Decimal commas as points, where semicolons separate cells and no number has a point."""
    cells = {cell.strip() for line in lines for cell in line.split(";") if "," in cell or "." in cell}
    commas = any(_DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    if not commas or any("." in cell and parse_number(cell) is not None for cell in cells):
        return lines
    return [";".join(_point(cell) for cell in line.split(";")) if "," in line else line for line in lines]


def _point(cell: str) -> str:
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell.strip()) else cell


def _decode(content: bytes, source: str) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in content:
        raise DataError(f"{source}: not a UTF-8 text file (binary, or UTF-16). Save it as CSV in UTF-8.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{source}, line {line}: not UTF-8 text. Save the file as CSV in UTF-8.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def split_line(line: str, delimiter: str, place: Callable[[], str]) -> list[str]:
    """Cells of a line, without quotes and surrounding space.

    >>> split_line('1.5, "a, b",', ",", str)
    ['1.5', 'a, b', '']
    """
    if delimiter == _WHITE_SPACE:
        words = _WORD.findall(line) if '"' in line else line.split()
        return [word.strip('"') for word in words]
    if '"' not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    except csv.Error as error:
        raise DataError(f"{place()}: the line cannot be split into cells ({error}). Check its quotes.") from error


def sniff_delimiter(lines: Sequence[str]) -> str:
    """The delimiter that splits the most lines; a comma if the file has one column.

    >>> sniff_delimiter(["x;y", "1,5;2,5"])
    ';'
    """
    plain = [_QUOTED.sub("q", line) for line in lines]
    share = {d: sum(d in line for line in plain) for d in _DELIMITERS}
    share[_WHITE_SPACE] = sum(len(line.split()) > 1 for line in plain)
    if not any("\t" in line.strip() for line in plain):
        share["\t"] = 0  # stray tabs at the ends of lines
    best = max(_DELIMITERS, key=lambda d: share[d])  # the first one wins a tie
    return best if share[best] > len(lines) / 2 else ","


def parse_number(cell: str) -> float | None:
    """A number, NaN for a missing one, None for text.

    >>> parse_number("1e-3"), parse_number("NA"), parse_number("oops")
    (0.001, nan, None)
    """
    try:
        value = float(cell)
    except ValueError:
        return float("nan") if cell.lower() in MISSING else None
    return None if "_" in cell else value  # Python's 1_000 is more likely a label


def _looks_like_header(first: list[str], lines: list[str], delimiter: str) -> bool:
    """Names rather than data: text that is no timestamp, and no measured number beside it."""
    if delimiter != _WHITE_SPACE and lines[0].count('"') >= 2 * len(first) and '"' not in "".join(lines[1:2]):
        return len(lines) > 1  # quoted cells above plain ones are names, even if they look like numbers
    if any(parse_number(cell) is None and not is_timestamp(cell) for cell in first):
        # 'time,1,2' are names; '0.5,oops,1.25' is a data row with an error that must not go unnoticed
        return not any(("." in cell or "e" in cell.lower()) and _is_value(cell) for cell in first)
    # pandas: an index without a name, then columns 0, 1, 2, ...
    return len(first) > 1 and first == ["", *map(str, range(len(first) - 1))]


def _is_value(cell: str) -> bool:
    value = parse_number(cell)
    return value is not None and value == value


def _commented_header(comment: str, first: list[str], delimiter: str) -> list[str] | None:
    """Names from the comment line just above the data, as np.savetxt writes them, if they fit exactly."""
    names = [name.strip() for name in comment.split(None if delimiter == _WHITE_SPACE else delimiter)]
    fits = len(names) == len(first) and len(set(names)) == len(names)
    return names if fits and all(parse_number(name) is None for name in names) else None


def _checked_names(names: list[str], place: str) -> tuple[str, ...]:
    """Unique names; an empty first one is an index, other empty ones are named by position."""
    filled = [name if name or j == 0 else f"x{j + 1}" for j, name in enumerate(names)]
    seen: dict[str, int] = {}
    for j, name in enumerate(filled):
        if name in seen:
            raise DataError(
                f"{place}: columns {seen[name] + 1} and {j + 1} are both named '{name}'. Rename one of them."
            )
        seen[name] = j
    return tuple(filled)
