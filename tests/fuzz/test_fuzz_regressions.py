"""What fuzzing found, one by one: each of these once ended in a traceback, a warning, a hang or a wrong answer."""

import json
import os
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load as decode
from safetensors.numpy import save as encode

from fuzz.damage import result_or_advice
from fuzz.test_fuzz_arrays import ROWS, parquet, saved, zipped
from fuzz.test_fuzz_models import folder as folder  # the fixture
from fuzz.test_fuzz_models import reconstruction, record, write
from kaffee.checkpoint.reconstruction import load
from kaffee.data.reading import read_series
from kaffee.errors import KaffeeError
from kaffee.fitting.config import to_dict
from kaffee.fitting.run import Run
from kaffee.fitting.settings import FitSettings
from kaffee.inference.online import OnlineFilter

SIGNALLING = {"f4": b"\x01\x00\x80\x7f", "f8": b"\x01\x00\x00\x00\x00\x00\xf0\x7f"}
DAYS = pa.array([2**30, 1, 2], pa.date32())


def refused(call, *names):
    """The refusal of `call`, which must be one."""
    assert result_or_advice(call, *names) is None
    with pytest.raises(KaffeeError) as error:
        call()
    return str(error.value)


def refused_file(tmp_path, name, content, **options):
    path = tmp_path / name
    path.write_bytes(content)
    return refused(lambda: read_series(path, **options), str(path))


def header(shape, descr="<f8"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


# --- readers ---


@pytest.mark.parametrize("kind", SIGNALLING)
def test_signalling_nans_are_missing_and_no_warning(tmp_path, kind):
    values = np.frombuffer(SIGNALLING[kind] + np.ones(3, kind).tobytes(), kind)
    (tmp_path / "lab.npy").write_bytes(saved(values))
    series = read_series(tmp_path / "lab.npy")
    np.testing.assert_array_equal(series.recordings[0][:, 0] - 1.0, [np.nan, 0, 0, 0])


LZMA = zipped(zipfile.ZIP_LZMA, a=ROWS)
YEARS = np.array([2**62, 2**62 + 1])


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("lab.npz", LZMA[:60] + bytes(30) + LZMA[90:], {}, "damaged"),
        ("lab.csv", b"a\n1\n2\n", {"time_column": "9" * 5000}, "Unknown column"),
        ("lab.csv", b"a,b\n1,2\n", {"time_column": 0, "recording_column": 0}, "Choose different columns"),
        ("lab.npz", zipped(a=np.stack([ROWS] * 2), times=ROWS[None, :, 0]), {}, "1 rows of times for 2 recordings"),
        ("lab.csv", b"t,x\n-1.3e308,1\n0,2\n1.3e308,3\n", {}, "line 2: the time -1.3e+308 is too large"),
        ("lab.npz", zipped(a=ROWS[:2], times=YEARS.view("M8[Y]")), {}, "too far from 1970"),
        ("lab.parquet", parquet(t=pa.array(YEARS, pa.timestamp("ms")), x=[1.0, 2.0]), {}, "too far from 1970"),
        # dates that Python does not have
        ("lab.parquet", parquet(recording=DAYS, x=[1.0, 2.0, 3.0]), {}, "cannot label recordings"),
    ],
)
def test_odd_files(tmp_path, name, content, options, words):
    assert words in refused_file(tmp_path, name, content, **options)


@pytest.mark.parametrize("shape", [(10**9, 0, 1), (0, 10**9, 3)])
def test_a_billion_empty_recordings(tmp_path, shape):
    assert "not a recording" in refused_file(tmp_path, "lab.npy", header(shape))
    assert "not a recording" in refused_file(tmp_path, "lab.npz", zipped(a=header(shape)))


@pytest.mark.parametrize("shape", [(-1, 2), (2**62, 2**62), (10**12, 3), (3, 3)])
def test_headers_that_promise_more_than_there_is(tmp_path, shape):
    content = header(shape) + bytes(64)
    for name, file in (("lab.npy", content), ("lab.npz", zipped(a=content))):
        assert f"the header promises shape {shape}, but 64 bytes" in refused_file(tmp_path, name, file)


def test_an_archive_that_unpacks_to_gigabytes(tmp_path):
    path = tmp_path / "lab.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as member:
        member.write(header((2**21, 1)) + bytes(2**24))
    # the size that the directory states is what would be unpacked
    content = path.read_bytes().replace((2**24 + len(header((2**21, 1)))).to_bytes(4, "little"), b"\xf0\xff\xff\xff")
    assert "would unpack to 4 GB" in refused_file(tmp_path, "lab.npz", content)


