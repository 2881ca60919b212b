"""Proposition 1 against automatic differentiation of the recursion itself."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from appendix import PROBLEMS, SIZE, linear_problem, pressure_by_transports, random_problem
from hypothesis import given
from models import OBSERVED, PROPERTY, STEPS, WINDOWS, make_problem

from kaffee.filtering.recursion import Recursion, scan_terms, step
from kaffee.theory.contraction import _Rescaled
from kaffee.theory.tracing import inner, trace
from kaffee.theory.volume import assimilation, pressure, transport_terms

FILTER, OPEN_LOOP = Recursion(), Recursion(assimilate=False)
BLIND, MASKING = Recursion(transport=False), Recursion(assimilate=False, transport=False)

problems = {**PROBLEMS, "size": SIZE}


def half_log_dets(innovation):
    return -jnp.sum(jnp.log(jnp.diagonal(innovation.inverse_factor, axis1=-2, axis2=-1)), axis=-1)


@eqx.filter_jit
def expansion(recursion, dynamics, observations, s):
    """1/2 log det Omega_t of the real recursion, and its derivative along J -> e^s J."""

    def along(s):
        def body(belief, inputs):
            core = _Rescaled(dynamics.core, jnp.exp(s))
            now = step(recursion, dynamics._replace(core=core), observations.observation, belief, *inputs)
            return now.filtered, half_log_dets(now.innovation)

        return jax.lax.scan(body, dynamics.initial, (observations.x, observations.mask))[1]

    return jax.jvp(along, (s,), (jnp.ones_like(s),))


@eqx.filter_jit
def local_expansion(dynamics, observation, run, x, mask):
    """The same derivative for every step alone, from the belief before it."""

    def along(s):
        core = dynamics._replace(core=_Rescaled(dynamics.core, jnp.exp(s)))
        return jax.vmap(lambda b, x, m: half_log_dets(step(FILTER, core, observation, b, x, m).innovation))(
            run.previous, x, mask
        )

    return jax.jvp(along, (jnp.zeros(()),), (jnp.ones(()),))[1]


@PROPERTY
@given(**problems, s=st.floats(-0.3, 0.3))
def test_the_derivative_of_the_log_determinant_is_that_of_proposition_1(x, process, noise, size, s, x64):
    dynamics, observations = random_problem(x, process, noise, size)
    run = trace(OPEN_LOOP, dynamics, observations)
    terms = transport_terms(run)
    for scale in (0.0, s):
        value, derivative = expansion(OPEN_LOOP, dynamics, observations, jnp.asarray(scale))
        by_transports = pressure_by_transports(terms, dynamics.observation_variance, jnp.asarray(scale))
        np.testing.assert_allclose(by_transports.sum(axis=0), derivative[-1], rtol=1e-8, atol=1e-8)
        assert (np.asarray(by_transports) >= 0.0).all()
        # Omega(s) = Lambda + sum e^{2ls} A_l; missing entries have a unit in Omega and Lambda in this sum
        weights = jnp.exp(2.0 * scale * jnp.arange(STEPS + 1.0))[:, None, None, None]
        Omega = jnp.sum(weights * terms, axis=0) + jnp.diag(dynamics.observation_variance)
        missing = jnp.sum((1.0 - run.present[-1]) * jnp.log(dynamics.observation_variance), axis=-1)
        np.testing.assert_allclose(0.5 * (jnp.linalg.slogdet(Omega)[1] - missing), value[-1], rtol=1e-8, atol=1e-8)
    assert (np.linalg.eigvalsh(terms) >= -1e-12 * np.trace(terms, axis1=-2, axis2=-1)[..., None]).all()


@PROPERTY
@given(**problems)
def test_pressure_is_the_derivative_at_every_horizon_and_bounded(x, process, noise, size, x64):
    dynamics, observations = random_problem(x, process, noise, size)
    _, derivative = expansion(OPEN_LOOP, dynamics, observations, jnp.zeros(()))
    found = pressure(trace(OPEN_LOOP, dynamics, observations))
    np.testing.assert_allclose(found.through, derivative, rtol=1e-8, atol=1e-8)
    seen = np.asarray(observations.mask.sum(axis=-1))
    assert (np.asarray(found.through) >= 0.0).all()
    assert (found.through <= np.arange(1, STEPS + 1)[:, None] * seen + 1e-9).all()
    assert (found.one_step <= seen + 1e-9).all()
    # strictly positive wherever something transported is observed
    transported = np.trace(trace(OPEN_LOOP, dynamics, observations).transported(), axis1=-2, axis2=-1)
    np.testing.assert_array_equal(found.through > 0, transported > 0)


@PROPERTY
@given(**problems)
def test_the_filtered_score_feels_one_step_only(x, process, noise, size, x64):
    dynamics, observations = random_problem(x, process, noise, size)
    run = trace(FILTER, dynamics, observations)
    found = pressure(run)
    local = local_expansion(dynamics, observations.observation, run, observations.x, observations.mask)
    np.testing.assert_allclose(found.one_step, local, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.through[0], found.one_step[0], rtol=1e-12)
    assert (found.through >= found.one_step - 1e-12).all()


@PROPERTY
@given(**problems)
def test_updates_contract_the_belief(x, process, noise, size, x64):
    run = trace(FILTER, *random_problem(x, process, noise, size))
    update = assimilation(run)
    assert (np.linalg.eigvalsh(run.predicted.covariance - run.filtered.covariance) >= -1e-12).all()
    assert (np.asarray(update.log_volume) <= 1e-9).all()
    assert ((np.asarray(update.trace_ratio) >= 0.0) & (np.asarray(update.trace_ratio) <= 1.0 + 1e-12)).all()
    log_det = [np.linalg.slogdet(np.asarray(b.covariance))[1] for b in (run.filtered, run.predicted)]
    np.testing.assert_allclose(update.log_volume, log_det[0] - log_det[1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("recursion", [BLIND, MASKING])
def test_without_transport_there_is_no_pressure(recursion, x64):
    dynamics, observations = make_problem("smooth", "general")
    run = trace(recursion, dynamics, observations)
    found = pressure(run)
    assert (np.asarray(found.one_step) == 0.0).all()
    assert (np.asarray(found.through) == 0.0).all()
    _, derivative = expansion(recursion, dynamics, observations, jnp.zeros(()))
    assert (np.asarray(derivative) == 0.0).all()
    terms = transport_terms(run, horizon=3)
    assert terms.shape == (4, WINDOWS, OBSERVED, OBSERVED)
    assert (np.asarray(terms[1:]) == 0.0).all()
    if not recursion.assimilate:
        expected = run.observed(run.predicted.covariance[2], run.present[2])
        np.testing.assert_allclose(terms[0], expected, rtol=1e-12)


def test_in_a_filter_with_constant_jacobians_the_pressure_is_that_of_the_whole_recursion(x64):
    dynamics, observations = make_problem("hard", "general")
    _, derivative = expansion(FILTER, dynamics, observations, jnp.zeros(()))
    found = pressure(trace(FILTER, dynamics, observations))
    np.testing.assert_allclose(found.through, derivative, rtol=1e-8, atol=1e-8)


def test_assimilation_localises_the_pressure_of_an_expanding_core(x64):
    """In open loop every step adds the number of observed entries; in the filter the pressure settles."""
    problem = linear_problem(1.5 * np.eye(2), 0.1, 0.1, 0.1 * np.eye(2), np.zeros((40, 1, 2)))
    free, here = (np.asarray(pressure(trace(kind, *problem)).through[:, 0]) for kind in (OPEN_LOOP, FILTER))
    np.testing.assert_allclose(np.diff(free)[-5:], 2.0, rtol=1e-3)
    np.testing.assert_allclose(here[-5:], here[-1], rtol=1e-6)
    assert free[-1] > 20 * here[-1]


def test_the_trace_is_the_recursion(x64):
    dynamics, observations = make_problem("smooth", "general")
    run = trace(FILTER, dynamics, observations)
    terms = scan_terms(FILTER, dynamics, observations)
    np.testing.assert_allclose(run.innovation.nll, terms.nll, rtol=1e-12)
    np.testing.assert_allclose(run.filtered.covariance[-1], terms.final.covariance, rtol=1e-12)
    np.testing.assert_allclose(
        run.precision() @ run.innovation_covariance(), np.eye(OBSERVED) * np.ones((7, 3, 1, 1)), atol=1e-10
    )
    np.testing.assert_allclose(inner(run.precision(), run.innovation_covariance()), OBSERVED, rtol=1e-10)
    # Sigma_filt = (I - K B) Sigma_pred
    np.testing.assert_allclose(run.remaining() @ run.predicted.covariance, run.filtered.covariance, atol=1e-10)
