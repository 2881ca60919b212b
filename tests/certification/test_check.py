"""The first check: known answers where there are some, numbers or NaN for whatever data come."""

import json
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from foundation.conftest import make_core
from scipy.stats import norm
from small import gappy_fit, rotation, small_model

from kaffee.certification.check import check, compare_runs
from kaffee.certification.free_runs import CORE_SEED, MIN_ROWS, TRANSIENT, run_freely
from kaffee.certification.innovations import choose_warm_up
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.filtering.evaluation import Target
from kaffee.filtering.likelihood import METHODS
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.rollout import free_run, make_core_key
from kaffee.inference.recordings import filter_recordings
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.records import jsonable
from kaffee.theory.dpc import Certifier

NAN = np.nan
FEW = {"runs": 2, "steps": 100}
MODEL = Reconstruction(small_model(), Scaler([10.0, 10.0], [2.0, 2.0]), ("a", "b"), dt=0.5)


@pytest.mark.parametrize("name", METHODS)
def test_a_model_is_filtered_as_it_was_trained(name):
    assert replace(MODEL, method=name).filter == METHODS[name].filter


def test_a_prior_is_filtered_with_transport():
    assert MODEL.filter == Recursion(assimilate=True, transport=True)


def test_the_numbers_of_a_check_are_those_of_the_filter():
    model, test = gappy_fit().fitted.reconstruction, gappy_fit().test
    found = check(model, test, **FEW)
    after, scores, nll = choose_warm_up(test), [], 0.0
    for values, estimate in zip(test.recordings, filter_recordings(model, test), strict=True):
        seen = ~np.isnan(values)[after:]
        scores.append(((values - estimate.predicted_mean)[after:] / estimate.predicted_std[after:])[seen])
        nll -= np.nansum(estimate.log_likelihood[after:]) + np.sum(seen @ np.log(model.scaler.scale))
    score = np.concatenate(scores)
    assert found.nll == pytest.approx(nll / len(score), rel=1e-4)
    assert found.coverage_90 == pytest.approx(np.mean(np.abs(score) < norm.ppf(0.95)))
    assert np.isfinite(found.lambda_1)
    assert (found.diverged_at, found.num_diverged) == (0, 0)
    assert np.isnan(found.d_h_core)  # there is no spectrum of a series with gaps
    assert found.protocol["reference"].endswith("held-out rows")
    text = json.dumps(jsonable(found), allow_nan=False)
    assert json.loads(text)["d_h_core"] is None


def test_a_contracting_linear_core_has_a_known_exponent():
    """z' = 0.9 z with the gates off: every exponent is log(0.9) per step of dt = 0.5."""
    core = eqx.tree_at(lambda c: (c.A, c.W, c.h), MODEL.model.core, (jnp.full(4, 0.9), jnp.zeros((4, 4)), jnp.zeros(4)))
    model = replace(MODEL, model=MODEL.model.replace(core=core))
    found = check(model, Series.from_arrays(rotation(40)), **FEW)
    assert found.lambda_1 == pytest.approx(np.log(0.9) / 0.5, rel=1e-4)


def test_an_exploding_core_is_reported_and_not_a_crash():
    core = eqx.tree_at(lambda c: c.A, MODEL.model.core, jnp.full(4, 3.0))
    model = replace(MODEL, model=MODEL.model.replace(core=core))
    found = check(model, Series.from_arrays(rotation(MIN_ROWS)), **FEW)
    assert 0 < found.diverged_at < 100
    assert found.num_diverged == 2
    assert np.isnan([found.d_stsp_core, found.d_h_core, found.lambda_1]).all()
    assert json.dumps(jsonable(found), allow_nan=False)


def growing(growth):
    """Turns as `rotation` does, and grows by so much per step."""
    turn = growth * np.array([[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]])
    core = Linear(jnp.asarray(turn, jnp.float32), jnp.zeros(2, jnp.float32))
    model = StateSpaceModel(core, Shell.from_std(np.ones(2), np.ones(2)), Projection(2, 2), jnp.eye(2))
    return replace(MODEL, model=model)


