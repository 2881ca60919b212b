"""Text tables: comma, tab, semicolon or white space, with or without a header."""

import csv
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np

from kaffee.data._decimals import Doubt, resolve_decimals
from kaffee.data.timeaxis import is_timestamp, shown
from kaffee.data.validation import check_unique
from kaffee.errors import ConfigError, DataError

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "+nan", "-nan", "null", "none"})
"""Cells without a value, in lower case."""
# pandas tells upper and lower case apart.
_SPELLINGS = ["".join(letters) for word in MISSING for letters in product(*zip(word, word.upper(), strict=True))]
_WHITE_SPACE = " "
_DELIMITERS = ("\t", ";", ",", _WHITE_SPACE)
_QUOTED = re.compile(r'"[^"]*"')
_WORD = re.compile(r'"[^"]*"|\S+')
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"\d\.\d{3}\.\d")
_SNIFFED_LINES = 50


@dataclass(frozen=True)
class TextFile:
    """The data lines of a text file, not yet split into cells, with their numbers in the file.

    An empty first one of the `names` is an index; `first_line` is the number of the first line with a cell; `doubts`
    are about the decimal marks of a column.
    """

    source: str
    names: tuple[str, ...]
    lines: list[str]
    line_numbers: list[int]
    delimiter: str
    first_line: int
    doubts: Mapping[int, Doubt] = field(default_factory=dict)

    def place(self, row: int) -> str:
        """Name the file and the line of a row for a message."""
        return f"{self.source}, line {self.line_numbers[row]}"

    def read(self, numeric: Sequence[int], times: int | None = None) -> list[np.ndarray]:
        """Read all columns: those in `numeric` as float64, NaN for missing, the others as arrays of text."""
        for j in {*numeric} | {times}:
            if (doubt := self.doubts.get(-1 if j is None else j)) is not None:
                raise DataError(f"{self.source}, line {doubt.line}, column '{self.names[j or 0]}': {doubt.reason}")
        columns = self._read_with_pandas(numeric)
        if columns is None:
            # Every cell on its own: this names the first one that is wrong, and accepts all that Python calls a number.
            columns = [np.array(column, dtype=object) for column in self._split_lines()]
            for j in sorted({*numeric}):
                columns[j] = np.array([self._parse(cell, row, j) for row, cell in enumerate(columns[j].tolist())])
        return columns

    def _read_with_pandas(self, numeric: Sequence[int]) -> list[np.ndarray] | None:
        """Read all columns in C; None if a cell is not a number, or the lines do not have equally many cells."""
        import pandas as pd

        width = len(self.names)
        # Before pandas 3.1 the default is not exact to the last bit; later the option is deprecated.
        exact = {"float_precision": "round_trip"} if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    io.StringIO("\n".join(self.lines)),
                    sep=r"\s+" if self.delimiter == _WHITE_SPACE else self.delimiter,
                    header=None,
                    names=range(width + 1),  # one more, for a delimiter at the end of a line
                    index_col=False,
                    dtype={j: np.float64 if j in numeric else object for j in range(width + 1)},
                    na_values=dict.fromkeys(numeric, _SPELLINGS),
                    keep_default_na=False,
                    skipinitialspace=True,
                    skip_blank_lines=False,
                    engine="c",
                    **exact,
                )
        except (ValueError, pd.errors.ParserWarning):
            return None
        columns = [frame[j].to_numpy() for j in range(width + 1)]
        if len(frame) != len(self.lines):  # a quoted line break
            return None
        # pandas fills short lines up with empty cells.
        last = np.isnan(columns[-2]) if width - 1 in numeric else columns[-2] == ""
        suspects = np.flatnonzero(last | (columns[-1] != ""))
        if any(len(self._cells(row)) != width for row in suspects.tolist()):
            return None
        for j in {*range(width)} - {*numeric}:
            columns[j] = np.array([cell.strip() for cell in columns[j].tolist()], dtype=object)
        return columns[:-1]

    def _split_lines(self) -> list[list[str]]:
        """Split all lines into cells, by column."""
        # A list for each row would keep the garbage collector busy in long files.
        columns: list[list[str]] = [[] for _ in self.names]
        for row in range(len(self.lines)):
            cells = self._cells(row)
            if len(cells) != len(columns):
                semicolons = self.delimiter == "," and any(";" in cell for cell in cells)
                hint = " If ';' separates the cells, pass delimiter=';'." if semicolons else ""
                raise DataError(
                    f"{self.place(row)}: {len(cells)} cells, but line {self.first_line} has {len(columns)}. Fix the "
                    f"line; write nan for a missing value.{hint}"
                )
            for column, cell in zip(columns, cells, strict=True):
                column.append(cell)
        return columns

    def _cells(self, row: int) -> list[str]:
        cells = _split_line(self.lines[row], self.delimiter, lambda: self.place(row))
        return cells[:-1] if len(cells) == len(self.names) + 1 and cells[-1] == "" else cells

    def _parse(self, cell: str, row: int, column: int) -> float:
        value = parse_number(cell)
        if value is not None:
            return value
        name = self.names[column] or f"x{column + 1}"
        advice = "Fix the cell (empty, NA or nan mean missing), or choose other columns with columns=."
        if _DECIMAL_COMMA.fullmatch(cell):
            advice = "Write decimals with a point instead of a comma"
            advice += "." if self.delimiter == "," else ", or pass decimal=','."
        elif is_timestamp(cell):
            advice = f"If it holds the time, pass time_column={name!r}."
        elif self.line_numbers[row] == self.first_line:
            advice += " If this line holds column names, pass header=True."
        else:
            advice += f" If the column tells recordings apart, pass recording_column={name!r}."
        raise DataError(f"{self.place(row)}, column '{name}': {shown(cell)} is not a number. {advice}")


