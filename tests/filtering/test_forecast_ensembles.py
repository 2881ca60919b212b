"""Ensemble forecasts of a linear model, whose mean and covariance at every step are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from certification.truth import LATENT, OBSERVED, Weights, linear

from kaffee.filtering.gaussian import Belief
from kaffee.filtering.rollout import forecast_ensemble

MEMBERS, STEPS = 4000, 4
ERRORS = 5.0  # standard errors; with 120 numbers each, one in 10,000 runs of the tests would exceed them


def rotation():
    """A contraction that mixes all coordinates."""
    Q = np.linalg.qr(np.random.default_rng(2).standard_normal((LATENT, LATENT)))[0]
    return 0.9 * Q, np.linspace(-0.5, 0.5, LATENT)


def moments(model, mean, covariance):
    """Means (H, N) and covariances (H, N, N) of the observations of z' = A z + h + noise, x = z[:N] + noise."""
    A, h = rotation()
    Gamma, Lambda = (
        np.diag(np.exp(2 * np.asarray(s))) for s in (model.shell.log_process_std, model.shell.log_observation_std)
    )
    means, covariances = [], []
    for _ in range(STEPS):
        mean, covariance = A @ mean + h, A @ covariance @ A.T + Gamma
        means.append(mean[:OBSERVED])
        covariances.append(covariance[:OBSERVED, :OBSERVED] + Lambda)
    return np.array(means), np.array(covariances)


def belief(num_starts):
    rng = np.random.default_rng(3)
    root = 0.4 * rng.standard_normal((num_starts, LATENT, LATENT))
    return rng.standard_normal((num_starts, LATENT)), root @ root.transpose(0, 2, 1)


@pytest.mark.parametrize("kind", ["states", "beliefs"])
def test_a_linear_ensemble_has_the_moments_of_the_closed_form(kind, x64):
    A, h = rotation()
    model = linear(A, h, process=0.3, observation=0.4)
    mean, covariance = belief(2)
    if kind == "states":
        covariance = np.zeros_like(covariance)
    start = jnp.asarray(mean) if kind == "states" else Belief(jnp.asarray(mean), jnp.asarray(covariance))
    found = np.asarray(forecast_ensemble(model, start, STEPS, MEMBERS, key=jax.random.key(0)))
    assert found.shape == (MEMBERS, 2, STEPS, OBSERVED)
    for s in range(2):
        means, covariances = moments(model, mean[s], covariance[s])
        for t in range(STEPS):
            variances, members = np.diag(covariances[t]), found[:, s, t]
            assert (np.abs(members.mean(axis=0) - means[t]) < ERRORS * np.sqrt(variances / MEMBERS)).all()
            # the standard error of a sample covariance of Gaussians: sqrt((s_ii s_jj + s_ij^2) / K)
            error = np.sqrt((np.outer(variances, variances) + covariances[t] ** 2) / MEMBERS)
            assert (np.abs(np.cov(members.T) - covariances[t]) < ERRORS * error).all()


def test_members_and_starts_are_independent(x64):
    model = linear(np.zeros((LATENT, LATENT)), np.zeros(LATENT), process=1.0, observation=1.0)
    found = np.asarray(forecast_ensemble(model, jnp.zeros((2, LATENT)), STEPS, MEMBERS, key=jax.random.key(1)))
    columns = found.transpose(1, 2, 3, 0).reshape(-1, MEMBERS)  # (start, step, coordinate) over members
    between = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(between).max() < ERRORS / np.sqrt(MEMBERS)
    successive = np.corrcoef(columns[:, 1:].ravel(), columns[:, :-1].ravel())[0, 1]
    assert abs(successive) < ERRORS / np.sqrt(columns.size)


@pytest.mark.parametrize("kind", ["states", "beliefs"])
def test_the_key_alone_decides(kind, x64):
    model, (mean, covariance) = linear(*rotation()), belief(2)
    start = jnp.asarray(mean) if kind == "states" else Belief(jnp.asarray(mean), jnp.asarray(covariance))
    one, two, other = (forecast_ensemble(model, start, STEPS, MEMBERS, key=jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    assert np.abs(np.asarray(one - other)).mean() > 0.1


def test_a_belief_without_spread_is_a_state(x64):
    """Also where rounding has left an eigenvalue below zero."""
    model, (mean, _) = linear(*rotation()), belief(2)
    key, point = jax.random.key(0), jnp.broadcast_to(-1e-18 * jnp.eye(LATENT), (2, LATENT, LATENT))
    from_state = forecast_ensemble(model, jnp.asarray(mean), STEPS, MEMBERS, key=key)
    from_belief = forecast_ensemble(model, Belief(jnp.asarray(mean), point), STEPS, MEMBERS, key=key)
    np.testing.assert_allclose(from_belief, from_state, atol=1e-12)


def test_forecasts_step_through_the_exact_core(x64):
    """With hardly any noise the members follow the ReLU network itself."""
    weights = Weights()
    model = weights.model(process=1e-4, observation=1e-4)
    starts = np.random.default_rng(0).standard_normal((8, LATENT))
    found = np.asarray(forecast_ensemble(model, jnp.asarray(starts), 5, 6, key=jax.random.key(0)))
    for s, z in enumerate(starts):
        for t in range(5):
            z = weights.step(z)
            np.testing.assert_allclose(found[:, s, t], np.broadcast_to(z[:OBSERVED], (6, OBSERVED)), atol=5e-3)
