"""Lemma 1: its derivative against automatic differentiation, its sign under its assumption, and its limits."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from appendix import PROBLEMS, linear_problem, random_problem, rescaling_derivative, underdispersed
from hypothesis import given
from hypothesis.extra.numpy import arrays
from models import PROPERTY, make_problem

from kaffee.filtering.recursion import Recursion, step
from kaffee.theory.contraction import _Rescaled, anti_contraction, dispersed_directions, dispersion, measure_rescaling
from kaffee.theory.tracing import trace

FILTER = Recursion()


@eqx.filter_jit
def nll_along(dynamics, observations, run, s):
    """d NLL_t / ds of the real step along J -> s J, from the belief before it: what lemma 1 differentiates."""

    def along(s):
        rescaled = dynamics._replace(core=_Rescaled(dynamics.core, s))
        one = lambda b, x, m: step(FILTER, rescaled, observations.observation, b, x, m).innovation.nll  # noqa: E731
        return jax.vmap(one)(run.previous, observations.x, observations.mask)

    return jax.jvp(along, (s,), (jnp.ones_like(s),))[1]


@PROPERTY
@given(**PROBLEMS, s=st.floats(0.2, 2.0))
def test_the_derivative_is_that_of_the_real_step(x, process, noise, s, x64):
    dynamics, observations = random_problem(x, process, noise)
    run = trace(FILTER, dynamics, observations)
    found = np.asarray(anti_contraction(run))
    np.testing.assert_allclose(found, nll_along(dynamics, observations, run, jnp.ones(())), rtol=1e-8, atol=1e-8)
    A, v = run.transported(), run.innovation.residual
    C = run.innovation_covariance() - A
    along = rescaling_derivative(A, C, v[..., :, None] * v[..., None, :], jnp.asarray(s))
    expected = nll_along(dynamics, observations, run, jnp.asarray(s))
    np.testing.assert_allclose(along, expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(measure_rescaling(FILTER, dynamics, observations)[0], found[0], rtol=1e-8, atol=1e-8)


matrices = arrays(np.float64, (4, 3, 3), elements=st.floats(-1.0, 1.0))


def positive(root):
    return root @ np.swapaxes(root, -1, -2)


@PROPERTY
@given(A=matrices, C=matrices, more=matrices, s0=st.floats(0.1, 3.0), strict=st.integers(0, 3))
def test_an_underdispersed_model_is_not_rewarded_for_contracting(A, C, more, s0, strict, x64):
    A, C = positive(A) + 1e-3 * np.eye(3), positive(C) + 0.1 * np.eye(3)
    true = s0**2 * A + C + positive(more)
    true[strict] += 0.01 * np.eye(3)
    assert np.asarray(underdispersed(jnp.asarray(s0**2 * A + C), jnp.asarray(true + 1e-12 * np.eye(3)))).all()
    for s in s0 * np.array([1e-3, 0.3, 0.7, 1.0]):
        slopes = np.asarray(rescaling_derivative(*map(jnp.asarray, (A, C, true)), jnp.asarray(s)))
        assert (slopes <= 1e-12).all()
        assert slopes[strict] < 0.0
        assert slopes.sum() < 0.0


def test_outside_the_assumption_contraction_can_pay_even_if_errors_are_too_large_on_average(x64):
    """Underdispersed in one direction, overdispersed in the one that the Jacobian feeds."""
    A, C, true = np.diag([1.0, 0.0]), np.eye(2), np.diag([1.0, 50.0])
    Omega = A + C
    assert not bool(underdispersed(jnp.asarray(Omega), jnp.asarray(true)))
    assert np.trace(np.linalg.solve(Omega, true)) / 2 > 20  # mean normalised innovation squared
    assert float(rescaling_derivative(*map(jnp.asarray, (A, C, true)))) > 0.2


def scalar_run(a, q, r, q_model, r_model, *, num_windows=4000, num_steps=60, seed=0):
    """Data of a scalar system, and a model that knows a but not its noise."""
    rng = np.random.default_rng(seed)
    z, x = np.zeros(num_windows), []
    for _ in range(num_steps):
        z = a * z + np.sqrt(q) * rng.standard_normal(num_windows)
        x.append(z + np.sqrt(r) * rng.standard_normal(num_windows))
    return linear_problem([[a]], q_model, r_model, [[1e-6]], np.stack(x)[..., None])


def mean_and_error(values):
    each = np.asarray(values).mean(axis=0)
    return each.mean(), each.std(ddof=1) / np.sqrt(len(each))


def test_through_the_recursion_an_underdispersed_model_can_be_rewarded_for_contracting(x64):
    """The lemma holds gains and means fixed. Here Omega < Omega*, but the gain is too large: less transport pays."""
    a, q, r, q_model, r_model = 1.07, 0.07, 15.75, 0.48, 13.8
    dynamics, observations = scalar_run(a, q, r, q_model, r_model)
    truth = dynamics._replace(process_variance=jnp.full(1, q), observation_variance=jnp.full(1, r))
    settled = slice(30, None)
    model, true = trace(FILTER, dynamics, observations), trace(FILTER, truth, observations)
    Omega, Omega_true = (run.innovation_covariance()[settled, 0, 0, 0] for run in (model, true))
    assert (np.asarray(Omega) < np.asarray(Omega_true)).all()
    fixed = model.innovation_covariance() - model.transported()
    known = (model.transported(), fixed, true.innovation_covariance())
    expected = rescaling_derivative(*(m[settled, 0] for m in known))
    assert (np.asarray(expected) < 0).all()
    lemma, lemma_se = mean_and_error(anti_contraction(model)[settled])
    full, full_se = mean_and_error(measure_rescaling(FILTER, dynamics, observations)[settled])
    assert lemma + 3 * lemma_se < 0
    assert full - 3 * full_se > 0


def test_dispersion_tells_who_is_too_sure(x64):
    a, q, r = 0.9, 0.5, 0.5
    for factor, low, high in ((1.0, None, None), (0.5, 1.8, 2.2), (2.0, 0.4, 0.6)):
        run = trace(FILTER, *scalar_run(a, q, r, factor * q, factor * r, num_windows=500))
        found = dispersion(run)
        value, se = mean_and_error(found[..., 0])
        np.testing.assert_allclose(jnp.sum(run.innovation.whitened**2, axis=-1), found[..., 0], rtol=1e-9)
        if factor == 1.0:
            assert abs(value - 1.0) < 4 * se
        else:
            assert low < value < high
        directions = dispersed_directions(*map(np.asarray, (run.innovation.whitened, run.mask)))
        np.testing.assert_allclose(directions, [value], rtol=1e-9)


def test_missing_entries_do_not_count(x64):
    dynamics, observations = make_problem("smooth", "general", missing=0.4)
    run = trace(FILTER, dynamics, observations)
    found = dispersion(run)
    np.testing.assert_array_equal(np.isnan(found), ~np.asarray(observations.mask))
