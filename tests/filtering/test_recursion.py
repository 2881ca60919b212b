"""The recursion against independent oracles, its symmetries, exact masking, and what it reports when it breaks."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import (
    MAPS,
    OBSERVED,
    STEPS,
    SWITCHES,
    WINDOWS,
    gaussian_nll,
    iterate,
    joint_density,
    make_belief,
    make_data,
    make_model,
    make_problem,
    matrix_of,
    run,
    textbook_filter,
)
from scipy.stats import multivariate_normal

from kaffee.filtering.recursion import Dynamics, Observations, Recursion, arrange_observations, predict, scan_terms
from kaffee.model.maps import Linear
from kaffee.model.observation import LinearObservation

FILTER = Recursion()
OPEN_LOOP = Recursion(assimilate=False)


def linear_parts(dynamics, observations):
    """(A, h, B, Gamma, Lambda) as NumPy."""
    return (
        np.asarray(dynamics.core.A),
        np.asarray(dynamics.core.h),
        matrix_of(observations.observation),
        np.diag(dynamics.process_variance),
        np.diag(dynamics.observation_variance),
    )


def textbook_window(w, dynamics, observations, recursion=FILTER, step=None, jacobian=None):
    """`textbook_filter` of window w."""
    return textbook_filter(
        step or dynamics.core,
        jacobian or dynamics.core.jacobian,
        matrix_of(observations.observation),
        np.diag(dynamics.process_variance),
        np.diag(dynamics.observation_variance),
        *(a[w] for a in dynamics.initial),
        observations.x[:, w],
        observations.mask[:, w],
        assimilate=recursion.assimilate,
        transport=recursion.transport,
    )


# --- oracles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("observation", MAPS)
@pytest.mark.parametrize(
    ("kind", "recursion"), [("linear", FILTER), ("linear", OPEN_LOOP), *(("smooth", r) for r in SWITCHES)]
)
def test_equals_textbook_filter(kind, recursion, observation, x64):
    dynamics, observations = make_problem(kind, observation)
    result = run(recursion, dynamics, observations)
    for w in range(WINDOWS):
        nll, means, covariances = textbook_window(w, dynamics, observations, recursion)
        # 1e-10: the relative jitter is 1e-12 and a few steps of rounding come on top
        np.testing.assert_allclose(result.nll[:, w], nll, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(result.filtered.mean[:, w], means, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(result.filtered.covariance[:, w], covariances, rtol=1e-10, atol=1e-10)
    assert (np.asarray(result.faults) == 0).all()


def test_terms_are_those_of_the_steps(x64):
    dynamics, observations = make_problem("linear")
    result, terms = run(FILTER, dynamics, observations), scan_terms(FILTER, dynamics, observations)
    np.testing.assert_allclose(terms.nll, result.nll, rtol=1e-13)
    np.testing.assert_array_equal(terms.faults, result.faults)
    np.testing.assert_allclose(terms.final.mean, result.filtered.mean[-1], rtol=1e-12)
    np.testing.assert_allclose(terms.final.covariance, result.filtered.covariance[-1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("observation", MAPS)
def test_innovations_add_up_to_the_joint_density(observation, missing, x64):
    dynamics, observations = make_problem("linear", observation, missing=missing)
    result = run(FILTER, dynamics, observations)
    for w in range(WINDOWS):
        start = (a[w] for a in dynamics.initial)
        mean, covariance = joint_density(*linear_parts(dynamics, observations), *start, STEPS)
        seen = np.asarray(observations.mask[:, w]).ravel()
        x = np.asarray(observations.x[:, w]).ravel()[seen]
        joint = multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)])
        assert float(jnp.sum(result.nll[:, w])) == pytest.approx(-joint.logpdf(x), rel=1e-10)


@pytest.mark.parametrize("observation", MAPS)
def test_open_loop_scores_the_marginals_of_the_free_run(observation, x64):
    dynamics, observations = make_problem("linear", observation)
    result = run(OPEN_LOOP, dynamics, observations)
    for w in range(WINDOWS):
        start = (a[w] for a in dynamics.initial)
        mean, covariance = joint_density(*linear_parts(dynamics, observations), *start, STEPS)
        for t in range(STEPS):
            seen = np.flatnonzero(observations.mask[t, w]) + t * OBSERVED
            x = np.asarray(observations.x[:, w]).ravel()[seen]
            marginal = gaussian_nll(x, mean[seen], covariance[np.ix_(seen, seen)])
            assert float(result.nll[t, w]) == pytest.approx(marginal, rel=1e-10, abs=1e-10)


def test_open_loop_mean_is_the_free_run(x64):
    dynamics, observations = make_problem("smooth")
    result = run(OPEN_LOOP, dynamics, observations)
    for w in range(WINDOWS):
        states = iterate(dynamics.core, dynamics.initial.mean[w], STEPS)
        np.testing.assert_allclose(result.predicted.mean[:, w], states, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(result.predicted.mean, result.filtered.mean)


@pytest.mark.parametrize("kind", ["smooth", "mlp"])
def test_equals_dynamax(kind, x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dynamax.nonlinear_gaussian_ssm import ParamsNLGSSM, extended_kalman_filter

    dynamics, observations = make_problem(kind, "general", missing=0.0)
    result = run(FILTER, dynamics, observations)
    B = observations.observation.B

    @jax.jit
    @jax.vmap
    def dynamax_filter(mean, covariance, x):
        params = ParamsNLGSSM(
            initial_mean=mean,
            initial_covariance=covariance,
            dynamics_function=dynamics.core,
            dynamics_covariance=jnp.diag(dynamics.process_variance),
            emission_function=lambda z: B @ z,
            emission_covariance=jnp.diag(dynamics.observation_variance),
        )
        posterior = extended_kalman_filter(params, x)
        return posterior.marginal_loglik, posterior.filtered_means, posterior.filtered_covariances

    # dynamax starts from the *predicted* belief of the first observation
    first = predict(dynamics.core, dynamics.process_variance, dynamics.initial, transport=True)
    with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
        warnings.simplefilter("ignore")
        likelihood, means, covariances = dynamax_filter(*first, jnp.swapaxes(observations.x, 0, 1))
    # dynamax adds 1e-9 to the diagonal of what it inverts for its gain
    np.testing.assert_allclose(-likelihood, jnp.sum(result.nll, axis=0), rtol=1e-8)
    np.testing.assert_allclose(jnp.swapaxes(means, 0, 1), result.filtered.mean, atol=1e-7)
    np.testing.assert_allclose(jnp.swapaxes(covariances, 0, 1), result.filtered.covariance, atol=1e-7)


def test_linearises_at_the_filtered_mean(x64):
    """A filter that linearises at the forecast has another covariance; one known library did."""
    dynamics, _ = make_problem("smooth")
    z, P = dynamics.initial
    predicted = predict(dynamics.core, dynamics.process_variance, dynamics.initial, transport=True)
    J = np.asarray(jax.vmap(dynamics.core.jacobian)(z))
    expected = J @ np.asarray(P) @ np.swapaxes(J, 1, 2) + np.diag(dynamics.process_variance)
    np.testing.assert_allclose(predicted.covariance, expected, rtol=1e-12)
    elsewhere = np.asarray(jax.vmap(dynamics.core.jacobian)(predicted.mean))
    assert np.abs(elsewhere - J).max() > 1e-2


def test_straight_through_filter_has_hard_means_and_smooth_covariances(x64):
    dynamics, observations = make_problem("straight_through")
    hard, smooth = dynamics.core.with_gate("hard"), dynamics.core.with_gate("smooth")
    filtered = run(FILTER, dynamics, observations).filtered
    for w in range(WINDOWS):
        _, means, covariances = textbook_window(w, dynamics, observations, step=hard, jacobian=smooth.jacobian)
        np.testing.assert_allclose(filtered.mean[:, w], means, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(filtered.covariance[:, w], covariances, rtol=1e-10, atol=1e-10)


def test_more_observations_than_latent_coordinates(x64):
    rng = np.random.default_rng(0)
    core = Linear(jnp.asarray(0.4 * rng.standard_normal((2, 2))), jnp.asarray(rng.standard_normal(2)))
    belief = make_belief(windows=1, latent_dim=2)
    dynamics = Dynamics(core, jnp.full(2, 0.2), jnp.full(4, 0.3), belief)
    x, B = jnp.asarray(rng.standard_normal((1, 4, 4))), jnp.asarray(rng.standard_normal((4, 2)))
    observations = arrange_observations(x, jnp.ones(x.shape, bool), LinearObservation(B))
    mean, covariance = joint_density(*linear_parts(dynamics, observations), *(a[0] for a in belief), 4)
    expected = -multivariate_normal(mean, covariance).logpdf(np.asarray(x).ravel())
    assert float(jnp.sum(run(FILTER, dynamics, observations).nll)) == pytest.approx(expected, rel=1e-10)


# --- missing values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e30])
def test_what_a_missing_entry_holds_never_enters(junk, x64):
    x, mask = make_data()
    observation = make_model("smooth").observation
    clean, other = (arrange_observations(jnp.where(mask, x, value), mask, observation) for value in (0.0, junk))
    np.testing.assert_array_equal(clean.x, other.x)
    np.testing.assert_array_equal(np.swapaxes(clean.x, 0, 1)[np.asarray(mask)], x[mask])


@pytest.mark.parametrize("observation", MAPS)
def test_a_step_without_observations_is_pure_prediction(observation, x64):
    dynamics, observations = make_problem("smooth", observation)
    nothing = observations._replace(mask=jnp.zeros_like(observations.mask))
    result, free = (run(recursion, dynamics, nothing) for recursion in (FILTER, OPEN_LOOP))
    assert (np.asarray(result.nll) == 0.0).all()
    np.testing.assert_array_equal(result.filtered.mean, result.predicted.mean)
    np.testing.assert_array_equal(result.filtered.covariance, result.predicted.covariance)
    np.testing.assert_allclose(result.filtered.covariance, free.filtered.covariance, rtol=1e-13, atol=1e-15)


def test_a_missing_coordinate_is_a_missing_row_of_the_map(x64):
    dynamics, observations = make_problem("smooth", "general", missing=0.0)
    mask = jnp.zeros_like(observations.mask).at[..., 1].set(True)
    one_of_two = run(FILTER, dynamics, observations._replace(mask=mask))
    reduced = dynamics._replace(observation_variance=dynamics.observation_variance[1:])
    B = LinearObservation(observations.observation.B[1:])
    only_one = run(FILTER, reduced, Observations(observations.x[..., 1:], mask[..., 1:], B))
    for a, b in zip(jax.tree.leaves(one_of_two), jax.tree.leaves(only_one), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
