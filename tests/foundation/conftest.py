"""The published weights and the authors' trajectories, which lie beside the repository and not in it."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from kaffee.foundation.weights import DEFAULT, GATING, KNOWN, read_weights
from kaffee.model.dynamix import DynaMix

SHARED = Path(__file__).resolve().parents[3] / "shared"


def shared_file(*parts):
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(
            f"{path} is not there: the published DynaMix weights and trajectories are no part of the repository"
        )
    return path


@pytest.fixture(scope="session")
def models():
    """The folder of the published weights."""
    return shared_file("models", "dynamix-3d-alrnn-v1.0.safetensors").parent


@pytest.fixture(scope="session")
def published(models):
    return read_weights(models / "dynamix-3d-alrnn-v1.0.safetensors", models / "config_3d-alrnn-v1.0.json")


@pytest.fixture(scope="session")
def golden():
    with np.load(shared_file("data", "dynamix_lorenz63_golden.npz")) as stored:
        return dict(stored)


@pytest.fixture(scope="session")
def lorenz():
    """The series of the authors' notebooks."""
    return np.load(shared_file("data", "dynamix_lorenz63_series.npy"))


@pytest.fixture
def core(x64):
    """Odd sizes, so that no axis can be taken for another."""
    return make_core()


@cache
def make_core(dtype=np.float64, *, latent_dim=5, num_frames=12, seed=0, **sizes):
    """Random weights by NumPy, which compiles nothing, and a random context unless `num_frames` is 0."""
    sizes = {"num_observed": 2, "num_experts": 4, "num_gates": 3, "hidden_dim": 6, **sizes}
    shapes = eqx.filter_eval_shape(lambda: DynaMix.create(latent_dim, key=jax.random.key(0), dtype=dtype, **sizes))
    rng = np.random.default_rng(seed)
    core = jax.tree.map(lambda leaf: jnp.asarray(0.4 * rng.standard_normal(leaf.shape), dtype), shapes)
    # open hidden units, so that the gate depends on the state; the signs of temperatures do not matter
    gate = (np.full(sizes["hidden_dim"], 0.5), -0.3, 0.4)
    core = eqx.tree_at(
        lambda c: (c.gating.hidden_bias, c.gating.attention_temperature, c.gating.expert_temperature),
        core,
        tuple(jnp.asarray(value, dtype) for value in gate),
    )
    return core.in_context(rng.standard_normal((num_frames, core.num_observed))) if num_frames else core


def release_of(core):
    """The weights of a core under the names of the release."""
    parts = {f"experts.{k}.{part}": getattr(core, part)[k] for k in range(core.num_experts) for part in "AWh"}
    gate = {f"gating_network.{theirs}": getattr(core.gating, ours) for ours, theirs in GATING.items()}
    tensors = {"B": core.B, **parts, **gate}
    return {name: np.atleast_1d(np.asarray(value)) for name, value in tensors.items()}


def write_release(folder, name="dynamix-small", dtype=np.float32, **sizes):
    """A small random model in the two files of a release; returns their paths."""
    core = make_core(dtype, num_frames=0, **sizes)
    sizes = {"M": core.latent_dim, "N": core.num_observed, "Experts": core.num_experts, "P": core.num_gates}
    options = {"hidden_dim": 0, "expert_type": "almost_linear_rnn", "probabilistic_expert": False}
    path, config = folder / f"{name}.safetensors", folder / f"{name.replace('dynamix-', 'config_')}.json"
    save_file(release_of(core), path)
    config.write_text(json.dumps({"name": name, "architecture": sizes | options}))
    return path, config


def publish(patch, folder):
    """Let the small model in a folder be the published one, until the monkeypatch ends."""
    release = KNOWN[DEFAULT]
    weights = read_weights(*(folder / file for file in release.files))
    patch.setitem(KNOWN, DEFAULT, replace(release, digest=weights.digest, architecture=weights.architecture))
