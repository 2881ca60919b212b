"""Filtering recordings: moments at every step, going on from the last belief, long runs in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, MAPS, OBSERVED, WINDOWS, make_data, make_model, matrix_of, textbook_filter

from kaffee.filtering.gaussian import Belief
from kaffee.filtering.sweep import run_filter
from kaffee.model.alrnn import ALRNN
from kaffee.model.maps import Linear
from kaffee.model.observation import LinearObservation, Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import Custom
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate


@pytest.mark.parametrize("observation", MAPS)
def test_moments_of_states_and_observations(observation, x64):
    model, (x, mask) = make_model("smooth", observation), make_data()
    result = run_filter(model, x, mask)
    assert result.outcome.ok
    B, Gamma, Lambda = (
        matrix_of(model.observation),
        np.diag(model.shell.process_variance()),
        np.diag(model.shell.observation_variance()),
    )
    for r in range(WINDOWS):
        start = np.asarray(model.embed(x[r, 0]))
        nll, means, covariances = textbook_filter(
            model.core, model.core.jacobian, B, Gamma, Lambda, start, Gamma, x[r, 1:], mask[r, 1:]
        )
        np.testing.assert_allclose(result.nll[r], nll, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(result.mean[r], means, rtol=1e-10, atol=1e-10)
        std = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
        np.testing.assert_allclose(result.std[r], std, rtol=1e-9)
        np.testing.assert_allclose(result.final.mean[r], means[-1], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(result.final.covariance[r], covariances[-1], rtol=1e-9, atol=1e-11)
        # the observation of each step, given those before it
        before = [(start, Gamma), *zip(means[:-1], covariances[:-1], strict=True)]
        for t, (z, P) in enumerate(before):
            J = np.asarray(model.core.jacobian(jnp.asarray(z)))
            predicted = B @ np.asarray(model.core(jnp.asarray(z)))
            variance = np.diag(B @ (J @ P @ J.T + Gamma) @ B.T + Lambda)
            np.testing.assert_allclose(result.predicted_mean[r, t], predicted, rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(result.predicted_std[r, t], np.sqrt(variance), rtol=1e-9)
            seen = np.asarray(mask[r, t + 1])
            expected = np.where(seen, np.nan_to_num(x[r, t + 1]) - predicted, 0.0)
            np.testing.assert_allclose(result.innovations[r, t], expected, rtol=1e-9, atol=1e-10)
            Omega = (B @ (J @ P @ J.T + Gamma) @ B.T + Lambda)[np.ix_(seen, seen)]
            v = expected[seen]
            np.testing.assert_allclose(result.nis[r, t], v @ np.linalg.solve(Omega, v), rtol=1e-8, atol=1e-10)


def test_going_on_is_never_having_stopped(x64):
    model, (x, mask) = make_model("smooth"), make_data()
    whole = run_filter(model, x, mask)
    first = run_filter(model, x[:, :4], mask[:, :4])
    second = run_filter(model, x[:, 4:], mask[:, 4:], None, first.final)
    assert first.nll.shape[1] == 3  # the first row only anchors
    assert second.nll.shape[1] == 4  # with a belief every row is assimilated
    for name in ("mean", "std", "predicted_mean", "predicted_std", "innovations", "nis", "nll", "faults"):
        joined = np.concatenate([getattr(first, name), getattr(second, name)], axis=1)
        np.testing.assert_allclose(joined, getattr(whole, name), rtol=1e-12, atol=1e-13, err_msg=name)
    np.testing.assert_allclose(second.final.covariance, whole.final.covariance, rtol=1e-12, atol=1e-13)


def test_outcome_names_recording_and_step():
    model = make_model("linear", dtype=np.float32)
    x, mask = make_data(missing=0.0, dtype=np.float32)
    result = run_filter(model, x.at[2, 4, 0].set(1e25), mask)
    assert (result.outcome.step, result.outcome.window, result.outcome.quantity) == (4, 2, "likelihood")
    assert np.isfinite(result.nll[:2]).all()


def test_same_shapes_are_compiled_once(x64):
    calls = []

    class Counted(eqx.Module):
        weights: jax.Array

        def __call__(self, z):
            calls.append(z)
            return jnp.tanh(self.weights @ z)

    counts = []
    for seed in (0, 1):
        weights = jnp.asarray(np.random.default_rng(seed).standard_normal((LATENT, LATENT)))
        model = make_model(Custom(Counted(weights), LATENT), seed=seed)
        run_filter(model, *make_data(seed=seed))
        counts.append(len(calls))
    assert counts[0] > 0
    assert counts[1] == counts[0]


@pytest.fixture(scope="module")
def lorenz():
    """1e5 standardised rows of noisy Lorenz-63 with 30 % of all entries missing."""
    states = simulate(get_system("lorenz63"), 100_000, observation_noise=0.1, seed=1).observations
    mask = np.random.default_rng(0).uniform(size=states.shape) >= 0.3
    return (states - states.mean(axis=0)) / states.std(axis=0), mask


def lorenz_model(dtype):
    """A random AL-RNN, locally expanding: a rotation with a spectral radius of 1.02 where all gates are open."""
    rng = np.random.default_rng(0)
    M, N = 10, 3
    rotation = np.linalg.qr(rng.standard_normal((M, M)))[0]
    A = np.full(M, 0.3)
    core = ALRNN(
        *(jnp.asarray(a, dtype) for a in (A, 1.02 * rotation - np.diag(A), 0.1 * rng.standard_normal(M))),
        num_gates=4,
        gate="straight_through",
    )
    return StateSpaceModel(
        core,
        Shell.from_std(np.full(M, 0.1), np.full(N, 0.1), dtype),
        Projection(N, M),
        jnp.asarray(rng.uniform(-0.5, 0.5, (M, N)), dtype),
    )


def test_long_run_in_float32_stays_a_covariance(lorenz):
    """1e5 steps with missing entries, in ten parts that each go on from the last belief."""
    x, mask = lorenz
    model = lorenz_model(np.float32)
    belief = Belief(jnp.zeros((1, 10)), jnp.eye(10)[None])
    for part in range(10):
        rows = slice(part * 10_000, (part + 1) * 10_000)
        last = run_filter(model, jnp.asarray(x[None, rows], jnp.float32), jnp.asarray(mask[None, rows]), None, belief)
        belief = last.final
        assert last.outcome.ok
        assert np.isfinite(last.nll).all()
        for std in (last.std, last.predicted_std):
            assert (np.asarray(std) > 1e-3).all()  # NaN fails too
        P = np.asarray(belief.covariance[0], np.float64)
        assert np.abs(P - P.T).max() <= 1e-6 * np.trace(P)
        assert np.linalg.eigvalsh(P)[0] > 1e-4  # Gamma = 0.01, of which data take only a part
    with jax.enable_x64(True):
        start = Belief(jnp.zeros((1, 10)), jnp.eye(10)[None])
        model = lorenz_model(np.float64)
        precise = run_filter(model, jnp.asarray(x[None, rows]), jnp.asarray(mask[None, rows]), None, start)
        P64 = np.asarray(precise.final.covariance[0])
        half = np.asarray(precise.nll[0, 5000:])
    # the filter forgets where it started and how it was rounded; 1e-5 of jitter and 1e-7 of rounding remain
    np.testing.assert_allclose(P, P64, rtol=0, atol=1e-3 * np.abs(P64).max())
    np.testing.assert_allclose(last.nll[0, 5000:], half, rtol=1e-2, atol=1e-2)


def test_two_rows_are_one_step(x64):
    """The anchoring row is never scored."""
    model, (x, mask) = make_model("smooth"), make_data(rows=2)
    result = run_filter(model, x, mask)
    assert result.nll.shape == (WINDOWS, 1)
    assert result.predicted_mean.shape == (WINDOWS, 1, OBSERVED)


def test_unobserved_entries_of_the_first_row_start_as_wide_as_the_data(x64):
    """An anchor that was not seen is not an anchor: the first steps must not be certain of it."""
    core = Linear(0.9 * jnp.eye(3), jnp.zeros(3))
    model = StateSpaceModel.create(core, 2, key=jax.random.key(0), dtype=jnp.float64)
    x = jnp.full((1, 4, 2), 1.5)
    seen = jnp.ones(x.shape, bool)
    hidden = seen.at[0, 0, 1].set(False)
    complete, incomplete = run_filter(model, x, seen), run_filter(model, x, hidden)
    assert float(incomplete.predicted_std[0, 0, 1]) > 0.9
    np.testing.assert_allclose(incomplete.predicted_std[0, 0, 0], complete.predicted_std[0, 0, 0], rtol=1e-12)
    assert float(incomplete.nll[0, 0]) < 3.0


def test_a_general_map_spreads_what_the_projection_spreads(x64):
    variance = jnp.array([[0.5, 2.0]])
    projection, matrix = Projection(2, 4), LinearObservation(jnp.eye(2, 4))
    np.testing.assert_allclose(projection.spread(variance), matrix.spread(variance), atol=1e-12)
