"""Models on disk: every core comes back bit for bit, and whatever happens to the files ends in one clear error."""

import hashlib
import json
import os
import pickle
import resource
import subprocess
import sys
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import LATENT, OBSERVED, same_arrays, small_model

from kaffee.checkpoint import reconstruction as checkpoint
from kaffee.checkpoint.reconstruction import Reconstruction, fill_arrays, load, named_arrays, save
from kaffee.data.scaler import Scaler
from kaffee.errors import CheckpointError
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Core
from kaffee.model.maps import Linear, Polynomial, ResidualMLP
from kaffee.model.matrices import BandedMatrix, LowRankMatrix
from kaffee.model.observation import LinearObservation, Projection
from kaffee.model.statespace import Climate, Shell, StateSpaceModel
from kaffee.model.wrappers import as_core
from kaffee.records import read_record, write_record

SCALER = Scaler([1.0, -2.0], [0.1, 1e-300])


class Sine(eqx.Module):
    """A user's own map with a matrix, a scalar, a (1, 1) leaf and things that are no arrays."""

    weights: jax.Array
    gain: jax.Array
    bias: jax.Array
    name: str = "sine"

    def __call__(self, z):
        return self.gain * jnp.sin(self.weights @ z) + self.bias[0, 0]


class OwnCore(Core):
    """A user's own subclass of Core."""

    rate: jax.Array

    @property
    def latent_dim(self):
        return LATENT

    def __call__(self, z):
        return self.rate * z


def sine(value=0.5):
    return Sine(jnp.full((LATENT, LATENT), value), jnp.float32(value), jnp.full((1, 1), value))


def wrap(core, *, B=None, dtype=np.float32, **options):
    base = small_model(dtype=dtype, B=B)
    if core is not None:
        base = StateSpaceModel(core, base.shell, base.observation, base.embedding)
    options = {"columns": ("x", "<y>"), "dt": 0.1 + 0.2, "method": "blind", "provenance": {"seed": 3}} | options
    return Reconstruction(base, SCALER, **options)


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


CORES = {
    "hard": lambda: small_model().core,
    "straight_through": lambda: small_model().core.surrogate(),
    "warm": lambda: ALRNN(draw(4), draw(4, 4), draw(4), 0, "smooth", 0.3),
    "structured": lambda: ALRNN(draw(4), LowRankMatrix(draw(4, 2), draw(4, 2)), draw(4), 2),
    "banded": lambda: ALRNN(draw(4), BandedMatrix(draw(3, 4)), draw(4), 2),
    "linear": lambda: Linear(draw(4, 4), draw(4)),
    "polynomial": lambda: Polynomial(draw(4, 4), draw(4, 30), draw(4), 3),
    "mlp": lambda: ResidualMLP((draw(6, 4), draw(6, 6), draw(4, 6)), (draw(6), draw(6), draw(4))),
}


@pytest.mark.parametrize("kind", CORES)
def test_every_core_comes_back_bit_for_bit_without_a_skeleton(tmp_path, kind):
    original = wrap(CORES[kind]())
    back = load(original.save(tmp_path / "model"))
    assert jax.tree.structure(back.model) == jax.tree.structure(original.model)  # also all that is static
    assert same_arrays(back.model, original.model)
    assert back.scaler == SCALER
    assert (back.columns, back.dt, back.method) == (("x", "<y>"), 0.1 + 0.2, "blind")
    assert back.provenance == {"seed": 3}


def test_a_general_B_comes_back(tmp_path):
    B = np.random.default_rng(0).standard_normal((OBSERVED, LATENT)).astype(np.float32)
    back = load(wrap(None, B=B).save(tmp_path)).model
    assert isinstance(back.observation, LinearObservation)
    np.testing.assert_array_equal(back.observation.B, B)


