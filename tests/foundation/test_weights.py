"""Reading weight files: what does not fit is named."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from kaffee.errors import CheckpointError
from kaffee.foundation.weights import _Architecture as Architecture
from kaffee.foundation.weights import decode_weights, read_weights

from .conftest import make_core, release_of, write_release


@pytest.fixture
def files(tmp_path):
    return write_release(tmp_path)


def test_a_file_of_other_sizes_is_read(files):
    core = make_core(np.float32, num_frames=0)
    weights = read_weights(*files)
    back = weights.to_core()
    for name in ("A", "W", "h", "B"):
        np.testing.assert_array_equal(getattr(back, name), getattr(core, name))
    np.testing.assert_array_equal(back.gating.hidden_weight, core.gating.hidden_weight)
    assert back.gating.attention_temperature.shape == ()
    assert back.num_gates == core.num_gates
    assert weights.architecture == Architecture(5, 2, 4, 3)
    assert sum(tensor.size for tensor in weights.tensors.values()) == core.num_parameters
    assert len(weights.sha256) == 64
    assert weights.sha256 in back.origin


def test_weights_may_be_float64(tmp_path, x64):
    path, config = write_release(tmp_path, dtype=np.float64)
    assert read_weights(path, config).to_core(np.float64).W.dtype == jnp.float64


BROKEN = {
    r"tensor experts.2.W has shape \(5, 4\); the configuration asks for \(5, 5\)": {
        "experts.2.W": np.zeros((5, 4), np.float32)
    },
    r"tensor gating_network.D has shape \(3, 5\); .* \(2, 5\)": {"gating_network.D": np.zeros((3, 5), np.float32)},
    r"gating_network.mlp_layer2.weight has shape \(4, 7\); .* \(4, 6\)": {
        "gating_network.mlp_layer2.weight": np.zeros((4, 7), np.float32)
    },
    "tensors missing: B, experts.0.h; not expected: none": {"B": None, "experts.0.h": None},
    "tensors missing: none; not expected: experts.4.A": {"experts.4.A": np.zeros(5, np.float32)},
    "tensor B is of type int32; it must be floating point": {"B": np.zeros((2, 5), np.int32)},
    "tensor B holds values that are not finite": {"B": np.full((2, 5), np.nan, np.float32)},
    "softmax_temp1 is 0": {"gating_network.softmax_temp1": np.zeros(1, np.float32)},
}


@pytest.mark.parametrize("message", BROKEN)
def test_tensors_that_do_not_fit_are_named(files, message):
    path, config = files
    tensors = {**release_of(make_core(np.float32, num_frames=0)), **BROKEN[message]}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)
    with pytest.raises(CheckpointError, match=message):
        read_weights(path, config)


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_truncated_file_is_a_clear_error(files, keep):
    path, config = files
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"is not a safetensors file, or was truncated.*kaffee models pull"):
        read_weights(path, config)


def test_a_foreign_file_is_a_clear_error(files):
    path, config = files
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        read_weights(path, config)


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_file_is_a_clear_error(files, which):
    files[which].unlink()
    what = ("weight file", "configuration")[which]
    with pytest.raises(CheckpointError, match=f"The {what} .* cannot be read"):
        read_weights(*files)


def test_a_huge_file_is_not_read(files, monkeypatch):
    monkeypatch.setattr("kaffee.foundation.weights.MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match="is larger than"):
        read_weights(*files)


CONFIGS = {
    "hidden_dim = 50 is not supported; kaffee reads 0 only": {"hidden_dim": 50},
    "expert_type = 'clipped_shallow_plrnn' is not supported": {"expert_type": "clipped_shallow_plrnn"},
    "probabilistic_expert = True is not supported": {"probabilistic_expert": True},
    "architecture.M must be a whole number, not 'thirty'": {"M": "thirty"},
    "architecture.Experts must be a whole number, not 0": {"Experts": 0},
    "architecture.P must be a whole number, not None": {"P": None},
    "architecture.N must be a whole number, not True": {"N": True},
    "M = 5 must be at least N and P": {"P": 6},
    "tensors missing: experts.4.A, experts.4.W, experts.4.h; not expected: none": {"Experts": 5},
}


@pytest.mark.parametrize("message", CONFIGS)
def test_configurations_that_cannot_be_used_are_clear_errors(files, message):
    path, config = files
    content = json.loads(config.read_text())
    content["architecture"].update(CONFIGS[message])
    with pytest.raises(CheckpointError, match=message):
        decode_weights(path.read_bytes(), json.dumps(content).encode(), str(path), str(config))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "is not JSON"), (b"[]", "holds list instead of a JSON object"), (b'{"name": "x"}', "no 'architecture'")],
)
def test_a_configuration_that_is_no_json_object_with_sizes_is_a_clear_error(files, content, message):
    with pytest.raises(CheckpointError, match=f"config.json.* {message}"):
        decode_weights(files[0].read_bytes(), content, "w", "config.json")