def test_names_of_thousands_of_digits(tmp_path):
    (tmp_path / "lab.npz").write_bytes(zipped(**{"9" * 5000: ROWS, "a10": ROWS, "a9": ROWS[:5]}))
    assert read_series(tmp_path / "lab.npz").lengths == (12, 5, 12)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "lab.csv")
    assert "not a regular file" in refused(lambda: read_series(tmp_path / "lab.csv"), "lab.csv")


def test_a_header_of_python_2_is_no_warning(tmp_path):
    (tmp_path / "lab.npy").write_bytes(header("(8L,)") + np.arange(8.0).tobytes())
    assert read_series(tmp_path / "lab.npy").lengths == (8,)


# --- models ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(dt=float("nan")), "'dt', the time between two steps, must be a positive number, not nan"),
        (lambda m: m.update(dt=10**400), "too large"),
        (lambda m: m.update(dt=0), "'dt'"),
        (lambda m: m.update(columns=["a"]), "'columns' must be 2 names, or none"),
        (lambda m: m.update(columns="ab"), "'columns'"),
        (lambda m: m.update(scaler={"mean": [0.0], "scale": [1.0]}), "The scaler is one of 1 coordinates"),
        (lambda m: m.update(method=["kaffee"]), "'method' must be a word"),
        (lambda m: m["observation"].update(num_observed=2.0), "A size of the model is 2.0"),
        (lambda m: m["core"]["hyperparameters"].update(num_gates=2.0), "The core's num_gates is 2.0, which is no int"),
        (lambda m: m["core"]["hyperparameters"].update(temperature=float("inf")), "temperature is inf; it must be"),
        (lambda m: m["core"].update(type="os.system"), "Unknown core type"),
    ],
)  # fmt: skip
def test_values_of_a_description_that_were_believed(folder, change, words):
    meta, content = record(folder / "hard", "model")
    meta = json.loads(json.dumps(meta))
    change(meta)
    write(folder / "hard", "model", meta, content)
    assert words in refused(lambda: load(folder / "hard"), f"{folder}/hard/model.json", "Restore the folder")


def test_a_network_without_inputs(folder):
    meta, content = record(folder / "mlp", "model")
    meta = json.loads(json.dumps(meta))
    meta["core"]["hyperparameters"]["latent_dim"] = 0
    write(folder / "mlp", "model", meta, content)
    refused(lambda: load(folder / "mlp"), f"{folder}/mlp/model.json")


@pytest.mark.parametrize(
    ("value", "words"),
    [(np.float32(np.nan), "not numbers (nan)"), (np.float16(1), "of type float16, float32; all must be")],
)
def test_weights_that_no_model_has(folder, value, words):
    meta, content = record(folder / "hard", "model")
    arrays = dict(decode(content))
    arrays["core.h"] = np.full_like(arrays["core.h"], value, dtype=value.dtype)
    write(folder / "hard", "model", meta, encode(arrays))
    assert words in refused(lambda: load(folder / "hard"), str(folder / "hard"))


@pytest.mark.parametrize("facts", [None, {}, {"gate": "x"}, {"gate": 2.0, "patience": 10, "num_steps": 3}, [],
                                   {"gate": None, "patience": 10**30, "num_steps": 3},
                                   {"gate": None, "patience": 10, "num_steps": "3"}])  # fmt: skip
def test_facts_of_an_online_filter(folder, facts):
    meta, content = record(folder / "state", "online")
    write(folder / "state", "online", {**meta, "facts": facts}, content)
    online = OnlineFilter(reconstruction("hard"))
    before = online._track
    refused(lambda: online.restore(folder / "state"), str(folder / "state"))
    assert online._track is before  # not half restored


def test_runs_whose_settings_do_not_fit(tmp_path):
    run = {"format": "kaffee-run", "format_version": 1, "settings": {**to_dict(FitSettings()), "seed": -1}}
    (tmp_path / "run.json").write_text(json.dumps({**run, "data": {"fingerprint": "f"}}))
    assert "seed lies between" in refused(lambda: Run(tmp_path).settings, f"{tmp_path}/run.json")


def test_a_shape_that_numpy_does_not_have(folder):
    meta, _ = record(folder / "hard", "model")
    text = json.dumps({"core.h": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}).encode()
    write(folder / "hard", "model", meta, len(text).to_bytes(8, "little") + text)
    refused(lambda: load(folder / "hard"), str(folder / "hard"))