def test_a_model_of_one_coordinate_keeps_its_axes(tmp_path):
    one = StateSpaceModel(
        Linear(jnp.full((1, 1), 0.5), jnp.zeros(1)),
        Shell(jnp.zeros(1), jnp.zeros(1)),
        Projection(1, 1),
        jnp.ones((1, 1)),
    )
    back = load(Reconstruction(one, Scaler.identity(1)).save(tmp_path)).model
    assert back.core.A.shape == back.embedding.shape == (1, 1)
    assert same_arrays(back, one)


def test_float64_models_stay_float64_and_load_narrowed_elsewhere(tmp_path, x64):
    original = wrap(None, dtype=np.float64)
    back = load(original.save(tmp_path)).model
    assert back.embedding.dtype == back.core.W.dtype == jnp.float64
    assert same_arrays(back, original.model)
    with jax.enable_x64(False):
        narrow = load(tmp_path).model
        assert narrow.core.W.dtype == jnp.float32
        np.testing.assert_allclose(narrow.core.W, np.asarray(original.model.core.W), rtol=1e-6)


# --- cores of the user's own class ---


def test_a_core_of_ones_own_comes_back_into_an_object_of_its_class(tmp_path):
    wrap(as_core(sine(0.25), LATENT)).save(tmp_path)
    for given in (as_core(sine(0.0), LATENT), sine(0.0)):
        back = load(tmp_path, core=given).model.core
        assert same_arrays(back, as_core(sine(0.25), LATENT))
        assert back.function.gain.shape == ()
        assert back.function.bias.shape == (1, 1)
        assert back.function.name == "sine"


def test_a_subclass_of_core_comes_back(tmp_path):
    wrap(OwnCore(jnp.float32(0.3))).save(tmp_path)
    assert float(load(tmp_path, core=OwnCore(jnp.float32(0.0))).model.core.rate) == np.float32(0.3)


def test_a_core_of_ones_own_is_not_imported_from_a_name_in_a_file(tmp_path):
    wrap(as_core(sine(), LATENT)).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"your own class .*Sine, which kaffee does not import"):
        load(tmp_path)


def test_a_core_of_another_shape_or_class_is_a_clear_error(tmp_path):
    wrap(as_core(sine(), LATENT)).save(tmp_path)
    wrong = eqx.tree_at(lambda s: s.bias, sine(), jnp.zeros((2, 1)))
    with pytest.raises(CheckpointError, match=r"bias has shape \(1, 1\) but should have \(2, 1\)"):
        load(tmp_path, core=wrong)
    with pytest.raises(CheckpointError, match="arrays missing"):
        load(tmp_path, core=Linear(jnp.zeros((LATENT, LATENT)), jnp.zeros(LATENT)))
    with pytest.raises(CheckpointError, match="must be callable"):
        load(tmp_path, core="Sine")


def test_a_built_in_core_takes_no_object(tmp_path):
    wrap(None).save(tmp_path)
    with pytest.raises(CheckpointError, match="built-in alrnn that needs no core="):
        load(tmp_path, core=small_model().core)


# --- saving ---


def test_saving_again_replaces_the_model_and_leaves_two_files(tmp_path):
    save(wrap(None), tmp_path)
    save(replace(wrap(CORES["linear"]()), method="kaffee"), str(tmp_path))
    assert load(str(tmp_path)).method == "kaffee"
    assert len(list(tmp_path.iterdir())) == 2


def test_the_json_says_what_it_is(tmp_path):
    save(wrap(None), tmp_path)
    meta = json.loads((tmp_path / "model.json").read_text())
    assert meta["format"] == "kaffee-model"
    assert meta["core"] == {
        "type": "alrnn",
        "hyperparameters": {"latent_dim": 4, "num_gates": 2, "gate": "hard", "temperature": 1.0},
    }
    assert {"kaffee", "jax", "numpy"} <= set(meta["versions"])
    assert meta["scaler"] == SCALER.to_dict()


@pytest.mark.parametrize("value", [float("nan"), np.float32(1.0), object()])
def test_provenance_that_is_not_json_leaves_the_old_model(tmp_path, value):
    save(wrap(None), tmp_path)
    with pytest.raises(CheckpointError, match="JSON"):
        save(wrap(CORES["linear"](), provenance={"loss": value}), tmp_path)
    assert isinstance(load(tmp_path).model.core, ALRNN)


