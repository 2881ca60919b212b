"""One contract for every filter: what must hold whatever a belief is made of.

A new filter goes into `FILTERS` of kaffee.filtering.filters and into `EXACT` or `MONTE_CARLO` here; a random one also
into the lists of the tests that compare with Kalman within sampling error and that repeat seeds.
"""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import (
    SWITCHES,
    directional_differences,
    flat,
    inner,
    make_belief,
    make_data,
    make_model,
    make_problem,
    matrix_of,
    random_direction,
    textbook_filter,
)

from kaffee.errors import ConfigError
from kaffee.filtering.filters import FILTERS, parse_filter
from kaffee.filtering.gated import make_gate
from kaffee.filtering.likelihood import window_nll
from kaffee.filtering.recursion import Observations, Recursion, scan_terms, step
from kaffee.filtering.rollout import forecast_ensemble
from kaffee.filtering.smoother import smooth_rows
from kaffee.filtering.sweep import sweep
from kaffee.model.observation import LinearObservation

# KAFFEE_FILTER_STEPS=100000 for the full length.
STEPS = int(os.environ.get("KAFFEE_FILTER_STEPS", "5000"))
# Filters that are exact for a linear model, to rounding; all others converge with their size.
EXACT = ["ekf", "srekf", "lowrank:5", "moments", "ukf", "iekf:2"]
MONTE_CARLO = ["enkf:40", "etkf:24", "letkf:24,radius=100,rotate=1", "particle:200"]
CASES = EXACT + MONTE_CARLO

# One program of a filter serves all checks of it that have the same shapes.
begin = eqx.filter_jit(lambda by, mean, covariance: by.start(mean, covariance))
terms_of = eqx.filter_jit(scan_terms)
one_step = eqx.filter_jit(step)


def with_filter(dynamics, spec):
    """Represent the dense start of a problem by a filter."""
    by = parse_filter(spec)
    return dynamics._replace(initial=begin(by, *dynamics.initial)), by


def test_every_filter_is_in_the_contract():
    assert {spec.partition(":")[0] for spec in CASES} == set(FILTERS)


@pytest.mark.parametrize(
    ("switches", "observation"), [*((s, "projection") for s in SWITCHES), (Recursion(), "general")]
)
@pytest.mark.parametrize("spec", EXACT)
def test_a_linear_model_is_filtered_as_by_kalman(spec, switches, observation, x64):
    check_by_textbook(spec, switches, *make_problem("linear", observation))


@pytest.mark.parametrize("spec", CASES)
def test_more_readings_than_latents(spec, x64):
    """Exact filters are the textbook's, and all of them stay finite."""
    dynamics, observations = make_problem("linear", "general")
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.standard_normal((*observations.x.shape[:2], 8)))
    B = LinearObservation(jnp.asarray(rng.standard_normal((8, dynamics.core.latent_dim))))
    many = Observations(x, jnp.asarray(rng.uniform(size=x.shape) > 0.2), B)
    dynamics = dynamics._replace(observation_variance=jnp.asarray(rng.uniform(0.2, 1.0, 8)))
    if spec in EXACT:
        check_by_textbook(spec, Recursion(), dynamics, many)
    else:
        ours, by = with_filter(dynamics, spec)
        assert np.isfinite(terms_of(Recursion(filter=by), ours, many).nll).all()


def check_by_textbook(spec, switches, dynamics, observations):
    """Compare NLL of every step and the last belief with textbook code, to 1e-9."""
    ours, by = with_filter(dynamics, spec)
    terms = terms_of(Recursion(switches.assimilate, switches.transport, by), ours, observations)
    A, h = np.asarray(dynamics.core.A), np.asarray(dynamics.core.h)
    matrices = (
        matrix_of(observations.observation),
        *map(np.diag, (dynamics.process_variance, dynamics.observation_variance)),
    )
    for w in range(len(dynamics.initial.mean)):
        nll, means, covariances = textbook_filter(
            lambda z: A @ z + h,
            lambda z: A,
            *matrices,
            *(np.asarray(each[w]) for each in dynamics.initial),
            observations.x[:, w],
            observations.mask[:, w],
            assimilate=switches.assimilate,
            transport=switches.transport,
        )
        final = terms.final.moments()
        np.testing.assert_allclose(terms.nll[:, w], nll, rtol=0, atol=1e-9)
        np.testing.assert_allclose(final.mean[w], means[-1], rtol=0, atol=1e-9)
        np.testing.assert_allclose(final.covariance[w], covariances[-1], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("kind", "size"), [("enkf", 500), ("etkf", 60), ("letkf", 60), ("particle", 1000)])