def read_text(path: Path, delimiter: str | None, header: bool | None, decimal: str | None = None) -> TextFile:
    """Read a text file up to its cells: find comments, delimiter, decimal commas and column names."""
    if decimal not in (None, ",", "."):
        raise ConfigError(f"decimal={decimal!r:.40} is no decimal mark. Use ',' or '.'.")
    source = str(path)
    text = _decode(path.read_bytes(), source)
    raw = [line.strip(" ") for line in text.split("\n")]  # not tabs: an empty cell may be first or last
    numbers = [n for n, line in enumerate(raw, start=1) if line and not line.isspace() and not _is_comment(line)]
    lines = [raw[n - 1] for n in numbers]
    if not lines:
        raise DataError(f"{source}: no data, only blank or comment lines. Check that the export has finished.")
    delimiter = delimiter or _sniff_delimiter(lines[:_SNIFFED_LINES])
    if delimiter not in _DELIMITERS and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ConfigError(f"delimiter={delimiter!r} is not a single character. Use ',', ';', ' ' or a tab.")
    if decimal is not None and delimiter == ",":
        raise ConfigError(f"{source}: commas separate the cells, so there is no decimal= to choose. Leave it out.")
    doubts: Mapping[int, Doubt] = {}
    if (delimiter == ";" or decimal is not None) and ("," in text or _THOUSANDS.search(text)):
        lines, doubts = resolve_decimals(lines, numbers, delimiter, decimal)
    first, first_line = _split_line(lines[0], delimiter, lambda: f"{source}, line {numbers[0]}"), numbers[0]
    if header if header is not None else _is_header(first, lines, delimiter):
        names = first
        del lines[0], numbers[0]
        if not lines:
            raise DataError(f"{source}: only a header line, no data rows. Check that the export has finished.")
    else:
        above = raw[first_line - 2] if header is None and first_line > 1 else ""
        names = _find_commented_names(above, first, delimiter) or [f"x{j + 1}" for j in range(len(first))]
    if len(names) == 1:
        blank = next((n for n in range(numbers[0], numbers[-1]) if not raw[n - 1] or raw[n - 1].isspace()), None)
        if blank is not None:
            raise DataError(
                f"{source}, line {blank}: a blank line inside a file of one column could be a missing value. Write "
                "nan if it is, or delete the line."
            )
    if len(names) > 1 and first[-1] == "" and all(line.endswith(delimiter) for line in lines):
        names = names[:-1]  # some programs write a delimiter at the end of every line
    names = [name if name or j == 0 else f"x{j + 1}" for j, name in enumerate(names)]
    check_unique(names, f"{source}, line {first_line}", first=1)
    return TextFile(source, tuple(names), lines, numbers, delimiter, first_line, doubts)