def test_a_run_that_diverges_after_the_compared_rows_has_no_distance():
    """Its rows turn as the data do, and a spectrum knows no size: the distance alone would be excellent."""
    found = check(growing(1.005), Series.from_arrays(rotation(240, noise=0.0)), runs=2, steps=2000)
    assert found.num_diverged == 2
    assert np.isnan([found.d_stsp_core, found.d_h_core]).all()


@pytest.mark.parametrize(("num_rows", "known"), [(MIN_ROWS - 1, False), (MIN_ROWS, True)])
def test_fewer_rows_than_the_certificate_needs_give_no_distances(num_rows, known):
    data = rotation(num_rows)
    found = check(growing(1.0), Series.from_arrays(data), **FEW)
    assert np.isfinite([found.d_stsp_core, found.d_h_core]).tolist() == [known, known]
    assert np.isfinite(found.lambda_1)


def test_free_runs_are_compared_by_the_estimators_of_the_certificate():
    data = rotation(400)
    found = check(growing(1.0), Series.from_arrays(data[:10]), reference=data, **FEW)
    target = Target(data, "kernel", length=400).with_delays([data])
    runs = run_freely(growing(1.0), data[[0, 399]], target, 1000)
    assert found.d_stsp_core == pytest.approx(np.median([d.d_stsp for d in runs.distances]))
    assert found.d_h_core == pytest.approx(np.median([d.d_h for d in runs.distances]))
    assert found.protocol["reference"] == "400 given states"
    assert compare_runs(data, data)[1] == 0.0


def scattered():
    """Every row has a gap."""
    values = rotation(40)
    values[::2, 0] = values[1::2, 1] = NAN
    return values


def stuck():
    """A sensor that got stuck."""
    values = rotation(40)
    values[:, 0] = 10.0
    return values


@pytest.mark.parametrize(
    "values", [scattered(), stuck(), rotation(40)[:1], rotation(40)[:2]], ids=["gaps", "stuck", "1", "2"]
)
def test_poor_held_out_data_give_nan_and_not_a_crash(values):
    found = check(MODEL, Series.from_arrays(values), **FEW)
    assert np.isnan(found.d_stsp_core)
    assert np.isfinite(found.lambda_1)
    assert np.isnan(found.nll) == (len(values) == 1)
    assert json.dumps(jsonable(found), allow_nan=False)


# --- cores that draw noise of their own ---


def gated():
    """A small DynaMix, whose gate is noisy."""
    core = make_core(np.float32)
    M, N = core.latent_dim, core.num_observed
    model = StateSpaceModel(core, Shell.from_std(np.full(M, 0.1), np.full(N, 0.1)), Projection(N, M), core.B.T)
    return replace(MODEL, model=model)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_core_draws_its_own_noise_and_others_none(noisy):
    """Without its noise DynaMix may come to rest, and a check would report the dynamics of a point."""
    which = gated() if noisy else MODEL
    key = make_core_key(which.model.core, CORE_SEED)
    assert (key is not None) == noisy
    start = np.array([11.0, 9.0])
    first = which.model.embed(jnp.asarray(which.scaler.transform(start), jnp.float32)[None])
    expected = free_run(which.model, first, 30, core_key=key, transient=TRANSIENT)
    found = run_freely(which, start[None], Target(start[None]), 30)
    np.testing.assert_array_equal(found.states[0], expected.states[0])
    still = free_run(which.model, first, 30, transient=TRANSIENT)
    assert bool((still.states == expected.states).all()) == (not noisy)


def test_the_seed_of_the_core_is_recorded():
    for which, seed in ((MODEL, None), (gated(), CORE_SEED)):
        found = check(which, Series.from_arrays(rotation(40)), **FEW)
        assert found.protocol["core_seed"] == seed
        assert found.diverged_at == 0


def test_certification_losses_are_those_of_a_core_with_its_noise():
    rows = MODEL.scaler.transform(rotation(120))
    options = {"num_runs": 2, "num_steps": 120, "transient": 20}
    losses = [Certifier(rows, rows, seed=seed, **options)(gated().model)["d_h_core"].value for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    calm = [Certifier(rows, rows, seed=seed, **options)(MODEL.model)["d_h_core"].value for seed in (0, 1)]
    assert calm[0] == calm[1]
