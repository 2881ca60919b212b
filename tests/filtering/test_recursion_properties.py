"""Properties of the recursion over random inputs, its precision and its faults."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from models import (
    LATENT,
    OBSERVED,
    PROPERTY,
    STEPS,
    SWITCHES,
    WINDOWS,
    make_belief,
    make_core,
    make_data,
    make_model,
    make_problem,
    run,
)

from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import make_dynamics
from kaffee.filtering.recursion import (
    _ADVICE,
    QUANTITIES,
    Dynamics,
    Observations,
    Outcome,
    Recursion,
    arrange_observations,
    decode_outcome,
    locate_fault,
)
from kaffee.model.maps import Linear
from kaffee.model.observation import LinearObservation, Projection
from kaffee.model.statespace import Shell
from kaffee.model.wrappers import Custom

FILTER = Recursion()
OPEN_LOOP = Recursion(assimilate=False)


# --- properties -------------------------------------------------------------------------------------------------

values = st.floats(-3.0, 3.0)
log_std = st.floats(-4.0, 2.0)


@PROPERTY
@given(
    x=arrays(np.float64, (STEPS, WINDOWS, OBSERVED), elements=values),
    mask=arrays(np.bool_, (STEPS, WINDOWS, OBSERVED)),
    process=arrays(np.float64, LATENT, elements=log_std),
    noise=arrays(np.float64, OBSERVED, elements=log_std),
    size=st.floats(0.1, 3.0),
)
def test_covariances_are_symmetric_positive_and_shrink_when_assimilating(x, mask, process, noise, size, x64):
    model = make_model("smooth", "general")
    core = eqx.tree_at(lambda c: c.W, model.core, size * model.core.W)
    model = model.replace(core=core, shell=Shell(jnp.asarray(process), jnp.asarray(noise)))
    dynamics = make_dynamics(model, make_belief())
    observations = Observations(jnp.asarray(x), jnp.asarray(mask), model.observation)
    result = run(FILTER, dynamics, observations)
    assert np.isfinite(result.nll).all()
    P, P_filt = (np.asarray(belief.covariance) for belief in (result.predicted, result.filtered))
    scale = np.trace(P, axis1=-2, axis2=-1)[..., None]
    for X in (P, P_filt):
        assert (np.abs(X - np.swapaxes(X, -1, -2)) <= 1e-14 * scale[..., None]).all()
        assert (np.linalg.eigvalsh(X) >= -1e-13 * scale).all()
    assert (np.linalg.eigvalsh(P - P_filt) >= -1e-13 * scale).all()


@PROPERTY
@given(
    x=arrays(np.float64, (STEPS, WINDOWS, OBSERVED), elements=values),
    size=st.floats(-2.0, 2.0),
    assimilate=st.booleans(),
)
def test_covariance_without_transport_knows_neither_core_nor_data(x, size, assimilate, x64):
    recursion = Recursion(assimilate=assimilate, transport=False)
    dynamics, observations = make_problem("smooth")
    reference = run(recursion, dynamics, observations)
    core = jax.tree.map(lambda a: size * a, dynamics.core)
    other = run(recursion, dynamics._replace(core=core), observations._replace(x=jnp.asarray(x)))
    np.testing.assert_array_equal(other.filtered.covariance, reference.filtered.covariance)


@PROPERTY
@given(order=st.permutations(range(WINDOWS)), seed=st.integers(0, 9))
def test_windows_do_not_know_their_order(order, seed, x64):
    dynamics, observations = make_problem("smooth", seed=seed)
    result = run(FILTER, dynamics, observations)
    order = np.array(order)
    permuted = run(
        FILTER,
        dynamics._replace(initial=Belief(*(a[order] for a in dynamics.initial))),
        observations._replace(x=observations.x[:, order], mask=observations.mask[:, order]),
    )
    for a, b in zip(jax.tree.leaves(permuted), jax.tree.leaves(result), strict=True):
        np.testing.assert_allclose(a, b[:, order], rtol=1e-12, atol=1e-12)


def test_a_batch_is_its_windows_one_at_a_time(x64):
    dynamics, observations = make_problem("smooth")
    together = run(FILTER, dynamics, observations)
    for w in range(WINDOWS):
        alone = run(
            FILTER,
            dynamics._replace(initial=Belief(*(a[w : w + 1] for a in dynamics.initial))),
            observations._replace(x=observations.x[:, w : w + 1], mask=observations.mask[:, w : w + 1]),
        )
        # matrix products of another shape round differently
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(a[:, 0], b[:, w], rtol=1e-12, atol=1e-12)


@PROPERTY
@given(units=arrays(np.float64, OBSERVED, elements=st.floats(1e-3, 1e3)), recursion=st.sampled_from(SWITCHES))
def test_units_of_the_observations_cost_exactly_their_logarithm(units, recursion, x64):
    dynamics, observations = make_problem("smooth", "general")
    result = run(recursion, dynamics, observations)
    D = jnp.asarray(units)
    B = LinearObservation(D[:, None] * observations.observation.B)
    scaled = dynamics._replace(observation_variance=D**2 * dynamics.observation_variance)
    other = run(recursion, scaled, Observations(observations.x * D, observations.mask, B))
    volume = jnp.sum(jnp.where(observations.mask, jnp.log(D), 0.0), axis=-1)
    # the jitter, 1e-12 of the mean variance, is the one thing that knows units: variances differ by up to 300
    np.testing.assert_allclose(other.nll, result.nll + volume, rtol=0, atol=1e-8)
    np.testing.assert_allclose(other.filtered.mean, result.filtered.mean, rtol=0, atol=1e-8)


# --- precision and faults ---------------------------------------------------------------------------------------


def test_asymmetry_of_rounding_does_not_grow():
    """P - C'C never corrects an antisymmetric part, and an expanding core amplifies it until Omega breaks."""
    rng = np.random.default_rng(0)
    M, N, T = 6, 3, 3000
    rotation = np.linalg.qr(rng.standard_normal((M, M)))[0]
    core = Linear(jnp.asarray(1.02 * rotation, jnp.float32), jnp.zeros(M))
    initial = Belief(jnp.zeros((1, M)), jnp.eye(M)[None])
    dynamics = Dynamics(core, jnp.full(M, 0.01), jnp.full(N, 0.01), initial)
    observations = Observations(jnp.zeros((T, 1, N)), jnp.ones((T, 1, N), bool), Projection(N, M))
    result = run(FILTER, dynamics, observations)
    assert (np.asarray(result.faults) == 0).all()
    P = np.asarray(result.filtered.covariance[-1, 0])
    assert np.abs(P - P.T).max() <= 1e-6 * np.trace(P)
    assert np.linalg.eigvalsh(P)[0] > 0