def _decode(content: bytes, source: str) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in content:
        raise DataError(f"{source}: not a UTF-8 text file (binary, or UTF-16). Save it as CSV in UTF-8.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{source}, line {line}: not UTF-8 text. Save the file as CSV in UTF-8.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_comment(line: str) -> bool:
    return line[0] == "#" and line[:4].upper() != "#N/A"


def _split_line(line: str, delimiter: str, place: Callable[[], str]) -> list[str]:
    """Split a line into cells, without quotes and surrounding space."""
    if delimiter == _WHITE_SPACE:
        words = _WORD.findall(line) if '"' in line else line.split()
        return [word.strip('"') for word in words]
    if '"' not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    except csv.Error as error:
        raise DataError(f"{place()}: the line cannot be split into cells ({error}). Check its quotes.") from error


def _sniff_delimiter(lines: Sequence[str]) -> str:
    """Find the delimiter that splits the most lines; a comma if the file has one column."""
    plain = [_QUOTED.sub("q", line) for line in lines]
    share = {d: sum(d in line for line in plain) for d in _DELIMITERS}
    share[_WHITE_SPACE] = sum(len(line.split()) > 1 for line in plain)
    if not any("\t" in line.strip() for line in plain):
        share["\t"] = 0  # stray tabs at the ends of lines
    best = max(_DELIMITERS, key=lambda d: share[d])  # the first one wins a tie
    return best if share[best] > len(lines) / 2 else ","


def parse_number(cell: str) -> float | None:
    """Parse a number: NaN for a missing one, None for text."""
    try:
        value = float(cell)
    except ValueError:
        return float("nan") if cell.lower() in MISSING else None
    return None if "_" in cell else value  # Python's 1_000 is more likely a label


def _is_header(first: list[str], lines: list[str], delimiter: str) -> bool:
    """Return whether the first line holds names: text that is not a timestamp, and no measured number beside it."""
    if delimiter != _WHITE_SPACE and lines[0].count('"') >= 2 * len(first) and '"' not in "".join(lines[1:2]):
        return len(lines) > 1  # quoted cells above plain ones are names, even if they look like numbers
    if any(parse_number(cell) is None and not is_timestamp(cell) for cell in first):
        # 'time,1,2' are names; '0.5,oops,1.25' is a data row with an error that must not go unnoticed
        values = [cell.lower() for cell in first if parse_number(cell) is not None and cell.lower() not in MISSING]
        return not any("." in value or "e" in value for value in values)
    # pandas: an index without a name, then columns 0, 1, 2, ...
    return len(first) > 1 and first == ["", *map(str, range(len(first) - 1))]


def _find_commented_names(above: str, first: list[str], delimiter: str) -> list[str] | None:
    """Take names from a comment just above the data, as np.savetxt writes them, if they fit exactly."""
    if not above.startswith("#"):
        return None
    comment = above.lstrip("# ").rstrip()
    names = [name.strip() for name in comment.split(None if delimiter == _WHITE_SPACE else delimiter)]
    fits = len(names) == len(first) and len(set(names)) == len(names)
    return names if fits and all(parse_number(name) is None for name in names) else None
