"""Discovered systems are bounded, chaotic where they should be, and not named; recordings are as asked."""

import json
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from benchmarks import corpus, families
from benchmarks.discovery import (
    BOX,
    CHAOTIC,
    Batch,
    as_candidates,
    exponents,
    is_named,
    monomials,
    period_of,
    position,
    verify,
)
from benchmarks.draws import Conditions, draw, draw_many, simulate

SHORT = 1_280


@pytest.fixture(scope="module")
def others():
    return corpus.generate(3, num_chaotic=0, num_other=5, long=SHORT)


@pytest.fixture(scope="module")
def chaotic():
    return corpus.generate(1, num_chaotic=5, num_other=0, long=4 * SHORT)


@pytest.fixture(scope="module")
def systems(others, chaotic):
    return chaotic + others


def same(first, second):
    return len(first) == len(second) and all(
        np.array_equal(getattr(a, field.name), getattr(b, field.name))
        for a, b in zip(first, second, strict=True)
        for field in fields(a)
    )


def lorenz():
    flow = np.zeros((1, 3, len(monomials(3))))
    for d, factors, value in [
        (0, (0,), -10.0),
        (0, (1,), 10.0),
        (1, (0,), 28.0),
        (1, (1,), -1.0),
        (1, (0, 2), -1.0),
        (2, (0, 1), 1.0),
        (2, (2,), -8 / 3),
    ]:
        flow[0, d, position(3, *factors)] = value
    return flow


def test_a_step_is_runge_kutta_of_the_polynomial():
    rng = np.random.default_rng(0)
    flows, x, dt = rng.normal(size=(4, 3, 20)), rng.normal(size=(3, 4)), np.array([0.01, 0.02, 0.03, 0.04])
    found = Batch(flows).step(x, dt)
    for b in range(4):

        def field(y, flow=flows[b]):
            one = np.array([1.0, *y])
            return flow @ np.array([one[i] * one[j] * one[k] for i, j, k in monomials(3)])

        k1 = field(x[:, b])
        k2 = field(x[:, b] + dt[b] / 2 * k1)
        k3 = field(x[:, b] + dt[b] / 2 * k2)
        k4 = field(x[:, b] + dt[b] * k3)
        np.testing.assert_allclose(found[:, b], x[:, b] + dt[b] / 6 * (k1 + 2 * k2 + 2 * k3 + k4), rtol=1e-12)


def test_the_exponent_of_lorenz_is_the_textbooks():
    starts = np.random.default_rng(0).normal((0.0, 0.0, 20.0), size=(100, 3)).T
    many = replace(as_candidates(np.repeat(lorenz(), 100, axis=0), starts), step=np.full(100, 0.01))
    found, _ = exponents(many, 5_000, start=1_000)
    # Over 40 units of time, in which single exponents scatter.
    assert abs(found.mean() - 0.9057) < 4 * found.std() / 10 + 0.005


def test_named_flows_are_known_in_any_order_of_coordinates():
    flow = lorenz()[0]
    renamed = np.zeros_like(flow)
    order = [2, 0, 1]
    for d, p in zip(*np.nonzero(flow), strict=True):
        renamed[order[d], position(3, *(order[i - 1] for i in monomials(3)[p] if i))] = flow[d, p]
    assert is_named(flow)
    assert is_named(renamed)
    renamed[0, position(3, 0, 0)] = 0.1
    assert not is_named(renamed)


def test_numerical_chaos_is_rejected():
    # dx/dt = x - x^2 comes to rest, but Runge-Kutta with so long a step does not.
    flow = np.zeros((1, 1, 4))
    flow[0, 0, 1:3] = 1.0, -1.0
    rejected = Counter()
    coarse = replace(as_candidates(flow, np.array([[0.3]])), step=np.array([3.9]))
    growth, _ = exponents(coarse, SHORT)
    assert growth[0] > 0.05
    assert verify(coarse, ["quadratic"], rejected, chaotic=["quadratic"], long=SHORT) == []
    assert set(rejected) == {"numerical exponent"}


def test_a_period_is_measured():
    t = np.arange(0, 70, 0.01)
    path = np.stack([np.sin(0.7 * t), np.cos(0.7 * t)], axis=1)
    assert period_of(path, 0.01) == pytest.approx(2 * np.pi / 0.7, rel=0.02)


def test_products_of_forced_flows_keep_the_energy():
    rng = np.random.default_rng(0)
    flows = families.forced_flows(rng, 20, 5)
    flows[:, :, (monomials(5) > 0).sum(axis=1) < 2] = 0.0
    x = rng.normal(size=(5, 20))
    np.testing.assert_allclose((x * Batch(flows).polynomial(x)).sum(axis=0), 0.0, atol=1e-12)