def test_a_linear_model_is_filtered_as_by_kalman_within_sampling_error(kind, size, x64):
    """Seeds are independent runs: their mean is within four standard errors, and a bias of order 1/K, of Kalman."""
    dynamics, observations = make_problem("linear", missing=0.2)
    exact = terms_of(Recursion(), dynamics, observations)
    means, scores = [], []
    ours, by = with_filter(dynamics, f"{kind}:{size}{',radius=1000' * (kind == 'letkf')}")
    for seed in range(8):
        words = jax.random.key_data(jax.random.split(jax.random.key(seed), len(ours.initial.seeds)))
        start = ours.initial._replace(seeds=words)
        terms = terms_of(Recursion(filter=by), ours._replace(initial=start), observations)
        means.append(np.asarray(terms.final.mean))
        scores.append(np.asarray(terms.nll).sum(axis=0))
    for found, true in ((np.array(means), exact.final.mean), (np.array(scores), exact.nll.sum(axis=0))):
        error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
        assert np.all(np.abs(found.mean(axis=0) - np.asarray(true)) < 5.0 * error + 5.0 / size)


@pytest.mark.parametrize("spec", CASES)
def test_nothing_read_changes_nothing(spec, x64):
    """A row without readings costs 0 nats and the belief is the predicted one; so does a missing entry on its own."""
    dynamics, observations = make_problem("hard")
    ours, by = with_filter(dynamics, spec)
    belief = ours.initial
    nothing = jnp.zeros(observations.mask[0].shape, bool)
    now = one_step(Recursion(filter=by), dynamics, observations.observation, belief, observations.x[0], nothing)
    np.testing.assert_allclose(now.innovation.nll, 0.0, atol=1e-9)
    before, after = now.predicted.moments(), now.filtered.moments()
    np.testing.assert_allclose(after.mean, before.mean, atol=1e-9)
    np.testing.assert_allclose(after.covariance, before.covariance, atol=1e-9)
    if spec.startswith(("enkf", "etkf", "letkf")):
        # Neither inflation nor rotation: an ensemble goes through a gap by the flow alone.
        wide = Recursion(filter=eqx.tree_at(lambda f: f.inflation, by, 1.5))
        gap = one_step(wide, dynamics, observations.observation, belief, observations.x[0], nothing)
        np.testing.assert_array_equal(gap.filtered.members, gap.predicted.members)
    one = nothing.at[:, 0].set(True)
    values = [observations.x[0].at[:, 1].set(other) for other in (0.0, 1e3)]
    terms = [one_step(Recursion(filter=by), dynamics, observations.observation, belief, x, one) for x in values]
    np.testing.assert_array_equal(terms[0].innovation.nll, terms[1].innovation.nll)
    np.testing.assert_array_equal(terms[0].filtered.mean, terms[1].filtered.mean)


@pytest.mark.parametrize("spec", CASES)
def test_a_window_alone_is_the_same_as_in_a_batch(spec, x64):
    dynamics, observations = make_problem("hard")
    ours, by = with_filter(dynamics, spec)
    together = terms_of(Recursion(filter=by), ours, observations)
    alone = dynamics._replace(initial=jax.tree.map(lambda a: a[1:2], dynamics.initial))
    single = observations._replace(x=observations.x[:, 1:2], mask=observations.mask[:, 1:2])
    terms = terms_of(Recursion(filter=by), with_filter(alone, spec)[0], single)
    np.testing.assert_allclose(terms.nll[:, 0], together.nll[:, 1], rtol=1e-9)


