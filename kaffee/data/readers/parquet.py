"""Parquet files, through pyarrow, which is optional."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kaffee.data.readers._table import missing_label
from kaffee.data.timeaxis import Dates, is_timestamp, seconds
from kaffee.data.validation import stamp_seconds
from kaffee.errors import DataError


@dataclass(frozen=True)
class ParquetTable:
    """Columns of a parquet file."""

    source: str
    names: tuple[str, ...]
    table: Any
    arrow: ModuleType

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    def place(self, row: int) -> str:
        return f"{self.source}, row {row}"

    def numbers(self, column: int) -> np.ndarray:
        data, types = self.table.column(column), self.arrow.types
        if not (types.is_integer(data.type) or types.is_floating(data.type) or types.is_decimal(data.type)):
            if types.is_null(data.type):
                return np.full(len(data), np.nan)
            raise DataError(
                f"{self.source}, column '{self.names[column]}': {data.type} values are not numbers. "
                "Convert the column, or choose other columns with columns=."
            )
        # rounding of integers beyond 2^53 is the same as when NumPy converts them
        floats = data.cast(self.arrow.float64(), safe=False)
        return np.asarray(floats.to_numpy(), dtype=np.float64)

    def times(self, column: int) -> np.ndarray:
        data, types = self.table.column(column), self.arrow.types
        if types.is_timestamp(data.type) or types.is_date(data.type):
            return stamp_seconds(np.asarray(data.to_numpy()), f"{self.source}, column '{self.names[column]}'")
        if types.is_string(data.type) or types.is_large_string(data.type):
            return seconds([cell or "" for cell in data.to_pylist()], self.place, self.names[column])
        return self.numbers(column)

    def dates(self, column: int) -> Dates | None:
        data, types = self.table.column(column), self.arrow.types
        if types.is_date(data.type):
            return Dates(days=True)
        if types.is_timestamp(data.type):
            return Dates(zone=data.type.tz or "")
        first = data[0].as_py() if len(data) else None
        return Dates.like(first) if isinstance(first, str) and is_timestamp(first) else None

    def labels(self, column: int) -> Sequence[Hashable]:
        try:
            labels = self.table.column(column).to_pylist()
        except (self.arrow.ArrowException, ValueError, OverflowError) as error:  # dates that Python does not have
            raise DataError(
                f"{self.source}, column '{self.names[column]}': the values cannot label recordings ({error}). Use "
                "numbers or text."
            ) from error
        for row, label in enumerate(labels):
            if label is None or label != label:
                raise missing_label(self.place(row), self.names[column])
            if not isinstance(label, Hashable):
                raise DataError(
                    f"{self.place(row)}, column '{self.names[column]}': a {type(label).__name__} cannot "
                    "label a recording. Use numbers or text."
                )
        return labels


def require_pyarrow(source: str) -> ModuleType:
    """Import pyarrow, or say how to install it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{source}: parquet files need pyarrow. Install it with: pip install 'kaffee[parquet]'"
        ) from error
    return pyarrow


def read_parquet(path: Path, source: str) -> ParquetTable:
    """Read a parquet file up to the point where the roles of its columns are needed."""
    arrow = require_pyarrow(source)
    content = path.read_bytes()
    try:
        table = arrow.parquet.ParquetFile(arrow.BufferReader(content)).read()
        table.validate(full=True)
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [""])[0][:150]
        raise DataError(
            f"{source}: cannot be read as parquet ({reason}). The file is damaged, cut off or of another "
            "kind; write it again."
        ) from error
    names = tuple(str(name).strip() for name in table.column_names)
    repeated = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    if repeated:
        raise DataError(f"{source}: several columns are named '{min(repeated)}'. Rename all but one.")
    if not names or not table.num_rows:
        raise DataError(f"{source}: the table has {table.num_rows} rows and {len(names)} columns. Check the export.")
    return ParquetTable(source, names, table, arrow)
