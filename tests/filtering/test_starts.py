"""Starts from a climate: textbook conditioning everywhere, a scored first row, no gradient into the climate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, MAPS, OBSERVED, WINDOWS, flat, make_data, make_model, matrix_of
from scipy.stats import multivariate_normal

from kaffee.filtering.gated import SURPRISE, Track, advance, make_gate
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import KAFFEE, start_belief, start_state, window_nll
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.sweep import run_filter, sweep
from kaffee.model.statespace import Climate, Shell

BLIND = Recursion(transport=False)


def moments(seed=5):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((LATENT, LATENT))
    return rng.standard_normal(LATENT), root @ root.T + 0.1 * np.eye(LATENT)


def climate_model(observation="projection"):
    return make_model("smooth", observation).replace(climate=Climate.from_moments(*moments(), np.float64))


def condition(model, x):
    """Condition the climate on what is finite in x, by the textbook; also return log p(x)."""
    (m, C), seen = moments(), np.isfinite(x)
    B = matrix_of(model.observation)[seen]
    S = B @ C @ B.T + np.diag(np.asarray(model.shell.observation_variance())[seen])
    K = C @ B.T @ np.linalg.inv(S)
    log_p = multivariate_normal(B @ m, S).logpdf(x[seen]) if seen.any() else 0.0
    return m + K @ (x[seen] - B @ m), C - K @ S @ K.T, log_p


@pytest.mark.parametrize("observation", MAPS)
def test_a_start_is_the_climate_given_the_reading(observation, x64):
    model = climate_model(observation)
    x = np.array([[0.3, -1.2], [np.nan, 0.7], [np.nan, np.nan]])
    belief = start_belief(model, jnp.asarray(x), jnp.isfinite(x))
    filtered = sweep(model, Recursion(), jnp.asarray(x)[None], gate=make_gate())
    for w, row in enumerate(x):
        mean, covariance, log_p = condition(model, row)
        for found in (belief, filtered.final):
            np.testing.assert_allclose(found.mean[w], mean, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(found.covariance[w], covariance, rtol=1e-9, atol=1e-9)
        assert float(filtered.rows.nll[0, w]) == pytest.approx(-log_p, abs=1e-9)
    assert filtered.rows.restarted.all()


@pytest.mark.parametrize("observation", MAPS)
def test_a_free_run_starts_from_the_state_that_is_observed_nearest(observation, x64):
    model = climate_model(observation)
    states = np.random.default_rng(1).standard_normal((9, LATENT))
    x = matrix_of(model.observation) @ states[4] + 1e-3
    model = model.replace(climate=Climate.from_moments(*moments(), np.float64, states=states))
    start = start_state(model, jnp.asarray(x)[None])
    np.testing.assert_allclose(model.observation.observe(start)[0], x, rtol=1e-9)
    np.testing.assert_allclose(start[0], states[4], atol=5e-3)


@pytest.mark.parametrize("recursion", [Recursion(), BLIND])
def test_filter_and_window_start_alike(recursion, x64):
    model, (x, mask) = climate_model(), make_data()
    bare = run_filter(model, x, mask, recursion)
    rows = sweep(model, recursion, jnp.swapaxes(jnp.where(mask, x, jnp.nan), 0, 1), gate=make_gate()).rows
    np.testing.assert_allclose(rows.nll[1:].T, bare.nll, rtol=1e-10)
    loss = window_nll(model, x, mask, recursion, burn_in=0).loss
    assert float(loss) == pytest.approx(float(bare.nll.sum()) / int(mask[:, 1:].sum()), rel=1e-10)


def test_gradients_reach_the_shell_through_the_start_but_not_the_climate(x64):
    model, (x, mask) = climate_model(), make_data()

    def gradient(how):
        return eqx.filter_grad(lambda m: window_nll(m, x, mask, KAFFEE.recursion, burn_in=0, gradient=how).loss)(model)

    adjoint, autodiff = gradient("adjoint"), gradient("autodiff")
    for part in ("core", "shell"):
        np.testing.assert_allclose(flat(getattr(adjoint, part)), flat(getattr(autodiff, part)), rtol=1e-8, atol=1e-12)
    assert not flat(autodiff.climate).any()
    assert not flat(autodiff.embedding).any()


def test_a_lost_belief_restarts_from_the_climate(x64):
    core = eqx.tree_at(lambda c: c.A, make_model("linear").core, 3.0 * jnp.eye(LATENT))
    model = climate_model().replace(core=core)
    x = jnp.full((12, 1, OBSERVED), jnp.nan).at[0].set(0.5)
    swept = sweep(model, Recursion(), x, gate=make_gate())
    restarted = np.flatnonzero(np.asarray(swept.rows.restarted)[:, 0])
    assert len(restarted) > 1
    again = restarted[1]
    np.testing.assert_allclose(swept.rows.state_mean[again, 0], moments()[0], rtol=1e-9)
    np.testing.assert_allclose(swept.rows.predicted_state_std[again, 0], np.sqrt(np.diag(moments()[1])), rtol=1e-9)
    assert jax.tree.all(jax.tree.map(lambda a: bool(jnp.isfinite(a).all()), swept.rows))


def test_a_singular_climate_is_a_covariance_in_float32():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((LATENT, 2)) * np.geomspace(1e-3, 10.0, LATENT)[:, None]
    climate = Climate.from_moments(np.zeros(LATENT), root @ root.T)
    found = np.asarray(climate.moments()[1], np.float64)
    std = np.sqrt(np.diag(root @ root.T))
    np.testing.assert_allclose(found / np.outer(std, std), root @ root.T / np.outer(std, std), atol=1e-5)
    assert np.linalg.eigvalsh(found / np.outer(std, std)).min() > 0
    model = make_model("smooth", dtype=np.float32).replace(climate=climate)
    belief = start_belief(model, jnp.ones((WINDOWS, OBSERVED), jnp.float32), jnp.ones((WINDOWS, OBSERVED), bool))
    assert np.linalg.eigvalsh(np.asarray(belief.covariance / np.outer(std, std), np.float64)).min() > 0


def test_a_reading_that_only_the_climate_foresees_starts_the_belief_again(x64):
    model = climate_model()
    shell = Shell.from_std(np.full(LATENT, 1e-2), np.full(OBSERVED, 1e-2), np.float64)
    model = model.replace(shell=shell, core=make_model("linear").core)
    B, (m, _) = matrix_of(model.observation), moments()
    # a belief that is sure of itself, and a jump to the middle of the climate
    still = Belief(jnp.asarray(m + 10.0)[None], 1e-4 * jnp.eye(LATENT)[None])
    track = Track(still, jnp.ones(1, bool), jnp.zeros((1, OBSERVED), jnp.int32))
    x = jnp.asarray(B @ m)[None]
    after, row, _ = advance(model, Recursion(), make_gate(), track, x)
    expected = condition(model, np.asarray(x[0]))
    np.testing.assert_allclose(after.belief.mean[0], expected[0], rtol=1e-9, atol=1e-9)
    assert float(row.nll[0]) == pytest.approx(SURPRISE - expected[2], rel=1e-9)
    assert bool(row.restarted[0])
    assert not bool(row.fault[0])
    # the prediction that failed is not taken back
    np.testing.assert_allclose(row.predicted_state_mean[0], model.core(still.mean[0]), rtol=1e-9)
    # what it foresaw is no reason to start again
    good = advance(model, Recursion(), make_gate(), track, model.observation.observe(model.core(still.mean[0]))[None])
    assert not bool(good[1].restarted[0])
