"""NumPy and Parquet files of every kind of brokenness."""

import io
import struct
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import damaged, fuzz, result_or_advice
from fuzz.test_fuzz_text import check
from kaffee.data.reading import read_series

ROWS = np.column_stack([0.1 * np.arange(12), np.sin(np.arange(12)), np.cos(np.arange(12))])


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(method=zipfile.ZIP_STORED, **arrays):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", array if isinstance(array, bytes) else saved(array))
    return file.getvalue()


def parquet(compression="none", **columns):
    file = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), file, compression=compression)
    return file.getvalue()


NPY = [saved(ROWS), saved(ROWS.astype("<f4")), saved(ROWS.astype(">i2")), saved(ROWS[None]), saved(ROWS[:, 0]),
       saved(np.asfortranarray(ROWS)), saved(ROWS.astype("f2")), saved(ROWS.astype(np.longdouble))]  # fmt: skip
NPZ = [
    zipped(a=ROWS, b=ROWS[:5], columns=np.array(["t", "x", "y"])),
    zipped(zipfile.ZIP_DEFLATED, a=ROWS[None], times=ROWS[None, :, 0]),
    zipped(zipfile.ZIP_BZIP2, a=ROWS, times=np.arange(12).astype("M8[D]")),
    zipped(zipfile.ZIP_LZMA, run2=ROWS, run10=ROWS),
]
STAMPS = pa.array(np.arange(4) * 10**9, pa.timestamp("ns", "UTC"))
PARQUET = [
    parquet(t=ROWS[:, 0], x=ROWS[:, 1], y=ROWS[:, 2].astype("f4")),
    parquet("snappy", t=STAMPS, x=[1.0, None, 3.0, 4.0], n=pa.array([1, 2, None, 4], pa.int8())),
    parquet("gzip", recording=["a", "a", "b", "b"], x=[1, 2, 3, 4], s=[{"k": 1}] * 4, v=[[1], [], None, [2]]),
    parquet("zstd", date=[f"2024-01-0{day}" for day in range(1, 5)], x=pa.array([1, 2, 3, 4], pa.float16())),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("arrays")


def read(folder, content, suffix, **options):
    path = folder / f"lab{suffix}"
    path.write_bytes(content)
    series = result_or_advice(lambda: read_series(path, **options), str(path))
    if series is not None:
        check(series)
    return series


@fuzz(100)
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".npy", ".npz", ".parquet"]))
def test_any_bytes(folder, content, suffix):
    read(folder, content, suffix)


@pytest.mark.parametrize(("files", "suffix"), [(NPY, ".npy"), (NPZ, ".npz"), (PARQUET, ".parquet")])
@fuzz(200)
@given(data=st.data())
def test_damaged_files(folder, files, suffix, data):
    read(folder, data.draw(st.sampled_from(files).flatmap(damaged)), suffix)


DESCRIPTIONS = "<f8 <f4 >f8 |O |V8 |S4 <U2 <M8[s] <m8[D] <M8[7Y] <c16 |b1 |V0 <f16 <f3 a8 O4"
DTYPES = st.one_of(
    (st.sampled_from(DESCRIPTIONS.split()) | st.text(max_size=6)).map(repr),
    st.sampled_from(
        ["[('a', '<f8'), ('b', '<i4')]", "('<f8', (2,))", "[('a', '|O')]", "{}", "None", "1", "[]", "(" * 90]
    ),
)
SHAPES = st.one_of(
    st.lists(st.integers(0, 20), max_size=4).map(tuple).map(repr),
    st.lists(st.sampled_from([-1, 0, 1, 3, 36, 10**9, 2**31, 2**63, 10**30]), max_size=4).map(tuple).map(repr),
    st.sampled_from(["(3L,)", "(True, 3)", "('a',)", "3", "(1.0,)", "None", "(1 if 1 else 2,)", "(" * 300]),
)


@fuzz(200)
@given(dtype=DTYPES, shape=SHAPES, order=st.sampled_from(["True", "False", "0", "None"]), version=st.integers(1, 4),
       body=st.sampled_from([0, 7, 288, 2304]), suffix=st.sampled_from([".npy", ".npz"]))  # fmt: skip
def test_headers_of_npy(folder, dtype, shape, order, version, body, suffix):
    header = f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode("utf-8", errors="replace")
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    content = b"\x93NUMPY" + bytes([version, 0]) + length + header
    content += bytes(range(256)) * (body // 256) + b"\x3f" * (body % 256)
    read(folder, content if suffix == ".npy" else zipped(a=content), suffix)


NUMBERS = st.floats(allow_nan=True) | st.sampled_from([0.0, 1e308, -1.7e308, 5e-324, 2.0**53])
TIMES = st.one_of(
    st.lists(NUMBERS, min_size=3, max_size=3).map(np.array),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3).map(lambda x: np.array(x, np.int64)),
    st.tuples(
        st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), min_size=3, max_size=3),
        st.sampled_from(["Y", "M", "W", "D", "h", "s", "ms", "us", "ns", "as"]),
    ).map(lambda pair: np.array(sorted(pair[0]), np.int64).view(f"M8[{pair[1]}]")),
    st.sampled_from(
        [np.arange(2.0), np.array(1.0), np.arange(6.0).reshape(2, 3), np.array(["a", "b", "c"]), np.zeros((0, 3))]
    ),
    st.just(np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf0\x7f" * 3, "<f8")),
)


@fuzz(200)
@given(
    times=TIMES,
    values=st.lists(NUMBERS, min_size=6, max_size=6),
    shape=st.sampled_from([(3, 2), (1, 3, 2), (2, 3, 1), (6,), (0, 3, 2), (10**9, 0, 1)]),
    names=st.sampled_from(["times", "t_0", "columns", "9" * 5000, "a/b", ""]),
)
def test_odd_times_and_names_of_npz(folder, times, values, shape, names):
    array = np.array(values).reshape(shape) if np.prod(shape) else np.zeros(shape)
    read(folder, zipped(**{"a": array, names: times}), ".npz")


KINDS = [
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string()),
    *(pa.binary(), pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("us", "Europe/Berlin")),
    pa.timestamp("ns"),
    *(pa.time32("s"), pa.time64("ns"), pa.duration("s"), pa.decimal128(38, 3), pa.decimal256(70, 5), pa.null()),
    *(pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8())),
    *(pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.float64(), 2), pa.binary(3)),
]
CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 100), st.floats(), st.text(max_size=4),
    st.dates(), st.datetimes(), st.decimals(allow_nan=False, places=2), st.binary(max_size=3), st.just([1]),
    st.just({"a": 1}),
)  # fmt: skip


@st.composite
def parquet_tables(draw):
    columns = {}
    names = st.sampled_from(["t", "x", "recording", "", "date", "__index_level_0__"])
    for name in draw(st.lists(names, unique=True, max_size=3)):
        kind = draw(st.sampled_from(KINDS))
        values = []
        for cell in draw(st.lists(CELLS, min_size=3, max_size=3)):
            try:
                values += pa.array([cell]).cast(kind, safe=False).to_pylist() if cell is not None else [None]
            except (pa.ArrowException, ValueError, OverflowError, TypeError):
                values.append(None)
        try:
            columns[name] = pa.array(values, kind)
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            columns[name] = pa.nulls(3, kind)
    return parquet(**columns)


@fuzz(200)
@given(content=parquet_tables(), options=st.sampled_from([{}, {"time_column": 0}, {"recording_column": 0}]))
def test_odd_types_of_parquet(folder, content, options):
    read(folder, content, ".parquet", **options)
