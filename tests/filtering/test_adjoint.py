"""The hand-derived adjoint = plain automatic differentiation = finite differences.

These tests run without compilation (`jax.disable_jit`): a few steps of small windows for every core and switch cost
less than compiling each of the programs would.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import (
    CORES,
    MAPS,
    SWITCHES,
    directional_differences,
    flat,
    inner,
    make_problem,
    random_direction,
    symmetric_start,
)

from kaffee.filtering.adjoint import adjoint_terms
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Observations, Recursion, scan_terms

T, W = 2, 2
CASES = [(kind, recursion, MAPS[(i + j) % 2]) for i, kind in enumerate(CORES) for j, recursion in enumerate(SWITCHES)]


def problem(kind, observation="projection", seed=0):
    """A problem of W windows and T steps; one step has no data, two have half of it, one is complete."""
    dynamics, observations = make_problem(kind, observation, missing=0.0, seed=seed)
    mask = jnp.asarray([[[True, False], [False, False]], [[True, True], [False, True]]])
    small = Observations(observations.x[:T, :W], mask, observations.observation)
    return dynamics._replace(initial=Belief(*(a[:W] for a in dynamics.initial))), small


def by_adjoint(recursion, dynamics, observations):
    return adjoint_terms(dynamics, recursion, observations)


def scalar(terms_of, recursion, observations, *, on_nll=True, on_final=True):
    """A function of `dynamics` that weighs every output differently, the final belief among them."""
    rng = np.random.default_rng(5)
    weights, mean_bar, covariance_bar = (
        jnp.asarray(rng.standard_normal(shape)) for shape in ((T, W), (W, 5), (W, 5, 5))
    )

    def value(dynamics):
        terms = terms_of(recursion, dynamics, observations)
        total = jnp.sum(weights * terms.nll) if on_nll else jnp.zeros(())
        if on_final:
            total = total + jnp.sum(mean_bar * terms.final.mean)
            total = total + jnp.sum(covariance_bar * terms.final.covariance)
        return total

    return value


@pytest.mark.parametrize(("kind", "recursion", "observation"), CASES)
def test_adjoint_is_autodiff_is_finite_differences(kind, recursion, observation, x64):
    dynamics, observations = problem(kind, observation)
    of_adjoint = scalar(by_adjoint, recursion, observations)
    of_autodiff = scalar(scan_terms, recursion, observations)
    with jax.disable_jit():
        value, adjoint = eqx.filter_value_and_grad(of_adjoint)(dynamics)
        expected, autodiff = eqx.filter_value_and_grad(of_autodiff)(dynamics)
        assert float(value) == pytest.approx(float(expected), rel=1e-13)
        scale = np.abs(flat(autodiff)).max()
        for name in ("core", "process_variance", "observation_variance"):
            ours, theirs = flat(getattr(adjoint, name)), flat(getattr(autodiff, name))
            assert np.abs(theirs).max() > 0
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * scale, err_msg=name)
        np.testing.assert_allclose(adjoint.initial.mean, autodiff.initial.mean, rtol=1e-9, atol=1e-9 * scale)
        # a covariance moves symmetrically, so that only this part of its cotangent means anything
        C = autodiff.initial.covariance
        np.testing.assert_allclose(adjoint.initial.covariance, 0.5 * (C + C.mT), rtol=1e-9, atol=1e-9 * scale)
        if kind == "straight_through":  # its gradient is not the derivative of its value, on purpose
            return
        direction = random_direction(dynamics, seed=1)
        difference = directional_differences(of_adjoint, dynamics, direction)
        # central differences of step 1e-5: about 1e-10 of the third derivative, 1e-11 of rounding
        size = np.linalg.norm(flat(adjoint)) * np.linalg.norm(flat(direction))
        assert inner(adjoint, direction) == pytest.approx(difference, rel=1e-6, abs=1e-8 * size)


@pytest.mark.parametrize("part", ["core", "process_variance", "observation_variance", "mean", "covariance"])
def test_every_part_alone_matches_finite_differences(part, x64):
    recursion = Recursion()
    dynamics, observations = problem("mlp", "general", seed=1)
    of_adjoint = scalar(by_adjoint, recursion, observations)
    everything = random_direction(dynamics, seed=2)
    still = jax.tree.map(jnp.zeros_like, everything)
    if part in ("mean", "covariance"):
        moving = still.initial._replace(**{part: getattr(everything.initial, part)})
        direction = still._replace(initial=moving)
    else:
        direction = still._replace(**{part: getattr(everything, part)})
    with jax.disable_jit():
        gradient = eqx.filter_grad(of_adjoint)(dynamics)
        difference = directional_differences(of_adjoint, dynamics, direction)
    assert inner(gradient, direction) == pytest.approx(difference, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("kind", ["smooth", "mlp"])
@pytest.mark.parametrize("recursion", SWITCHES[:2])
def test_frozen_core_leaves_the_gradient_of_the_rest(kind, recursion, x64):
    dynamics, observations = problem(kind)
    value = scalar(by_adjoint, recursion, observations)
    with jax.disable_jit():
        everything = eqx.filter_grad(value)(dynamics)
        rest = eqx.filter_grad(lambda d: value(d._replace(core=dynamics.core)))(dynamics)
    assert (flat(rest.core) == 0.0).all()
    for name in ("process_variance", "observation_variance", "initial"):
        # the Hessian products of a core without parameters are summed in another order
        np.testing.assert_allclose(flat(getattr(rest, name)), flat(getattr(everything, name)), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("on_nll", "on_final"), [(True, False), (False, True)])
def test_either_output_alone_can_be_differentiated(on_nll, on_final, x64):
    dynamics, observations = problem("smooth")
    with jax.disable_jit():
        adjoint, autodiff = (
            eqx.filter_grad(scalar(f, Recursion(), observations, on_nll=on_nll, on_final=on_final))(dynamics)
            for f in (by_adjoint, scan_terms)
        )
    ours, theirs = flat(symmetric_start(adjoint)), flat(symmetric_start(autodiff))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_no_data_no_gradient(x64):
    dynamics, observations = problem("smooth")
    nothing = observations._replace(mask=jnp.zeros_like(observations.mask))
    with jax.disable_jit():
        gradient = eqx.filter_grad(scalar(by_adjoint, Recursion(), nothing, on_final=False))(dynamics)
    assert (flat(gradient) == 0.0).all()


def test_values_that_are_not_observed_have_no_influence(x64):
    """`x` where the mask is False is multiplied by nothing, in the value and in every cotangent."""
    dynamics, observations = problem("smooth", "general")
    results = []
    with jax.disable_jit():
        for junk in (0.0, 1e30):
            filled = observations._replace(x=jnp.where(observations.mask, observations.x, junk))
            results.append(eqx.filter_value_and_grad(scalar(by_adjoint, Recursion(), filled))(dynamics))
    assert float(results[0][0]) == float(results[1][0])
    np.testing.assert_array_equal(flat(results[0][1]), flat(results[1][1]))


def test_gradient_with_respect_to_data_is_refused_rather_than_wrong(x64):
    dynamics, observations = problem("smooth")

    def value(x):
        return jnp.sum(adjoint_terms(dynamics, Recursion(), observations._replace(x=x)).nll)

    with pytest.raises(RuntimeError, match="cannot be autodifferentiated"):
        jax.grad(value)(observations.x)
