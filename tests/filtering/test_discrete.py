"""Counts, binary readings, and noise of every reading, against quadrature, optimisers and textbook code."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import (
    array,
    directional_differences,
    inner,
    make_data,
    make_model,
    make_problem,
    random_direction,
    textbook_filter,
)
from scipy.optimize import minimize
from scipy.special import gammaln
from scipy.stats import poisson

from kaffee.errors import ConfigError
from kaffee.filtering.adjoint import adjoint_terms
from kaffee.filtering.filters import parse_filter
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import window_nll
from kaffee.filtering.recursion import Dynamics, Recursion, scan_terms, update
from kaffee.model.discrete import Discrete
from kaffee.model.maps import Linear
from kaffee.model.observation import LinearObservation

B = np.array([[1.0, 0.4], [-0.3, 0.8], [0.5, -1.0]])
MEAN, COVARIANCE = np.array([0.3, -0.2]), np.array([[0.5, 0.2], [0.2, 0.4]])
OFFSET, GAIN = np.array([0.5, 1.0, -0.3]), np.array([1.0, 0.7, 1.3])
COUNTS, BITS = np.array([2.0, 7.0, 0.0]), np.array([1.0, 0.0, 1.0])


def log_density(kind, x, s):
    eta = OFFSET + GAIN * s
    return x * eta - np.exp(eta) - gammaln(x + 1) if kind == "poisson" else x * eta - np.logaddexp(0, eta)


begin = eqx.filter_jit(lambda by, mean, covariance: by.start(mean, covariance))
one_update = eqx.filter_jit(update)
terms_of = eqx.filter_jit(scan_terms)


def condition(kind, spec, x, mask=(True, True, True)):
    """Update N(MEAN, COVARIANCE) by a row of readings."""
    by, likelihood = parse_filter(spec), Discrete(array(OFFSET), array(GAIN), kind)
    core = Linear(array(np.eye(2)), array(np.zeros(2)))
    belief = begin(by, array(MEAN[None]), array(COVARIANCE[None]))
    dynamics = Dynamics(core, array(np.zeros(2)), array(np.ones(3)), belief, discrete=likelihood)
    y, seen = likelihood.encode(array(x))[None], array([mask])
    return one_update(Recursion(filter=by), dynamics, LinearObservation(array(B)), belief, y, seen)


def integrate(kind, x, mask=(True, True, True)):
    """Compute -log p(x), mean and covariance of the state given x on a grid."""
    axis = np.linspace(-6.0, 6.0, 801)
    z = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    away = z - MEAN
    prior = -0.5 * np.einsum("ki,ij,kj->k", away, np.linalg.inv(COVARIANCE), away)
    prior -= 0.5 * np.log(np.linalg.det(2 * np.pi * COVARIANCE))
    joint = prior + log_density(kind, x, z @ B.T) @ np.asarray(mask, float)
    weights = np.exp(joint) * (axis[1] - axis[0]) ** 2
    total = weights.sum()
    mean = weights @ z / total
    return -np.log(total), mean, np.einsum("k,ki,kj->ij", weights, z - mean, z - mean) / total


@pytest.mark.parametrize(("kind", "x"), [("poisson", COUNTS), ("bernoulli", BITS)])
@pytest.mark.parametrize("spec", ["ekf", "lowrank:2", "ukf"])
def test_gaussian_filters_find_the_mode_and_laplace_evidence(kind, x, spec, x64):
    now = condition(kind, spec, x)
    precision = np.linalg.inv(COVARIANCE)

    def energy(z):
        return 0.5 * (z - MEAN) @ precision @ (z - MEAN) - log_density(kind, x, B @ z).sum()

    best = minimize(energy, MEAN, method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(now.filtered.mean[0], best.x, atol=1e-6)
    eta = OFFSET + GAIN * (B @ best.x)
    weight = np.exp(eta) if kind == "poisson" else 1 / (2 + 2 * np.cosh(eta))
    H = precision + (B.T * (GAIN**2 * weight)) @ B
    laplace = best.fun + 0.5 * np.log(np.linalg.det(COVARIANCE)) + 0.5 * np.log(np.linalg.det(H))
    assert float(now.innovation.nll[0]) == pytest.approx(laplace, abs=1e-6)
    np.testing.assert_allclose(now.filtered.moments().covariance[0], np.linalg.inv(H), atol=1e-6)
    # Laplace's own error, which documentation states.
    exact, mean, _ = integrate(kind, x)
    assert float(now.innovation.nll[0]) == pytest.approx(exact, abs=0.05)
    np.testing.assert_allclose(now.filtered.mean[0], mean, atol=0.15)


@pytest.mark.parametrize(("kind", "x"), [("poisson", COUNTS), ("bernoulli", BITS)])
def test_particles_are_exact(kind, x, x64):
    mask = (True, False, True)
    nll, mean, _ = integrate(kind, x, mask)
    runs = [condition(kind, f"particle:20000,seed={seed},resample_below=0", x, mask) for seed in range(5)]
    for found, true in (([r.innovation.nll[0] for r in runs], nll), ([r.filtered.mean[0] for r in runs], mean)):
        values = np.array(found)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        assert np.all(np.abs(values.mean(axis=0) - true) < 5.0 * error)


def test_what_is_not_read_costs_nothing_and_changes_nothing(x64):
    now = condition("poisson", "etkf:20", COUNTS, (False, False, False))
    np.testing.assert_allclose(now.innovation.nll, 0.0, atol=1e-9)
    np.testing.assert_allclose(now.filtered.mean, now.predicted.mean, atol=1e-9)


def make_count_model(kind="poisson"):
    model = make_model("smooth")
    discrete = Discrete(jnp.asarray(OFFSET[:2]), jnp.asarray(GAIN[:2]), kind)
    x, mask = make_data(rows=6, windows=2)
    drawn = np.random.default_rng(0).integers(0, 6 if kind == "poisson" else 2, x.shape)
    return model.replace(discrete=discrete), discrete.encode(jnp.asarray(drawn, float)), mask


@pytest.mark.parametrize(("kind", "spec"), [("poisson", "ekf"), ("bernoulli", "enkf:6")])
def test_the_gradient_of_counts_is_that_of_finite_differences(kind, spec, x64):
    model, y, mask = make_count_model(kind)
    recursion = Recursion(filter=parse_filter(spec))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss_and_gradient(core):
        return window_nll(model.replace(core=core), y, mask, recursion, burn_in=1).loss

    direction = random_direction(model.core, 1)
    gradient = loss_and_gradient(model.core)[1]
    expected = directional_differences(lambda core: loss_and_gradient(core)[0], model.core, direction, step=1e-6)
    assert inner(gradient, direction) == pytest.approx(expected, rel=1e-5)


def test_randomised_cumulative_probabilities_are_those_of_the_mixture():
    discrete = Discrete(jnp.zeros(1), jnp.ones(1), "poisson")
    x = np.array([0.0, 3.0, 11.0])[:, None]
    mean, variance = np.full((3, 1), 0.8), np.full((3, 1), 0.3)
    low, high, p = discrete.cumulative(discrete.encode(jnp.asarray(x)), jnp.asarray(mean), jnp.asarray(variance))
    rates = np.exp(0.8 + np.sqrt(0.3) * np.random.default_rng(0).standard_normal(200_000))
    np.testing.assert_allclose(high[:, 0], [poisson.cdf(k, rates).mean() for k in x[:, 0]], atol=3e-3)
    np.testing.assert_allclose(low[:, 0], [poisson.cdf(k - 1, rates).mean() for k in x[:, 0]], atol=3e-3)
    np.testing.assert_allclose(high - low, p, atol=1e-6)


def test_drawn_readings_come_back():
    for kind, wanted in (("poisson", 4.0), ("bernoulli", 0.8)):
        eta = np.log(4.0)
        discrete = Discrete(jnp.full(1, 0.2), jnp.full(1, 2.0), kind)
        signal = jnp.full((20_000, 1), (eta - 0.2) / 2.0)
        drawn = np.asarray(discrete.decode(discrete.draw(jax.random.key(0), signal)))
        assert np.array_equal(drawn, np.round(drawn))
        assert drawn.mean() == pytest.approx(wanted, abs=4 * float(drawn.std()) / 141)


@pytest.mark.parametrize("spec", ["ekf", "lowrank:5", "ukf"])
def test_noise_of_every_reading_is_that_of_the_textbook(spec, x64):
    dynamics, observations = make_problem("linear", missing=0.2)
    R = jnp.asarray(np.random.default_rng(0).uniform(0.1, 2.0, observations.x.shape))
    by = parse_filter(spec)
    ours = dynamics._replace(initial=begin(by, *dynamics.initial))
    terms = terms_of(Recursion(filter=by), ours, observations._replace(variance=R))
    A, h = (np.asarray(leaf) for leaf in jax.tree.leaves(dynamics.core))
    H, Gamma = np.asarray(observations.observation.matrix()), np.diag(dynamics.process_variance)
    for w in range(2):
        z, P = (np.asarray(each[w]) for each in dynamics.initial)
        for t in range(len(R)):
            nll, means, covariances = textbook_filter(
                lambda z: A @ z + h, lambda z: A, H, Gamma, np.diag(R[t, w]), z, P,
                observations.x[t : t + 1, w], observations.mask[t : t + 1, w],
            )  # fmt: skip
            z, P = means[0], covariances[0]
            assert float(terms.nll[t, w]) == pytest.approx(nll[0], rel=1e-8, abs=1e-9)


def test_the_adjoint_knows_which_noise_is_given(x64):
    dynamics, observations = make_problem("smooth")
    R = jnp.asarray(np.random.default_rng(0).uniform(0.1, 2.0, observations.x.shape)).at[::2].set(jnp.nan)
    given = observations._replace(variance=R)

    def loss(terms):
        return eqx.filter_jit(eqx.filter_grad(lambda d: jnp.sum(terms(d).nll)))(dynamics)

    ours = loss(lambda d: adjoint_terms(d, Recursion(), given))
    theirs = loss(lambda d: scan_terms(Recursion(), d, given))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_misuse_is_refused():
    with pytest.raises(ConfigError, match="likelihood"):
        Discrete(jnp.zeros(1), jnp.ones(1), "gamma")
    dynamics = Dynamics(None, None, None, None, discrete=Discrete(jnp.zeros(1), jnp.ones(1), "poisson"))
    with pytest.raises(ConfigError, match="no standard deviations"):
        update(Recursion(), dynamics, None, Belief(None, None), None, None, jnp.ones((1, 1)))