def test_an_observation_map_of_ones_own_is_refused_before_anything_is_written(tmp_path):
    class Mine(Projection):
        pass

    model = small_model().replace(observation=Mine(OBSERVED, LATENT))
    with pytest.raises(CheckpointError, match="class Mine cannot be saved"):
        save(Reconstruction(model, SCALER), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_any_state_comes_back(tmp_path):
    state = {"n": jnp.int32(3), "deep": [jnp.ones((1, 1)), jnp.float32(0.5)]}
    write_record(tmp_path, "training", named_arrays(state), {"note": "x"})
    arrays, meta = read_record(tmp_path, "training", "training state")
    assert same_arrays(fill_arrays(jax.tree.map(jnp.zeros_like, state), arrays, "training"), state)
    assert meta["note"] == "x"


# --- damage ---


def rewrite(folder, change):
    """Change model.json and let its checksum fit again, as someone with a purpose would."""
    path = folder / "model.json"
    meta = json.loads(path.read_text())
    meta.pop("sha256")
    change(meta)
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**meta, "sha256": digest}))


@pytest.fixture(params=["json", "safetensors"])
def victim(request, tmp_path):
    """(folder, file to damage, the model that was saved)."""
    original = wrap(None)
    original.save(tmp_path)
    return tmp_path, next(tmp_path.glob(f"*.{request.param}")), original


def refused_or_equal(folder, original):
    """True if loading ended in the one error; otherwise it must have given the very same model."""
    try:
        back = load(folder)
    except CheckpointError:
        return True
    assert same_arrays(back.model, original.model)
    assert replace(back, model=None) == replace(original, model=None)
    return False


def test_flipped_bits_are_noticed(victim):
    folder, path, original = victim
    content, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        refused += refused_or_equal(folder, original)
    assert refused > 200  # the others hit the space between values


def test_overwritten_and_inserted_bytes_are_noticed(victim):
    folder, path, original = victim
    content, rng = path.read_bytes(), np.random.default_rng(1)
    refused = 0
    for i in range(100):
        at, length = rng.integers(len(content)), rng.integers(1, 20)
        noise = rng.bytes(length)
        path.write_bytes(content[:at] + noise + content[at + (length if i % 2 else 0) :])
        refused += refused_or_equal(folder, original)
    assert refused > 90


def test_truncation_is_noticed_at_every_length(victim):
    folder, path, original = victim
    content = path.read_bytes().rstrip(b"\n")
    for length in {*range(0, len(content), 37), len(content) - 1}:
        path.write_bytes(content[:length])
        assert refused_or_equal(folder, original), length


def test_swapped_weights_are_noticed(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        wrap(Linear(draw(4, 4, seed=seed), draw(4))).save(tmp_path / name)
    ours, theirs = (next((tmp_path / name).glob("*.safetensors")) for name in "ab")
    ours.write_bytes(theirs.read_bytes())
    with pytest.raises(CheckpointError, match="exchanged"):
        load(tmp_path / "a")


def test_a_folder_without_a_model_is_a_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"There is no model at .*model\.json"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="There is no model"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="pytorch"), "is not a kaffee model"),
        (lambda m: m.pop("format"), "is not a kaffee model"),
        (lambda m: m.update(format_version=2), "newer kaffee, in format 2; this version reads up to 1. Upgrade"),
        (lambda m: m.update(format_version=2, arrays="elsewhere"), "newer kaffee"),
        (lambda m: m.update(format_version=0), "no valid format_version"),
        (lambda m: m.update(format_version=True), "no valid format_version"),
        (lambda m: m.update(format_version="1"), "no valid format_version"),
        (lambda m: m["core"].update(type="os.system"), "Unknown core type 'os.system'"),
        (lambda m: m.update(core=[]), "incomplete or was edited"),
        (lambda m: m.pop("core"), "incomplete or was edited"),
        (lambda m: m["core"].pop("hyperparameters"), "incomplete or was edited"),
        (lambda m: m["core"]["hyperparameters"].update(gate="soft"), "Unknown gate 'soft'"),
        (lambda m: m["core"]["hyperparameters"].update(latent_dim="4"), "incomplete or was edited"),
        (lambda m: m["core"]["hyperparameters"].update(latent_dim=5), "incomplete or was edited"),
        (lambda m: m["observation"].update(type="magic"), "Unknown observation type 'magic'"),
        (lambda m: m["observation"].update(num_observed=3), "embedding does not have the shape"),
        (lambda m: m["observation"].update(latent_dim=-4), "embedding does not have the shape"),
        (lambda m: m.update(scaler={"mean": [0.0], "scale": [0.0]}), "incomplete or was edited"),
        (lambda m: m.update(scaler=None), "incomplete or was edited"),
        (lambda m: m.update(columns=7), "incomplete or was edited"),
        (lambda m: m.update(dt="fast"), "incomplete or was edited"),
        (lambda m: m.update(provenance=3), "incomplete or was edited"),
    ],
)
def test_edited_descriptions_are_clear_errors(tmp_path, change, message):
    wrap(None).save(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["hard", "linear", "polynomial", "mlp"])