wild = st.floats(-100.0, 100.0, width=32)


@PROPERTY
@given(
    process=arrays(np.float32, LATENT, elements=wild),
    noise=arrays(np.float32, OBSERVED, elements=wild),
    log_size=st.floats(-6.0, 12.0),
    log_data=st.floats(-10.0, 18.0),
    recursion=st.sampled_from([FILTER, OPEN_LOOP]),
)
def test_never_a_silent_nan(process, noise, log_size, log_data, recursion):
    """Any finite parameters in float32: the result is finite, or a fault names the first quantity that is not."""
    model = make_model("straight_through", dtype=np.float32)
    core = jax.tree.map(lambda a: a * jnp.float32(10.0**log_size), model.core)
    model = model.replace(core=core, shell=Shell(jnp.asarray(process), jnp.asarray(noise)))
    x, mask = make_data(dtype=np.float32)
    observations = arrange_observations(x[:, 1:] * jnp.float32(10.0**log_data), mask[:, 1:], model.observation)
    Gamma = jnp.diag(model.shell.process_variance())
    initial = Belief(jnp.ones((WINDOWS, LATENT)), jnp.broadcast_to(Gamma, (WINDOWS, LATENT, LATENT)))
    result = run(recursion, make_dynamics(model, initial), observations)
    faults = np.asarray(result.faults)
    for w in range(WINDOWS):
        clean = STEPS if not faults[:, w].any() else int(np.argmax(faults[:, w] > 0))
        for array in jax.tree.leaves((result.nll, result.predicted, result.filtered)):
            assert np.isfinite(array[:clean, w]).all()
    outcome = decode_outcome(locate_fault(result.faults))
    assert outcome.ok == (not faults.any())
    if not outcome.ok:
        assert faults[outcome.step - 1, outcome.window] == QUANTITIES.index(outcome.quantity)
        assert (faults[: outcome.step - 1] == 0).all()