def test_an_embedded_flow_moves_as_before():
    rng = np.random.default_rng(0)
    flows, x = rng.normal(size=(3, 2, 10)), rng.normal(size=(5, 3))
    found = Batch(families.embed(flows, 5, 2)).polynomial(x)
    np.testing.assert_allclose(found[2:4], Batch(flows).polynomial(x[2:4]), rtol=1e-12)
    assert not found[[0, 1, 4]].any()


def test_a_seed_decides_everything_and_every_kind_is_there(others, chaotic, tmp_path):
    assert [system.kind for system in others] == list(corpus.OTHER_KINDS)
    assert [system.kind for system in chaotic] == list(corpus.CHAOTIC_KINDS)
    path = tmp_path / "corpus.npz"
    assert same(corpus.generate(3, num_chaotic=0, num_other=5, long=SHORT, path=path), others)
    rejected = Counter()
    assert same(corpus.generate(3, num_chaotic=0, num_other=5, long=SHORT, path=path, rejected=rejected), others)
    assert not rejected
    assert corpus._read(path, {"seed": 4}) is None


def test_chaotic_flows_are_chaotic_and_others_are_not(others, chaotic):
    assert all(system.exponent * system.period > CHAOTIC for system in chaotic)
    assert not any(system.is_chaotic for system in others if system.kind != "map")
    assert not any(is_named(system.coefficients) for system in chaotic)


def test_trajectories_stay_in_the_box(systems):
    recordings = draw_many(systems * 3, np.random.default_rng(0), Conditions(lengths=(512,)))
    for system, recording in zip(systems * 3, recordings, strict=True):
        clean = np.concatenate([recording.clean_context, recording.clean_future])
        assert clean.shape in ((812, system.dimension), (812, 1))
        assert np.isfinite(clean).all()
        assert np.isfinite(recording.future).all()
    for system, path in zip(
        systems, simulate(systems, [s.states[0] for s in systems], [s.period for s in systems], [100] * 10), strict=True
    ):
        assert np.abs(path).max() < BOX, system.kind


def test_recordings_are_a_function_of_the_generator(systems):
    first = draw_many(systems, np.random.default_rng(1), Conditions(lengths=(128,)))
    second = draw_many(systems, np.random.default_rng(1), Conditions(lengths=(128,)))
    assert all(np.array_equal(a.context, b.context, equal_nan=True) for a, b in zip(first, second, strict=True))


def test_noise_gaps_and_sampling_are_as_asked(systems):
    asked = Conditions(
        lengths=(1000,), horizon=400, rows_per_period=(20.0, 20.0), noise=(0.1, 0.1), clean=0.0, gaps=1.0,
        missing=(0.2, 0.2), univariate=0.0, disturbed=0.0,
    )  # fmt: skip
    for system, recording in zip(systems, draw_many(systems, np.random.default_rng(2), asked), strict=True):
        missing = np.isnan(recording.context)
        # Blocks may overlap.
        assert 0.06 < missing.mean() < 0.25
        residual = (recording.future - recording.clean_future) / recording.clean_context.std(axis=0)
        assert residual.std() == pytest.approx(0.1, abs=4 * 0.1 / np.sqrt(2 * residual.size))
        assert recording.future.shape == (400, system.dimension)
        assert recording.noise == 0.1
        assert recording.process == system.process
        assert recording.rows_per_period == (1.0 if system.is_map else 20.0)
        expected = recording.rows_per_period / (system.exponent * system.period if system.is_chaotic else 1.0)
        assert recording.rows_per_time == pytest.approx(expected)


def test_a_clean_recording_is_clean_and_univariate(others):
    asked = Conditions(lengths=(256,), clean=1.0, gaps=0.0, univariate=1.0)
    recording = draw(others[0], np.random.default_rng(0), asked)
    assert recording.context.shape == (256, 1)
    assert np.array_equal(recording.context, recording.clean_context)
    # The sampling rate leaves a short context three periods.
    assert recording.rows_per_period <= 256 / 3


def test_the_command_shows_and_draws(others, tmp_path, capsys):
    path = tmp_path / "corpus.npz"
    corpus._write(path, others, {"version": corpus.VERSION, "seed": 3, "num_chaotic": 0, "num_other": 5, "long": SHORT})
    asked = f"--seed 3 --chaotic 0 --other 5 --long {SHORT} --cache {path} --show".split()
    corpus.main([*asked, "--sheet", str(tmp_path / "sheet.png"), "--summary", str(tmp_path / "summary.json")])
    assert "torus" in capsys.readouterr().out
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
    written = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert [row["kind"] for row in written["kinds"]] == list(corpus.OTHER_KINDS)
