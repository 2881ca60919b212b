"""The climate of training states: its moments, honest first rows, and when a fit computes it."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov
from small import small_model, standard_series

from kaffee.data.series import Series
from kaffee.filtering.gated import make_gate
from kaffee.filtering.likelihood import BLIND, KAFFEE
from kaffee.filtering.sweep import sweep
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel, trainable
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.climate import (
    LEAST_WINDOWS,
    MOST_WINDOWS,
    NUM_STATES,
    WINDOW_ROWS,
    filtering_windows,
    with_climate,
)
from kaffee.training.loop import Schedule

SHORT = Adaptation(scored=5, burn_in=2, climate=True, schedule=Schedule(2, batch_size=4, report_every=1, save_every=1))
A = np.array([[0.9, 0.3, 0.0], [-0.3, 0.9, 0.2], [0.0, 0.0, 0.8]])
GAMMA, LAMBDA = 0.2, 0.3


def linear_model():
    """Build a rotation driven by a hidden autoregression; one of three coordinates is observed."""
    return StateSpaceModel(
        Linear(jnp.asarray(A, jnp.float32), jnp.asarray([0.0, 0.0, 0.2], jnp.float32)),
        Shell.from_std(np.full(3, GAMMA), np.full(1, LAMBDA)),
        Projection(1, 3),
        jnp.asarray([[1.0], [0.5], [-0.5]]),
    )


def simulate(num_steps, seed):
    rng = np.random.default_rng(seed)
    z, rows = np.zeros(3), []
    for _ in range(num_steps + 200):
        z = A @ z + np.array([0.0, 0.0, 0.2]) + GAMMA * rng.standard_normal(3)
        rows.append(z[:1] + LAMBDA * rng.standard_normal(1))
    return np.array(rows[200:])


def test_of_the_true_linear_model_it_is_the_stationary_distribution():
    model = with_climate(linear_model(), Series.from_arrays(simulate(20_000, 0)), KAFFEE.filter)
    mean, covariance = (np.asarray(each) for each in model.climate.moments())
    np.testing.assert_allclose(mean, np.linalg.solve(np.eye(3) - A, [0.0, 0.0, 0.2]), atol=0.15)
    stationary = solve_discrete_lyapunov(A, GAMMA**2 * np.eye(3))
    std = np.sqrt(np.diag(stationary))
    np.testing.assert_allclose(covariance / np.outer(std, std), stationary / np.outer(std, std), atol=0.1)


def test_its_states_are_some_of_the_filtered_ones():
    series = Series.from_arrays(simulate(600, 0))
    model = with_climate(linear_model(), series, KAFFEE.filter)
    windows = jnp.asarray(filtering_windows(series, 3), jnp.float32)
    states = np.asarray(sweep(model, KAFFEE.filter, windows, gate=make_gate()).rows.state_mean).reshape(-1, 3)
    gaps = np.abs(states[None] - np.asarray(model.climate.states)[:, None]).max(axis=2)
    assert gaps.shape == (NUM_STATES, len(states))
    assert np.median(gaps.min(axis=1)) < 1e-3
    assert len(np.unique(gaps.argmin(axis=1))) == NUM_STATES


def test_first_rows_are_covered_as_later_ones_are():
    x = np.stack([simulate(20, seed) for seed in range(1, 301)], axis=1)
    model = linear_model()
    honest = with_climate(model, Series.from_arrays(simulate(20_000, 0)), KAFFEE.filter)

    def cover(model):
        rows = sweep(model, KAFFEE.filter, jnp.asarray(x, jnp.float32), gate=make_gate()).rows
        return (np.abs(x - rows.reading_mean) < 1.645 * rows.reading_std).mean(axis=(1, 2))

    assert ((cover(honest) > 0.84) & (cover(honest) < 0.96)).all()  # the first row too
    assert cover(model)[1] < 0.8


def test_adapt_computes_it_and_no_optimiser_moves_it():
    for method in (KAFFEE, BLIND):
        first = adapt(small_model(), standard_series(), method, SHORT, seed=0).model
        assert first.climate is not None
        marks = trainable(first, ("core", "shell", "embedding", "observation"))
        assert not any((marks.climate.mean, marks.climate.factor))
        again = with_climate(first.replace(climate=None), standard_series(), method.filter)
        np.testing.assert_allclose(first.climate.factor, again.climate.factor, rtol=1e-4, atol=1e-5)
    # a model that has one loses it unless the settings ask for it: it would be that of other weights
    plain = Adaptation(scored=5, burn_in=2, schedule=SHORT.schedule)
    ends = [adapt(m, standard_series(), KAFFEE, plain, seed=0).model for m in (small_model(), first)]
    assert all(end.climate is None for end in ends)


def test_windows_come_from_all_recordings_and_none_of_the_rest_is_lost():
    long, short = np.ones((3 * WINDOW_ROWS + 10, 1)), 2.0 * np.ones((20, 1))
    windows = filtering_windows(Series.from_arrays([long, short]), 20)
    assert windows.shape == (WINDOW_ROWS, 4, 1)
    assert np.isnan(windows[20:, -1]).all()
    assert (windows[:20, -1] == 2.0).all()
    many = Series.from_arrays([short] * 100)
    assert filtering_windows(many, 20).shape == (20, MOST_WINDOWS, 1)
    assert filtering_windows(many, 10_000).shape == (20, LEAST_WINDOWS, 1)


def test_a_filter_that_fails_everywhere_has_none():
    core = Linear(jnp.full((3, 3), 1e30), jnp.full(3, jnp.inf))
    model = with_climate(linear_model().replace(core=core), Series.from_arrays(simulate(8, 0)), KAFFEE.filter)
    assert model.climate is None or np.isfinite(model.climate.factor).all()


@pytest.mark.parametrize("rows", [3, 12])
def test_few_rows_are_enough(rows):
    model = with_climate(small_model(), standard_series(rows), KAFFEE.filter)
    assert np.isfinite(model.climate.factor).all()
