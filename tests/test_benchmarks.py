"""The benchmarks compare like with like, and their file has the promised form."""

import json

import jax
import numpy as np
import pytest

from benchmarks import dynamix, ekf_gradient, ekf_plain_jax, scaling, speed, timing
from benchmarks.problem import PARAMETERS, Size, make_problem

SMALL = Size(latent=12, observed=5, windows=3, steps=6)


@pytest.fixture(scope="module")
def problem():
    return make_problem(SMALL)


@pytest.fixture(scope="module")
def reference(problem):
    return ekf_plain_jax.reference(problem)


# The peers bring libraries with deprecations of their own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ekf_gradient.PEERS)
def test_all_implementations_agree_on_loss_and_gradients(name, problem, reference):
    package = name.split("_")[0]
    if package in ("torch", "dynamax"):
        pytest.importorskip(package)
    peer = ekf_gradient.PEERS[name]
    found = peer.unpack(peer.build(problem)())
    assert set(found[1]) == set(PARAMETERS)
    assert all(value.dtype == np.float32 for value in found[1].values())
    assert max(ekf_gradient.disagreement(found, reference).values()) < ekf_gradient.TOLERANCE


def test_disagreement_is_seen(reference):
    loss, gradients = reference
    wrong = {**gradients, "W": 1.01 * gradients["W"]}
    assert ekf_gradient.disagreement((loss, wrong), reference)["W"] == pytest.approx(0.01)


def test_the_file_has_the_promised_form(problem, reference, tmp_path, monkeypatch, capsys):
    # All of the section but the peers that take long to compile; they are compared above.
    few = {name: ekf_gradient.PEERS[name] for name in ("kaffee", "autodiff")}
    monkeypatch.setattr(ekf_gradient, "PEERS", few)
    monkeypatch.setattr(ekf_plain_jax, "reference", lambda _: reference)
    path = tmp_path / "speed.json"
    speed.main(["--quick", "--only", "ekf_gradient", "--output", str(path)])
    written = json.loads(path.read_text(encoding="utf-8"))
    section = written["ekf_gradient"]
    assert {"kaffee", "autodiff", "dynamax", "torch", "matmul"} <= set(section)
    assert all(section[name] > 0 for name in ("kaffee", "autodiff", "matmul"))
    assert section["dynamax"] is None
    assert set(written) >= {"machine", "versions", "settings", "ratios", "ekf_gradient_detail"}
    assert written["ratios"]["ekf_gradient"]["autodiff"]["target"] == 2.2
    assert "median" in capsys.readouterr().out


def test_a_missing_peer_is_left_out_with_advice(problem, reference, monkeypatch, capsys):
    def missing(problem):
        raise ImportError("No module named 'torch'")

    absent = ekf_gradient.Peer(missing, ekf_plain_jax.unpack)
    monkeypatch.setattr(ekf_gradient, "PEERS", {"torch_dense": absent})
    calls, detail = ekf_gradient.build_peers(problem, reference)
    assert calls == {}
    assert detail == {}
    assert "[bench]" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_teacher_forcing_makes_the_same_updates_as_torch(problem):
    pytest.importorskip("torch")
    from benchmarks import teacher_forcing

    forcing = teacher_forcing.Forcing(interval=4)
    # RAdam of optax mixes types in ways that JAX's strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        assert teacher_forcing.disagreement(problem, 10, forcing) < 1e-4


def test_dynamix_makes_the_same_steps_and_updates_as_torch():
    pytest.importorskip("torch")
    problem = dynamix.make_problem(dynamix.QUICK)
    assert dynamix.rollout_disagreement(problem) < 1e-5
    # Adam of optax mixes types in ways that JAX's strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        assert dynamix.update_disagreement(problem) < dynamix.TOLERANCE


def test_dynamix_is_measured_without_torch_too(monkeypatch, capsys):
    def missing(*arguments):
        raise ImportError("No module named 'torch'")

    monkeypatch.setattr(dynamix, "TorchDynaMix", missing)
    found = dynamix.measure_rollout(dynamix.QUICK, 2)
    assert found["dynamix_rollout"]["kaffee"] > 0
    assert found["dynamix_rollout"]["torch"] is None
    assert found["ratios"]["dynamix_rollout"]["torch"] is None
    assert "[bench]" in capsys.readouterr().err


def test_a_peer_of_dynamix_that_disagrees_is_not_timed():
    with pytest.raises(AssertionError, match="dynamix_update: PyTorch disagrees"):
        dynamix._measure("dynamix_update", (list, 1), lambda: (list, 1), lambda: 0.1, 1)


def test_single_sections_keep_the_others_of_a_file(tmp_path, monkeypatch):
    def section(name, **_):
        return {name: {"kaffee": 1.0}, f"{name}_detail": {"kaffee": {"median": 1.0}}, "ratios": {name: {"torch": None}}}

    monkeypatch.setattr(speed, "run_section", section)
    path = tmp_path / "speed.json"
    old = {
        "machine": "other",
        "ratios": {"rollouts": {}},
        "rollouts": {"num_steps": 3},
        "dynamix_update": {"kaffee": 9},
    }
    path.write_text(json.dumps(old), encoding="utf-8")
    speed.main(["--quick", "--only", "dynamix_rollout,dynamix_update", "--output", str(path)])
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["machine"] == "other"
    assert written["rollouts"] == {"num_steps": 3}
    assert written["dynamix_update"] == {"kaffee": 1.0}
    assert set(written["ratios"]) == {"rollouts", "dynamix_rollout", "dynamix_update"}
    assert written["apart"]["dynamix_update"]["settings"]["quick"]
    with pytest.raises(SystemExit):
        speed.main(["--only", "coffee"])


def test_timing_takes_turns():
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    seconds = timing.interleaved(calls, 2, warm_up=0)
    assert order == ["a", "b", "b", "a"]
    assert seconds["a"].shape == (2,)


def test_ratios_know_their_direction():
    slow, fast = np.array([3.0, 3.0]), np.array([1.0, 1.0])
    assert timing.compared(slow, fast, 2.0)["met"]
    assert not timing.compared(slow, fast, 2.0, at_most=True)["met"]
    assert timing.compared(None, fast) is None


def test_the_exponent_of_a_cubic_is_three():
    assert scaling.exponent([10, 20, 40], [1.0, 8.0, 64.0]) == 3.0
