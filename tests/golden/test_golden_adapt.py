"""Pin `kaffee adapt`: with a small random model in the files of a release, and with the published one if there is."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import kaffee as library

from .pinned import check, table

PUBLISHED = Path(__file__).parents[3] / "shared" / "models"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Write a random model for two coordinates as releases are written; returns its folder."""
    folder, rng = tmp_path_factory.mktemp("release"), np.random.default_rng(0)
    M, N, E, H = 5, 2, 4, 6
    parts = {"A": (M,), "W": (M, M), "h": (M,)}
    shapes = {f"experts.{k}.{part}": shape for k in range(E) for part, shape in parts.items()}
    gate = {"D": (N, M), "conv.weight": (N, N, 2), "conv.bias": (N,), "mlp_layer1.weight": (H, N + M), "sigma": (N,)}
    gate |= {"mlp_layer2.weight": (E, H), "mlp_layer2.bias": (E,)}
    shapes |= {"B": (N, M)} | {f"gating_network.{name}": shape for name, shape in gate.items()}
    tensors = {name: 0.3 * rng.standard_normal(shape) for name, shape in shapes.items()}
    fixed = {"mlp_layer1.bias": [0.5] * H, "softmax_temp1": [-0.3], "softmax_temp2": [0.4]}
    tensors |= {f"gating_network.{name}": np.asarray(value) for name, value in fixed.items()}
    save_file({name: value.astype(np.float32) for name, value in tensors.items()}, folder / "dynamix-small.safetensors")
    sizes = {"M": M, "N": N, "Experts": E, "P": 3, "hidden_dim": 0}
    kind = {"expert_type": "almost_linear_rnn", "probabilistic_expert": False}
    (folder / "config_small.json").write_text(json.dumps({"name": "dynamix-small", "architecture": sizes | kind}))
    return folder


def adapt(kaffee, pin, data, model, output, *options, chaotic=()):
    """Adapt by the command line; pin what it prints, but for `chaotic` numbers, and what the model says of itself."""
    made = kaffee("adapt", data, "-o", output, "--model", model, "--updates", 2, "--json", "--no-certify", *options)
    facts = json.loads(made.stdout)
    assert facts.pop("output") == str(output)
    for name in chaotic:
        assert facts["check"].pop(name) > 0
    loaded = library.load(output)
    about = {key: loaded.provenance.get(key) for key in ("seed", "licence", "attribution", "foundation_model")}
    check(pin, {**facts, "columns": list(loaded.columns), "dt": loaded.dt, "method": loaded.method, "about": about})


def test_a_small_model_adapts_and_continues_the_same(kaffee, small, tmp_path):
    t = np.arange(120.0)
    values = np.stack([np.sin(t / 5), np.cos(t / 3)], axis=1) + 0.05 * np.random.default_rng(0).normal(size=(120, 2))
    data = library.write_series(values, tmp_path / "waves.csv", columns=["a", "b"], times=0.5 * t)
    adapt(kaffee, "adapt_small", data, small, tmp_path / "run")
    kaffee("zeroshot", data, "-o", tmp_path / "out.csv", "--steps", 12, "--model", small)
    check("zeroshot_small", table(tmp_path / "out.csv", every=3))


def test_the_published_model_adapts_the_same(kaffee, recording, tmp_path):
    if not PUBLISHED.exists():
        pytest.skip(f"{PUBLISHED} is not there: the published DynaMix weights are no part of the repository")
    chaotic = ("lambda_1", "d_h_core", "d_stsp_core")
    adapt(kaffee, "adapt_published", recording, PUBLISHED, tmp_path / "run", "--context", 150, chaotic=chaotic)
