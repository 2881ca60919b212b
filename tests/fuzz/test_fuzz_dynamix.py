"""Weight files and configurations of DynaMix."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from foundation.conftest import write_release
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from fuzz.damage import damaged, edited, fuzz, result_or_advice
from fuzz.test_fuzz_models import hostile_arrays
from kaffee.foundation.hub import from_pretrained
from kaffee.model.dynamix import DynaMix


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Paths and contents of a small model."""
    path, config = write_release(tmp_path_factory.mktemp("dynamix"))
    return path, config, path.read_bytes(), json.loads(config.read_text())


def check(path):
    core = result_or_advice(lambda: from_pretrained(path), str(path.parent))
    if core is not None:
        assert isinstance(core, DynaMix)
        assert bool(jnp.isfinite(core.W).all())


@fuzz(150)
@given(data=st.data())
def test_damaged_weights(release, data):
    path, config, content, description = release
    config.write_text(json.dumps(description))
    path.write_bytes(data.draw(damaged(content) | hostile_arrays(content)))
    check(path)


@fuzz(150)
@given(data=st.data())
def test_edited_configurations(release, data):
    path, config, content, description = release
    path.write_bytes(content)
    config.write_text(json.dumps(data.draw(edited(description))))
    check(path)


@fuzz(60)
@given(data=st.data())
def test_damaged_configurations(release, data):
    path, config, content, description = release
    path.write_bytes(content)
    config.write_bytes(data.draw(damaged(json.dumps(description).encode())))
    check(path)


@fuzz(20)
@given(experts=st.integers(5, 2**63))
@example(experts=10**9)
@example(experts=10**400)
def test_a_billion_experts_take_no_time(release, experts):
    path, config, content, description = release
    path.write_bytes(content)
    config.write_text(json.dumps({**description, "architecture": {**description["architecture"], "Experts": experts}}))
    assert result_or_advice(lambda: from_pretrained(path), str(path)) is None


@pytest.mark.parametrize("value", [1e300, 1e-320])
def test_numbers_that_do_not_fit_into_float32_are_named(release, value):
    path, config, content, description = release
    config.write_text(json.dumps(description))
    name = "gating_network.softmax_temp1"
    path.write_bytes(save({**load(content), name: np.array([value])}))
    assert result_or_advice(lambda: from_pretrained(path), str(path), name) is None