@pytest.mark.parametrize("switches", [SWITCHES[0], SWITCHES[-1]])
@pytest.mark.parametrize("spec", CASES[1:])
def test_gradients_are_finite_differences(spec, switches, x64):
    """With the noise of an ensemble held fixed; particles without resampling, which jumps."""
    by = parse_filter("particle:200,resample_below=0" if spec.startswith("particle") else spec)
    dynamics, observations = make_problem("smooth")
    recursion = Recursion(switches.assimilate, switches.transport, by)

    @jax.jit
    @jax.value_and_grad
    def loss_and_gradient(parts):
        given = parts._replace(initial=by.start(*parts.initial))
        return jnp.sum(scan_terms(recursion, given, observations).nll)

    direction = random_direction(dynamics, 3)
    ours = inner(loss_and_gradient(dynamics)[1], direction)
    expected = directional_differences(lambda d: loss_and_gradient(d)[0], dynamics, direction, step=1e-6)
    assert ours == pytest.approx(expected, rel=2e-5, abs=1e-6)


def test_low_rank_of_full_rank_is_the_dense_filter(x64):
    """Value and gradient of the training loss, for a structured core too, whose start builds no covariance."""
    model, (x, mask) = make_model("lowrank"), make_data()

    def run(spec):
        recursion = Recursion(filter=parse_filter(spec))
        loss = eqx.filter_value_and_grad(lambda m: window_nll(m, x, mask, recursion, burn_in=1).loss)
        return eqx.filter_jit(loss)(model)

    for ours, dense in zip(*(map(flat, run(spec)) for spec in ("lowrank:5", "ekf")), strict=True):
        np.testing.assert_allclose(ours, dense, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("spec", CASES)
def test_inference_and_training_take_every_filter(spec):
    """The same calls: windows, sweep with gate and restarts, smoother, ensembles."""
    model, recursion = make_model("hard", dtype=np.float32), Recursion(filter=parse_filter(spec))
    x, mask = make_data(rows=12, dtype=np.float32)
    assert np.isfinite(eqx.filter_jit(window_nll)(model, x, mask, recursion, burn_in=2).loss)
    rows = jnp.swapaxes(jnp.where(mask, x, jnp.nan), 0, 1)
    starts = (np.array([0, 1]), np.array([5, 7]))
    swept = sweep(model, recursion, rows, gate=make_gate(0.9999), starts=starts)
    assert np.isfinite(swept.rows.state_mean).all()
    members = forecast_ensemble(model, swept.beliefs, 4, 30, key=jax.random.key(0))
    assert members.shape == (30, 2, 4, 2)
    assert np.isfinite(members).all()
    smoothed = smooth_rows(model, recursion, rows, jnp.full(3, 12))
    assert all(np.isfinite(moment).all() for moment in smoothed)


@pytest.mark.parametrize("spec", CASES)
def test_a_long_recording_in_single_precision(spec):
    model, recursion = make_model("hard", dtype=np.float32), Recursion(filter=parse_filter(spec))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((STEPS, 1, 2)), jnp.float32)
    swept = sweep(model, recursion, x, gate=None, initial=recursion.filter.start(*make_start(model)), keep=keep_fault)
    assert not np.asarray(swept.rows).any()


def make_start(model):
    belief = make_belief(windows=1, dtype=np.float32)
    return belief.mean, belief.covariance


def keep_fault(track, row, now):
    return row.fault


@pytest.mark.parametrize("spec", ["enkf:8", "etkf:8", "letkf:8,rotate=1", "particle:30"])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(spec, x64):
    dynamics, observations = make_problem("hard")
    runs = []
    for seed in (0, 0, 1):
        ours, by = with_filter(dynamics, f"{spec},seed={seed}")
        runs.append(np.asarray(terms_of(Recursion(filter=by), ours, observations).nll))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kalman", "filter"),
        ("ekf:3", "takes no number"),
        ("lowrank:0", "whole number"),
        ("lowrank:x", "whole number"),
        ("enkf:1", "at least two members"),
        ("enkf:10,inflation=-1", "positive"),
        ("enkf:10,colour=1", "no option"),
        ("particle:10,seed=0.5", "whole number"),
    ],
)
def test_a_misspelt_filter_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_filter(text)
