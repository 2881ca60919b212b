"""Teacher-forced pretraining: what it learns, what it leaves alone; the first shell from its residuals."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import LATENT, OBSERVED, gappy_series, same_arrays, small_model, standard_series

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.model.maps import Linear
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.forcing import Forcing
from kaffee.training.loop import Schedule
from kaffee.training.optimiser import Optimiser
from kaffee.training.pretraining import _PIECE, Pretraining, initialise_shell, pretrain, residual_std

SETTINGS = Pretraining(
    window=6,
    forcing=Forcing(3),
    optimiser=Optimiser("radam", 3e-2, 1e-3),
    schedule=Schedule(200, batch_size=4, report_every=50, save_every=100),
)


def test_it_trains_core_and_embedding_under_hard_gates_and_nothing_else():
    model = small_model()
    surrogate = model.replace(core=model.core.surrogate())
    trained = pretrain(surrogate, standard_series(), SETTINGS, seed=0)
    assert trained.model.core.gate == "hard"
    assert same_arrays(trained.model.shell, model.shell)
    assert not same_arrays(trained.model.core, model.core)
    assert not same_arrays(trained.model.embedding, model.embedding)
    assert trained.losses[-20:].mean() < 0.5 * trained.losses[:20].mean()
    again = pretrain(small_model(), standard_series(), SETTINGS, seed=0)
    assert same_arrays(trained.model, again.model)


def test_it_recovers_a_linear_map():
    truth = 0.97 * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    states, rng = [np.ones(2)], np.random.default_rng(0)
    for _ in range(199):
        states.append(truth @ states[-1] + 0.2 * rng.standard_normal(2))
    exact = np.array([s if i % 2 == 0 else truth @ states[i - 1] for i, s in enumerate(states)])
    pairs = Series.from_arrays(list(exact.reshape(-1, 2, 2)))  # each recording one exact step
    core = Linear(jnp.eye(2), jnp.zeros(2))
    model = StateSpaceModel.create(core, 2, key=jax.random.key(0))
    settings = Pretraining(1, Forcing(1), Optimiser("adam", 0.1, 1e-3), Schedule(300, batch_size=16, report_every=300))
    trained = pretrain(model, pairs, settings, seed=0)
    np.testing.assert_allclose(trained.model.core.A, truth, atol=1e-3)
    np.testing.assert_allclose(trained.model.core.h, 0.0, atol=1e-3)


def test_a_window_has_one_more_row_than_predicted_steps():
    once = replace(SETTINGS, schedule=Schedule(1, batch_size=4))
    assert np.isfinite(pretrain(small_model(), standard_series(SETTINGS.window + 1), once, seed=0).losses).all()


def test_data_shorter_than_a_window_are_a_clear_error():
    with pytest.raises(DataError, match="has 6 steps, but a window needs 7"):
        pretrain(small_model(), standard_series(6), SETTINGS, seed=0)


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_without_steps_is_refused(window):
    with pytest.raises(ConfigError, match="window of pretraining has at least 1 step"):
        Pretraining(window=window)


def residuals_of(model, series, interval):
    """One-step errors under teacher forcing, one recording, one step and one entry at a time."""
    core, E = model.core, np.asarray(model.embedding, np.float64)
    A, W, h = (np.asarray(a, np.float64) for a in (core.A, core.W, core.h))
    errors = [[] for _ in range(OBSERVED)]
    for recording in series.recordings:
        first = np.nan_to_num(recording[0])
        z = E @ first
        z[:OBSERVED] = first
        for t, x in enumerate(recording[1:], start=1):
            gated = z.copy()
            gated[-core.num_gates :] = np.maximum(gated[-core.num_gates :], 0.0)
            z = A * z + W @ gated + h
            for j in range(OBSERVED):
                if not np.isnan(x[j]):
                    errors[j].append(z[j] - x[j])
                    if t % interval == 0:
                        z[j] = x[j]
    return np.array([np.std(e) for e in errors])


@pytest.mark.parametrize("interval", [1, 3])
def test_residuals_agree_with_a_plain_loop(interval):
    series = gappy_series()
    series = series.standardised(Scaler.fit(series))
    found = residual_std(small_model(), series, Forcing(interval))
    np.testing.assert_allclose(found, residuals_of(small_model(), series, interval), rtol=2e-5)


def test_the_shell_splits_the_residual_variance():
    model, series = small_model(), standard_series()
    r = residuals_of(model, series, 1)
    shell = initialise_shell(model, series, residuals="every_step", alpha=0.75).shell
    np.testing.assert_allclose(shell.observation_variance(), 0.75 * r**2, rtol=2e-5)
    np.testing.assert_allclose(shell.process_variance(), np.full(LATENT, (0.5 * r.mean()) ** 2), rtol=2e-5)


def test_sparse_residuals_use_the_forcing_of_pretraining_and_leave_the_rest_alone():
    model, series = small_model(), standard_series()
    started = initialise_shell(model, series, residuals="sparse", forcing=Forcing(3))
    r = residuals_of(model, series, 3)
    np.testing.assert_allclose(started.shell.observation_variance(), 0.9 * r**2, rtol=2e-5)
    assert same_arrays((started.core, started.embedding), (model.core, model.embedding))


def test_a_prior_that_blows_up_is_a_clear_error():
    broken = eqx.tree_at(lambda m: m.core.A, small_model(), jnp.full(LATENT, 1e9))
    with pytest.raises(ConfigError, match=r"does not follow the data. Train it longer"):
        initialise_shell(broken, standard_series(), forcing=Forcing(3))


def test_hidden_states_that_grow_along_a_recording_leave_the_residuals_of_short_pieces():
    """Overwriting x does not hold hidden coordinates that double at every step: 2^200 is no float32."""
    model, series = small_model(), standard_series(300)
    doubling = jnp.where(jnp.arange(LATENT) < OBSERVED, model.core.A, 2.0)
    growing = eqx.tree_at(lambda m: (m.core.A, m.core.W), model, (doubling, 0.01 * model.core.W))
    expected = residuals_of(growing, series.pieces(_PIECE), 1)
    np.testing.assert_allclose(residual_std(growing, series, Forcing(1)), expected, rtol=2e-4)


def test_an_unknown_kind_of_residual_is_a_clear_error():
    with pytest.raises(ConfigError, match="'every_step' or 'sparse', not 'dense'"):
        initialise_shell(small_model(), standard_series(), residuals="dense")


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0, float("nan")])
def test_alpha_outside_its_range_is_a_clear_error(alpha):
    with pytest.raises(ConfigError, match=r"lies in \(0, 1\)"):
        initialise_shell(small_model(), standard_series(), residuals="every_step", alpha=alpha)


def test_a_perfect_prior_has_no_residuals_to_start_from():
    """x' = 0 exactly: residuals of zero would be a shell without noise."""
    model = small_model()
    still = eqx.tree_at(lambda m: (m.core.A, m.core.W, m.core.h), model, replace_fn=jnp.zeros_like)
    with pytest.raises(ConfigError, match="does not follow the data"):
        residual_std(still, Series.from_arrays(np.zeros((60, OBSERVED))), Forcing(1))
