"""The recursion against independent oracles, its symmetries, exact masking, and what it reports when it breaks."""

import doctest
import warnings

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
    MAPS,
    OBSERVED,
    PROPERTY,
    STEPS,
    SWITCHES,
    WINDOWS,
    flat,
    gaussian_nll,
    iterate,
    joint_density,
    make_belief,
    make_core,
    make_data,
    make_model,
    make_problem,
    matrix_of,
    textbook_filter,
)
from scipy.stats import multivariate_normal

import kaffee.outcome
from kaffee.cores import Custom, Linear
from kaffee.gaussian import Belief
from kaffee.objectives import dynamics_of
from kaffee.observation import LinearObservation, Projection
from kaffee.outcome import ADVICE, QUANTITIES, Outcome, locate_fault, outcome_of
from kaffee.recursion import Dynamics, Observations, Recursion, observations_of, predict, scan_terms, step
from kaffee.shell import Shell

FILTER = Recursion()
OPEN_LOOP = Recursion(assimilate=False)


@eqx.filter_jit
def run(recursion, dynamics, observations):
    """NLL terms, final belief and every filtered belief."""

    def body(belief, inputs):
        now = step(recursion, dynamics, observations.observation, belief, *inputs)
        return now.filtered, (now.predicted, now.filtered)

    terms = scan_terms(recursion, dynamics, observations)
    beliefs = jax.lax.scan(body, dynamics.initial, (observations.x, observations.mask))[1]
    return terms, *beliefs


@eqx.filter_jit
def value_and_gradient(recursion, dynamics, observations):
    """The summed NLL and its derivative by plain automatic differentiation."""
    return eqx.filter_value_and_grad(lambda d: jnp.sum(scan_terms(recursion, d, observations).nll))(dynamics)


def linear_parts(dynamics, observations):
    """(A, h, B, Gamma, Lambda) as NumPy."""
    return (
        np.asarray(dynamics.core.A),
        np.asarray(dynamics.core.h),
        matrix_of(observations.observation),
        np.diag(dynamics.process_variance),
        np.diag(dynamics.observation_variance),
    )


# --- oracles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("observation", MAPS)
@pytest.mark.parametrize("recursion", SWITCHES)
@pytest.mark.parametrize("kind", ["linear", "smooth"])
def test_equals_textbook_filter(kind, recursion, observation, x64):
    dynamics, observations = make_problem(kind, observation)
    terms, _, filtered = run(recursion, dynamics, observations)
    B, Gamma, Lambda = (
        matrix_of(observations.observation),
        np.diag(dynamics.process_variance),
        np.diag(dynamics.observation_variance),
    )
    for w in range(WINDOWS):
        nll, means, covariances = textbook_filter(
            dynamics.core,
            dynamics.core.jacobian,
            B,
            Gamma,
            Lambda,
            *(a[w] for a in dynamics.initial),
            observations.x[:, w],
            observations.mask[:, w],
            assimilate=recursion.assimilate,
            transport=recursion.transport,
        )
        # 1e-10: the relative jitter is 1e-12 and a few steps of rounding come on top
        np.testing.assert_allclose(terms.nll[:, w], nll, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(filtered.mean[:, w], means, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(filtered.covariance[:, w], covariances, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(terms.final.mean[w], filtered.mean[-1, w])
    assert (np.asarray(terms.faults) == 0).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("observation", MAPS)
def test_innovations_add_up_to_the_joint_density(observation, missing, x64):
    dynamics, observations = make_problem("linear", observation, missing=missing)
    terms = run(FILTER, dynamics, observations)[0]
    for w in range(WINDOWS):
        mean, covariance = joint_density(
            *linear_parts(dynamics, observations), *(a[w] for a in dynamics.initial), STEPS
        )
        seen = np.asarray(observations.mask[:, w]).ravel()
        x = np.asarray(observations.x[:, w]).ravel()[seen]
        joint = multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)])
        assert float(jnp.sum(terms.nll[:, w])) == pytest.approx(-joint.logpdf(x), rel=1e-10)


@pytest.mark.parametrize("observation", MAPS)
def test_open_loop_scores_the_marginals_of_the_free_run(observation, x64):
    dynamics, observations = make_problem("linear", observation)
    terms = run(OPEN_LOOP, dynamics, observations)[0]
    for w in range(WINDOWS):
        mean, covariance = joint_density(
            *linear_parts(dynamics, observations), *(a[w] for a in dynamics.initial), STEPS
        )
        for t in range(STEPS):
            seen = np.flatnonzero(observations.mask[t, w]) + t * OBSERVED
            x = np.asarray(observations.x[:, w]).ravel()[seen]
            marginal = gaussian_nll(x, mean[seen], covariance[np.ix_(seen, seen)])
            assert float(terms.nll[t, w]) == pytest.approx(marginal, rel=1e-10, abs=1e-10)