def faulty(change, recursion):
    """The outcome of a small float32 problem after `change` to (dynamics, x)."""
    core = Linear(0.5 * jnp.eye(2), jnp.zeros(2))
    initial = Belief(jnp.ones((2, 2)), jnp.broadcast_to(jnp.eye(2), (2, 2, 2)))
    dynamics = Dynamics(core, jnp.full(2, 0.1), jnp.full(1, 0.1), initial)
    dynamics, x = change(dynamics, jnp.ones((4, 2, 1), jnp.float32))
    observations = Observations(x, jnp.ones(x.shape, bool), Projection(1, 2))
    return decode_outcome(locate_fault(run(recursion, dynamics, observations).faults))


def blow_up_mean(dynamics, x):
    """A hidden coordinate leaves float32, from 3e37 by a factor of 4 per step."""
    start = dynamics.initial.mean.at[1, 1].set(3e37)
    core = Linear(jnp.diag(jnp.array([0.5, 4.0])), jnp.zeros(2))
    return dynamics._replace(core=core, initial=dynamics.initial._replace(mean=start)), x


def blow_up_covariance(dynamics, x):
    """A variance leaves float32, by a factor of 1e26 per step, while the mean stays 0."""
    core = Linear(jnp.diag(jnp.array([1e-3, 1e13])), jnp.zeros(2))
    start = dynamics.initial._replace(mean=jnp.zeros((2, 2)))
    return dynamics._replace(core=core, initial=start), x


def indefinite(dynamics, x):
    covariance = dynamics.initial.covariance.at[1, 0, 0].set(-10.0)
    return dynamics._replace(initial=dynamics.initial._replace(covariance=covariance)), x


def outlier(dynamics, x):
    return dynamics, x.at[2, 1, 0].set(1e25)


@pytest.mark.parametrize(
    ("change", "recursion", "step_number", "window", "quantity"),
    [
        (blow_up_mean, OPEN_LOOP, 2, 1, "predicted mean"),
        (blow_up_covariance, OPEN_LOOP, 2, 0, "predicted covariance"),
        (indefinite, FILTER, 1, 1, "innovation covariance"),
        (outlier, FILTER, 3, 1, "likelihood"),
    ],
)
def test_faults_name_quantity_step_and_window(change, recursion, step_number, window, quantity):
    outcome = faulty(change, recursion)
    assert outcome == Outcome(step_number, window, quantity)
    assert str(outcome) == (
        f"the {quantity} became non-finite at step {step_number} of window {window}: {_ADVICE[quantity]}"
    )


def test_no_fault_is_a_sentence_too():
    outcome = faulty(lambda dynamics, x: (dynamics, x), FILTER)
    assert outcome.ok
    assert str(outcome) == "all values are finite"
    assert set(_ADVICE) == set(QUANTITIES) - {""}


def test_earliest_step_wins_over_earlier_window(x64):
    faults = jnp.zeros((4, 3), jnp.int32).at[3, 0].set(1).at[1, 2].set(4).at[1, 1].set(2)
    assert locate_fault(faults).tolist() == [2, 1, 2]
    assert decode_outcome(locate_fault(jnp.zeros((4, 3), jnp.int32))).ok


# --- compilation ------------------------------------------------------------------------------------------------


def test_same_shapes_are_traced_once(x64):
    calls = []

    class Counted(eqx.Module):
        W: jax.Array

        def __call__(self, z):
            calls.append(z)
            return jnp.tanh(self.W @ z)

    counts = []
    for seed in (0, 1):
        core = Custom(Counted(make_core("linear", seed=seed).A), LATENT)
        dynamics, observations = make_problem(core, seed=seed)
        run(FILTER, dynamics, observations)
        counts.append(len(calls))
    assert counts[0] > 0
    assert counts[1] == counts[0]
