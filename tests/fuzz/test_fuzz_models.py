"""Stored models, runs and filter states: damaged by accident, or edited with a checksum that fits."""

import hashlib
import json
from functools import cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inference.problems import linear_model, reconstruct
from models import make_core
from safetensors.numpy import load as decode_arrays
from safetensors.numpy import save as encode_arrays

from fuzz.damage import JSON, damaged, edited, fuzz, result_or_advice
from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.fitting.config import to_dict
from kaffee.fitting.run import Run
from kaffee.fitting.settings import FitSettings
from kaffee.inference.online import OnlineFilter
from kaffee.model.observation import LinearObservation

CORES = ["hard", "linear", "polynomial", "mlp"]


@cache
def reconstruction(core):
    model = linear_model(dtype=np.float32)
    if core == "polynomial":
        model = model.replace(observation=LinearObservation(jnp.eye(2, 5)))
    return reconstruct(model.replace(core=make_core(core, dtype=np.float32)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for each kind of record; every example writes it again."""
    found = tmp_path_factory.mktemp("models")
    for core in CORES:
        reconstruction(core).save(found / core)
    OnlineFilter(reconstruction("hard")).save(found / "state")
    return found


@cache
def record(folder, name):
    """The JSON and the arrays of a record."""
    meta = json.loads((folder / f"{name}.json").read_text())
    return meta, (folder / meta["arrays"]["file"]).read_bytes()


def write(folder, name, meta, content):
    """A record whose checksums fit, as someone with a purpose would write it."""
    if isinstance(meta, dict):
        meta = {key: value for key, value in meta.items() if key != "sha256"}
        if isinstance(meta.get("arrays"), dict):
            digest = hashlib.sha256(content).hexdigest()
            meta["arrays"] = {**meta["arrays"], "sha256": digest, "bytes": len(content)}
            if meta["arrays"].get("file") == record(folder, name)[0]["arrays"]["file"]:
                (folder / meta["arrays"]["file"]).write_bytes(content)
        meta["sha256"] = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    (folder / f"{name}.json").write_text(json.dumps(meta))


def usable(found):
    """A loaded model has parts that fit each other, and its core can be traced."""
    assert isinstance(found, Reconstruction)
    model = found.model
    assert found.scaler.num_coordinates == model.num_observed
    assert len(found.columns) in (0, model.num_observed)
    assert 0 < found.dt < np.inf
    state = eqx.filter_eval_shape(lambda m: m.core(jnp.zeros(m.latent_dim, m.dtype)), model)
    assert state.shape == (model.latent_dim,)


def check(path):
    """A folder holds a usable model, or is refused with advice."""
    model = result_or_advice(lambda: load(path), str(path))
    if model is not None:
        usable(model)


@st.composite
def hostile_arrays(draw, content):
    """Arrays of other types, shapes, names or values; or a safetensors file whose header was edited."""
    arrays = dict(decode_arrays(content))
    if draw(st.booleans()):
        size = int.from_bytes(content[:8], "little")
        header = draw(edited(json.loads(content[8 : 8 + size])))
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + size :]
    for name in draw(st.lists(st.sampled_from(sorted(arrays)), min_size=1, max_size=2)):
        array = arrays.get(name)
        if array is None:
            continue
        match draw(st.sampled_from(["type", "shape", "value", "remove", "rename"])):
            case "type":
                kind = draw(st.sampled_from(["f2", "f8", "i4", "bool", "u1"]))
                with np.errstate(all="ignore"):
                    arrays[name] = array.astype(kind)
            case "shape":
                shapes = [array.ravel(), array[None], array[..., :0], np.zeros((0, 9), "f4")]
                arrays[name] = draw(st.sampled_from(shapes))
            case "value" if array.size and array.dtype.kind == "f":
                arrays[name], at = array.copy(), draw(st.integers(0, array.size - 1))
                arrays[name].flat[at] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e38]))
            case "rename":
                arrays[draw(st.text(max_size=5))] = arrays.pop(name)
            case _:
                del arrays[name]
    return encode_arrays({name: np.ascontiguousarray(array) for name, array in arrays.items()})


@fuzz(120)
@given(data=st.data(), core=st.sampled_from(CORES))
def test_edited_descriptions_of_models(folder, data, core):
    meta, content = record(folder / core, "model")
    write(folder / core, "model", data.draw(edited(meta)), content)
    check(folder / core)


@fuzz(120)
@given(data=st.data(), core=st.sampled_from(CORES))
def test_sizes_of_models(folder, data, core):
    """Numbers near the true ones, which pass coarse checks."""
    meta, content = json.loads(json.dumps(record(folder / core, "model")[0])), record(folder / core, "model")[1]
    sizes = meta["core"]["hyperparameters"]
    name = data.draw(st.sampled_from(sorted(sizes)))
    sizes[name] = data.draw(
        st.integers(-1, 200) | st.sampled_from([True, False, 2.0, 5.0, None, "hard", [], {}, "x", 1e308])
    )
    write(folder / core, "model", meta, content)
    check(folder / core)


@fuzz(120)
@given(data=st.data(), core=st.sampled_from(CORES))
def test_hostile_weights_of_models(folder, data, core):
    meta, content = record(folder / core, "model")
    write(folder / core, "model", meta, data.draw(hostile_arrays(content) | damaged(content)))
    check(folder / core)


@fuzz(100)
@given(data=st.data(), which=st.booleans())
def test_damaged_models(folder, data, which):
    meta, content = record(folder / "hard", "model")
    write(folder / "hard", "model", meta, content)
    path = folder / "hard" / ("model.json" if which else meta["arrays"]["file"])
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    check(folder / "hard")


@fuzz(150)
@given(data=st.data())
def test_states_of_online_filters(folder, data):
    meta, content = record(folder / "state", "online")
    which = data.draw(st.sampled_from(["meta", "facts", "arrays"]))
    if which == "arrays":
        content = data.draw(hostile_arrays(content) | damaged(content))
    elif which == "facts":
        meta = {**meta, "facts": {**meta["facts"], data.draw(st.sampled_from(sorted(meta["facts"]))): data.draw(JSON)}}
    else:
        meta = data.draw(edited(meta))
    write(folder / "state", "online", meta, content)
    online = OnlineFilter(reconstruction("hard"))
    before = online.gate, online.patience, online.num_steps
    found = result_or_advice(lambda: online.restore(folder / "state"), str(folder / "state"))
    if found is None:
        assert (online.gate, online.patience, online.num_steps) == before
    else:
        assert online.num_steps >= 0


RUN = {"format": "kaffee-run", "format_version": 1, "settings": to_dict(FitSettings()), "data": {"fingerprint": "f"}}


@fuzz(200)
@given(record=edited(RUN) | JSON)
def test_edited_runs(folder, record):
    path = folder / "run"
    path.mkdir(exist_ok=True)
    (path / "run.json").write_text(json.dumps(record))
    result_or_advice(lambda: Run(path).record, str(path))
    settings = result_or_advice(lambda: Run(path).settings, str(path))
    assert settings is None or isinstance(settings, FitSettings)


@fuzz(80)
@given(content=damaged(json.dumps(RUN).encode()))
def test_damaged_runs(folder, content):
    path = folder / "run"
    path.mkdir(exist_ok=True)
    (path / "run.json").write_bytes(content)
    settings = result_or_advice(lambda: Run(path).settings, str(path))
    assert settings is None or isinstance(settings, FitSettings)


def test_the_models_themselves_are_usable(folder):
    for core in CORES:
        write(folder / core, "model", *record(folder / core, "model"))
        usable(load(folder / core))