def test_open_loop_mean_is_the_free_run(x64):
    dynamics, observations = make_problem("mlp")
    _, predicted, filtered = run(OPEN_LOOP, dynamics, observations)
    for w in range(WINDOWS):
        states = iterate(dynamics.core, dynamics.initial.mean[w], STEPS)
        np.testing.assert_allclose(predicted.mean[:, w], states, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(predicted.mean, filtered.mean)


@pytest.mark.parametrize("kind", ["smooth", "mlp"])
def test_equals_dynamax(kind, x64):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dynamax.nonlinear_gaussian_ssm import ParamsNLGSSM, extended_kalman_filter

    dynamics, observations = make_problem(kind, "general", missing=0.0)
    terms, _, filtered = run(FILTER, dynamics, observations)
    B = observations.observation.B
    # dynamax starts from the *predicted* belief of the first observation
    first = predict(dynamics.core, dynamics.process_variance, dynamics.initial, transport=True)
    for w in range(WINDOWS):
        params = ParamsNLGSSM(
            initial_mean=first.mean[w],
            initial_covariance=first.covariance[w],
            dynamics_function=dynamics.core,
            dynamics_covariance=jnp.diag(dynamics.process_variance),
            emission_function=lambda z: B @ z,
            emission_covariance=jnp.diag(dynamics.observation_variance),
        )
        with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
            warnings.simplefilter("ignore")
            posterior = extended_kalman_filter(params, observations.x[:, w])
        # dynamax adds 1e-9 to the diagonal of what it inverts
        assert float(-posterior.marginal_loglik) == pytest.approx(float(jnp.sum(terms.nll[:, w])), rel=1e-8)
        np.testing.assert_allclose(posterior.filtered_means, filtered.mean[:, w], atol=1e-7)
        np.testing.assert_allclose(posterior.filtered_covariances, filtered.covariance[:, w], atol=1e-7)


def test_linearises_at_the_filtered_mean(x64):
    """A filter that linearises at the forecast has another covariance; one known library did."""
    dynamics, observations = make_problem("mlp")
    now = step(
        FILTER,
        dynamics,
        observations.observation,
        dynamics.initial,
        observations.x[0],
        observations.mask[0],
    )
    z, P = dynamics.initial
    J = jax.vmap(dynamics.core.jacobian)(z)
    expected = J @ P @ J.mT + jnp.diag(dynamics.process_variance)
    np.testing.assert_allclose(now.predicted.covariance, expected, rtol=1e-12)
    elsewhere = jax.vmap(dynamics.core.jacobian)(now.predicted.mean)
    assert np.abs(elsewhere - J).max() > 1e-2


def test_straight_through_filter_has_hard_means_and_smooth_covariances(x64):
    dynamics, observations = make_problem("straight_through")
    core = dynamics.core
    hard, smooth = core.with_gate("hard"), core.with_gate("smooth")
    filtered = run(FILTER, dynamics, observations)[2]
    for w in range(WINDOWS):
        _, means, covariances = textbook_filter(
            hard,
            smooth.jacobian,
            matrix_of(observations.observation),
            np.diag(dynamics.process_variance),
            np.diag(dynamics.observation_variance),
            *(a[w] for a in dynamics.initial),
            observations.x[:, w],
            observations.mask[:, w],
        )
        np.testing.assert_allclose(filtered.mean[:, w], means, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(filtered.covariance[:, w], covariances, rtol=1e-10, atol=1e-10)


def test_more_observations_than_latent_coordinates(x64):
    rng = np.random.default_rng(0)
    B = rng.standard_normal((4, 2))
    core = Linear(jnp.asarray(0.4 * rng.standard_normal((2, 2))), jnp.asarray(rng.standard_normal(2)))
    belief = make_belief(windows=1, latent_dim=2)
    dynamics = Dynamics(core, jnp.full(2, 0.2), jnp.full(4, 0.3), belief)
    x = jnp.asarray(rng.standard_normal((1, 4, 4)))
    observations = observations_of(x, jnp.ones(x.shape, bool), LinearObservation(jnp.asarray(B)))
    mean, covariance = joint_density(*linear_parts(dynamics, observations), belief.mean[0], belief.covariance[0], 4)
    expected = -multivariate_normal(mean, covariance).logpdf(np.asarray(x).ravel())
    assert float(jnp.sum(scan_terms(FILTER, dynamics, observations).nll)) == pytest.approx(expected, rel=1e-10)


# --- missing values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recursion", SWITCHES)
def test_what_a_missing_entry_holds_does_not_matter(recursion, x64):
    dynamics, _ = make_problem("smooth", "general")
    x, mask = make_data()
    results = []
    for junk in (0.0, np.nan, np.inf, -np.inf, 1e30):
        observations = observations_of(
            jnp.where(mask, x, junk)[:, 1:], mask[:, 1:], make_model("smooth", "general").observation
        )
        value, gradient = value_and_gradient(recursion, dynamics, observations)
        results.append(np.append(flat(gradient), float(value)))
    assert np.isfinite(results[0]).all()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("observation", MAPS)
def test_a_step_without_observations_is_pure_prediction(observation, x64):
    dynamics, observations = make_problem("mlp", observation)
    nothing = observations._replace(mask=jnp.zeros_like(observations.mask))
    terms, predicted, filtered = run(FILTER, dynamics, nothing)
    assert (np.asarray(terms.nll) == 0.0).all()
    np.testing.assert_array_equal(filtered.mean, predicted.mean)
    np.testing.assert_array_equal(filtered.covariance, predicted.covariance)
    free = run(OPEN_LOOP, dynamics, nothing)[0]
    np.testing.assert_array_equal(terms.final.covariance, free.final.covariance)
    value, gradient = value_and_gradient(FILTER, dynamics, nothing)
    assert float(value) == 0.0
    assert (flat(gradient) == 0.0).all()


def test_a_missing_coordinate_is_a_missing_row_of_the_map(x64):
    dynamics, observations = make_problem("mlp", "general", missing=0.0)
    mask = jnp.zeros_like(observations.mask).at[..., 1].set(True)
    one_of_two = scan_terms(FILTER, dynamics, observations._replace(mask=mask))
    only_one = scan_terms(
        FILTER,
        dynamics._replace(observation_variance=dynamics.observation_variance[1:]),
        Observations(observations.x[..., 1:], mask[..., 1:], LinearObservation(observations.observation.B[1:])),
    )
    np.testing.assert_allclose(one_of_two.nll, only_one.nll, rtol=1e-12)
    np.testing.assert_allclose(one_of_two.final.mean, only_one.final.mean, rtol=1e-12)
    np.testing.assert_allclose(one_of_two.final.covariance, only_one.final.covariance, rtol=1e-12, atol=1e-14)


# --- properties ------------------------------------------------------------------------------------------------

finite = st.floats(-3.0, 3.0)
log_std = st.floats(-4.0, 2.0)


@PROPERTY
@given(
    x=arrays(np.float64, (STEPS, WINDOWS, OBSERVED), elements=finite),
    mask=arrays(np.bool_, (STEPS, WINDOWS, OBSERVED)),
    g=arrays(np.float64, LATENT, elements=log_std),
    l=arrays(np.float64, OBSERVED, elements=log_std),
    size=st.floats(0.1, 3.0),
)
def test_covariances_are_symmetric_positive_and_shrink_when_assimilating(x, mask, g, l, size, x64):
    model = make_model("smooth", "general")
    core = eqx.tree_at(lambda c: c.W, model.core, size * model.core.W)
    model = model.replace(core=core, shell=Shell(jnp.asarray(g), jnp.asarray(l)))
    dynamics = dynamics_of(model, make_belief())
    observations = Observations(jnp.asarray(x), jnp.asarray(mask), model.observation)
    terms, predicted, filtered = run(FILTER, dynamics, observations)
    assert np.isfinite(terms.nll).all()
    for belief in (predicted, filtered):
        P = np.asarray(belief.covariance)
        scale = np.trace(P, axis1=-2, axis2=-1)[..., None, None]
        assert (np.abs(P - np.swapaxes(P, -1, -2)) <= 1e-14 * scale).all()
        assert (np.linalg.eigvalsh(P) >= -1e-13 * scale[..., 0]).all()
    shrunk = np.asarray(predicted.covariance - filtered.covariance)
    scale = np.trace(np.asarray(predicted.covariance), axis1=-2, axis2=-1)
    assert (np.linalg.eigvalsh(shrunk) >= -1e-13 * scale[..., None]).all()


@PROPERTY
@given(
    x=arrays(np.float64, (STEPS, WINDOWS, OBSERVED), elements=finite),
    size=st.floats(-2.0, 2.0),
    assimilate=st.booleans(),
)
def test_covariance_without_transport_knows_neither_core_nor_data(x, size, assimilate, x64):
    recursion = Recursion(assimilate=assimilate, transport=False)
    dynamics, observations = make_problem("smooth")
    reference = run(recursion, dynamics, observations)[2].covariance
    core = eqx.tree_at(lambda c: (c.A, c.W), dynamics.core, (size * dynamics.core.A, -size * dynamics.core.W))
    other = run(recursion, dynamics._replace(core=core), observations._replace(x=jnp.asarray(x)))[2].covariance
    np.testing.assert_array_equal(other, reference)


@PROPERTY
@given(order=st.permutations(range(WINDOWS)), seed=st.integers(0, 9))
def test_windows_do_not_know_their_order(order, seed, x64):
    dynamics, observations = make_problem("smooth", seed=seed)
    terms = run(FILTER, dynamics, observations)[0]
    order = np.array(order)
    permuted = run(
        FILTER,
        dynamics._replace(initial=Belief(*(a[order] for a in dynamics.initial))),
        observations._replace(x=observations.x[:, order], mask=observations.mask[:, order]),
    )[0]
    np.testing.assert_allclose(permuted.nll, terms.nll[:, order], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(permuted.final.covariance, terms.final.covariance[order], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("kind", ["smooth", "linear", "mlp"])
def test_a_batch_is_its_windows_one_at_a_time(kind, x64):
    dynamics, observations = make_problem(kind)
    together = run(FILTER, dynamics, observations)[0]
    for w in range(WINDOWS):
        alone = run(
            FILTER,
            dynamics._replace(initial=Belief(*(a[w : w + 1] for a in dynamics.initial))),
            observations._replace(x=observations.x[:, w : w + 1], mask=observations.mask[:, w : w + 1]),
        )[0]
        # matrix products of another shape round differently
        np.testing.assert_allclose(alone.nll[:, 0], together.nll[:, w], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(alone.final.mean[0], together.final.mean[w], rtol=1e-12, atol=1e-12)


@PROPERTY
@given(
    units=arrays(np.float64, OBSERVED, elements=st.sampled_from([1e-2, 0.3, 1.0, 7.0, 100.0])),
    recursion=st.sampled_from(SWITCHES),
)
def test_units_of_the_observations_cost_exactly_their_logarithm(units, recursion, x64):
    dynamics, observations = make_problem("mlp", "general")
    terms = run(recursion, dynamics, observations)[0]
    D = jnp.asarray(units)
    scaled = Observations(
        observations.x * D,
        observations.mask,
        LinearObservation(D[:, None] * observations.observation.B),
    )
    other = run(recursion, dynamics._replace(observation_variance=D**2 * dynamics.observation_variance), scaled)[0]
    jacobian = jnp.sum(jnp.where(observations.mask, jnp.log(D), 0.0), axis=-1)
    # the jitter, 1e-12 of the mean variance, is not invariant: the ratio of the variances is up to 1e8
    np.testing.assert_allclose(other.nll, terms.nll + jacobian, rtol=0, atol=1e-3)
    np.testing.assert_allclose(other.final.mean, terms.final.mean, rtol=0, atol=1e-3)


# --- precision and faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", [True, False])
def test_asymmetry_of_rounding_does_not_grow(transport):
    """P - C'C never corrects an antisymmetric part; expanding cores used to amplify it until Omega broke."""
    rng = np.random.default_rng(0)
    M, N, T = 6, 3, 3000
    rotation = np.linalg.qr(rng.standard_normal((M, M)))[0]
    core = Linear(jnp.asarray(1.02 * rotation, jnp.float32), jnp.zeros(M))
    initial = Belief(jnp.zeros((1, M)), jnp.eye(M)[None])
    dynamics = Dynamics(core, jnp.full(M, 0.01), jnp.full(N, 0.01), initial)
    observations = Observations(jnp.zeros((T, 1, N)), jnp.ones((T, 1, N), bool), Projection(N, M))
    terms = run(Recursion(transport=transport), dynamics, observations)[0]
    assert (np.asarray(terms.faults) == 0).all()
    P = np.asarray(terms.final.covariance[0])
    assert np.abs(P - P.T).max() <= 1e-6 * np.trace(P)
    assert np.linalg.eigvalsh(P)[0] > 0


wild = st.floats(-100.0, 100.0, width=32)


@PROPERTY
@given(
    g=arrays(np.float32, LATENT, elements=wild),
    l=arrays(np.float32, OBSERVED, elements=wild),
    log_size=st.floats(-6.0, 12.0),
    log_data=st.floats(-10.0, 18.0),
    kind=st.sampled_from(["straight_through", "smooth", "hard"]),
    recursion=st.sampled_from(SWITCHES),
)
def test_never_a_silent_nan(g, l, log_size, log_data, kind, recursion):
    """Any finite parameters in float32: the result is finite, or a fault names the first quantity that is not."""
    model = make_model(kind, dtype=np.float32)
    core = jax.tree.map(lambda a: a * jnp.float32(10.0**log_size), model.core)
    model = model.replace(core=core, shell=Shell(jnp.asarray(g), jnp.asarray(l)))
    x, mask = make_data(dtype=np.float32)
    observations = observations_of(x[:, 1:] * jnp.float32(10.0**log_data), mask[:, 1:], model.observation)
    Gamma = jnp.diag(model.shell.process_variance())
    initial = Belief(jnp.ones((WINDOWS, LATENT)), jnp.broadcast_to(Gamma, (WINDOWS, LATENT, LATENT)))
    terms, predicted, filtered = run(recursion, dynamics_of(model, initial), observations)
    nll, faults = np.asarray(terms.nll), np.asarray(terms.faults)
    bad = ~np.isfinite(nll)
    assert (faults[bad] > 0).all()
    for w in range(WINDOWS):
        clean = STEPS if not faults[:, w].any() else int(np.argmax(faults[:, w] > 0))
        assert np.isfinite(nll[:clean, w]).all()
        assert np.isfinite(predicted.mean[:clean, w]).all()
        assert np.isfinite(predicted.covariance[:clean, w]).all()
        # what the last clean step filtered is examined by the step after it
        assert np.isfinite(filtered.mean[: max(clean - 1, 0), w]).all()
    outcome = outcome_of(locate_fault(terms.faults))
    assert outcome.ok == (not bad.any() and not faults.any())
    if not outcome.ok:
        assert faults[outcome.step - 1, outcome.window] == QUANTITIES.index(outcome.quantity)
        assert (faults[: outcome.step - 1] == 0).all()


def faulty(change, *, recursion=FILTER, T=4):
    """The outcome of a float32 problem after `change` to (dynamics, x)."""
    core = Linear(0.5 * jnp.eye(2), jnp.zeros(2))
    initial = Belief(jnp.ones((2, 2)), jnp.broadcast_to(jnp.eye(2), (2, 2, 2)))
    dynamics, x = change(Dynamics(core, jnp.full(2, 0.1), jnp.full(1, 0.1), initial), jnp.ones((T, 2, 1), jnp.float32))
    observations = Observations(x, jnp.ones(x.shape, bool), Projection(1, 2))
    return outcome_of(locate_fault(scan_terms(recursion, dynamics, observations).faults))


def blow_up_mean(dynamics, x):
    start = dynamics.initial.mean.at[1, 0].set(3e37)
    core = Linear(jnp.diag(jnp.array([4.0, 0.5])), jnp.zeros(2))
    return dynamics._replace(core=core, initial=dynamics.initial._replace(mean=start)), x


def blow_up_covariance(dynamics, x):
    core = Linear(jnp.diag(jnp.array([1e-3, 1e13])), jnp.zeros(2))
    start = Belief(jnp.zeros((2, 2)), dynamics.initial.covariance)
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
    outcome = faulty(change, recursion=recursion)
    assert outcome == Outcome(step_number, window, quantity)
    assert str(outcome) == (
        f"the {quantity} became non-finite at step {step_number} of window {window}: {ADVICE[quantity]}"
    )


def test_no_fault_is_a_sentence_too():
    outcome = faulty(lambda dynamics, x: (dynamics, x))
    assert outcome.ok
    assert str(outcome) == "all values are finite"
    assert set(ADVICE) == set(QUANTITIES) - {""}


def test_earliest_step_wins_over_earlier_window(x64):
    faults = jnp.zeros((4, 3), jnp.int32).at[3, 0].set(1).at[1, 2].set(4).at[1, 1].set(2)
    assert locate_fault(faults).tolist() == [2, 1, 2]
    assert outcome_of(locate_fault(jnp.zeros((4, 3), jnp.int32))).ok


# --- compilation -----------------------------------------------------------------------------------------------


def test_same_shapes_are_traced_once(x64):
    calls = []

    class Counted(eqx.Module):
        W: jax.Array

        def __call__(self, z):
            calls.append(z)
            return jnp.tanh(self.W @ z)

    for seed in (0, 1):
        core = Custom(Counted(make_core("linear", seed=seed).A), LATENT)
        dynamics, observations = make_problem(core, seed=seed)
        run(FILTER, dynamics, observations)
        value_and_gradient(FILTER, dynamics, observations)
        if seed == 0:
            traced = len(calls)
    assert traced > 0
    assert len(calls) == traced


def test_examples_in_the_docstrings():
    assert doctest.testmod(kaffee.outcome).failed == 0