@pytest.mark.parametrize("size", [10**9, 10**30, -1])
def test_no_number_in_a_file_asks_for_memory_or_time(tmp_path, kind, size):
    wrap(CORES[kind]()).save(tmp_path)
    sizes = json.loads((tmp_path / "model.json").read_text())["core"]["hyperparameters"]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in [name for name, value in sizes.items() if isinstance(value, int)]:
        wrap(CORES[kind]()).save(tmp_path)
        rewrite(tmp_path, lambda m, name=name: m["core"]["hyperparameters"].update({name: size}))
        with pytest.raises(CheckpointError):
            load(tmp_path)
        rewrite(tmp_path, lambda m: m["observation"].update(latent_dim=size))
        with pytest.raises(CheckpointError):
            load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 100_000  # kilobytes


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_pickle_in_place_of_weights_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrap(None).save(tmp_path)
    content = pickle.dumps(Bomb())
    next(tmp_path.glob("*.safetensors")).write_bytes(content)
    rewrite(tmp_path, lambda m: m["arrays"].update(sha256=hashlib.sha256(content).hexdigest()))
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_loading_uses_no_way_to_execute_code():
    """Neither pickle nor eval, exec or imports by name: in the source of all that loading runs through."""
    import kaffee.records

    for module in (checkpoint, kaffee.records):
        with open(module.__file__, encoding="utf-8") as file:
            source = file.read()
        for way in ("pickle.load", "import pickle", "eval(", "exec(", "import_module", "allow_pickle", "__import__"):
            assert way not in source


def test_another_process_loads_the_same_model(tmp_path):
    """No state of this process is needed, such as a registered class."""
    original = wrap(CORES["mlp"]())
    original.save(tmp_path)
    script = (
        "import sys, kaffee, numpy as np; core = kaffee.load(sys.argv[1]).model.core; "
        "print(np.asarray(core.weights[1]).tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == np.asarray(original.model.core.weights[1]).tobytes().hex()


def test_a_climate_comes_back_and_models_without_one_stay_without(tmp_path):
    climate = Climate(draw(LATENT), jnp.tril(draw(LATENT, LATENT)), draw(7, LATENT, seed=1))
    original = wrap(None)
    with_one = replace(original, model=original.model.replace(climate=climate))
    back = load(with_one.save(tmp_path / "with"))
    assert same_arrays(back.model.climate, climate)
    assert load(original.save(tmp_path / "without")).model.climate is None
    arrays, meta = read_record(tmp_path / "with", "model", "model")
    write_record(tmp_path / "half", "model", {k: v for k, v in arrays.items() if k != "climate.factor"}, meta)
    with pytest.raises(CheckpointError, match=r"arrays missing: \['climate.factor'\]"):
        load(tmp_path / "half")
