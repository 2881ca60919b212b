"""Adaptation: what each method trains, where windows start, and B through automatic differentiation."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from small import LATENT, OBSERVED, gappy_series, same_arrays, small_model, standard_series

from kaffee.data.scaler import Scaler
from kaffee.data.windows import training_windows
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.likelihood import FROZEN_CORE, KAFFEE
from kaffee.filtering.sweep import run_filter
from kaffee.metrics.calibration import normalised_nis
from kaffee.model.statespace import Shell
from kaffee.training.adaptation import Adaptation, _latent_states, adapt, nll_objective
from kaffee.training.loop import Schedule, train
from kaffee.training.optimiser import Optimiser

OPTIMISER = Optimiser("adam", 1e-2, clip_norm=2.0)
SCHEDULE = Schedule(6, batch_size=4, report_every=3, save_every=3)
B = np.array([[1.0, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, -0.5]])


def small(**options):
    return Adaptation(scored=5, burn_in=2, optimiser=OPTIMISER, schedule=SCHEDULE, **options)


def test_the_frozen_core_is_bit_identical_and_the_shell_is_not():
    model = small_model()
    trained = adapt(model, standard_series(), FROZEN_CORE, small(), seed=0)
    assert same_arrays(trained.model.core, model.core)
    assert same_arrays(trained.model.embedding, model.embedding)
    assert not same_arrays(trained.model.shell, model.shell)


def test_kaffee_trains_core_and_shell_under_straight_through_gates():
    model = small_model()
    trained = adapt(model, standard_series(), KAFFEE, small(), seed=0)
    assert trained.model.core.gate == "straight_through"
    assert not same_arrays(trained.model.core, model.core)
    assert not same_arrays(trained.model.shell, model.shell)
    assert same_arrays(trained.model.embedding, model.embedding)
    assert np.isfinite(trained.losses).all()
    assert str(trained) == "6 updates, 0 skipped"


def test_training_B_moves_it_and_nothing_else():
    model = small_model(B=B)
    parts = ("shell", "observation")
    trained = adapt(model, standard_series(), KAFFEE, small(), seed=0, parts=parts)
    assert not same_arrays(trained.model.observation, model.observation)
    assert same_arrays(trained.model.core, model.core)


def test_forced_states_agree_with_a_plain_loop_over_gappy_recordings():
    series = gappy_series()
    series = series.standardised(Scaler.fit(series))
    model = small_model()
    found = np.asarray(_latent_states(model, series))
    assert found.shape == (series.num_steps, LATENT)
    E, row = np.asarray(model.embedding), 0
    for recording in series.recordings:
        z = E @ np.nan_to_num(recording[0])
        z[:OBSERVED] = np.nan_to_num(recording[0])
        np.testing.assert_allclose(found[row], z, rtol=1e-4, atol=1e-5)
        for t in range(1, len(recording)):
            z = np.array(model.core(jnp.asarray(z, jnp.float32)))
            z[:OBSERVED] = np.where(np.isnan(recording[t]), z[:OBSERVED], recording[t])
            np.testing.assert_allclose(found[row + t], z, rtol=1e-4, atol=1e-5)
        row += len(recording)


def test_a_forced_start_takes_the_states_of_the_windows_that_were_drawn():
    model, series = small_model(), standard_series()
    model = model.replace(core=model.core.surrogate())
    objective = nll_objective(model, series, KAFFEE, small(start="forced"), ("shell",))
    embedded = nll_objective(model, series, KAFFEE, small(), ("shell",))
    sampler = training_windows(series, 8)
    states = _latent_states(model, series)
    np.testing.assert_array_equal(objective.latent, states)
    # The observed coordinates of a forced state are the data, so only the hidden ones can make a difference.
    np.testing.assert_allclose(states[sampler.starts, :OBSERVED], sampler.values[sampler.starts], rtol=0, atol=3e-7)

    def first_loss(objective, model):
        options = {"parts": ("core", "shell"), "optimiser": OPTIMISER, "schedule": SCHEDULE, "seed": 0}
        return train(model, objective, sampler, **options).losses[0]

    assert first_loss(objective, model) != first_loss(embedded, model)
    # With hidden coordinates at zero on both ways, both losses are the same.
    no_embedding = model.replace(embedding=jnp.zeros((LATENT, OBSERVED)))
    no_states = eqx.tree_at(lambda o: o.latent, objective, jnp.zeros_like(states))
    np.testing.assert_allclose(first_loss(no_states, model), first_loss(embedded, no_embedding), rtol=1e-6)
    trained = adapt(small_model(), series, KAFFEE, small(start="forced"), seed=0)
    assert trained.losses[0] == first_loss(objective, model)
    assert np.isfinite(trained.losses).all()


def test_data_shorter_than_a_window_are_a_clear_error():
    with pytest.raises(DataError, match="has 7 steps, but a window needs 8"):
        adapt(small_model(), standard_series(7), KAFFEE, small(), seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scored": 0}, "needs scored >= 1 and burn_in >= 0, not 0 and 8"),
        ({"scored": -4}, "scored >= 1"),
        ({"burn_in": -1}, "burn_in >= 0, not 32 and -1"),
        ({"segment": 0}, r"segment must divide burn_in \+ scored = 40; 0 does not"),
        ({"segment": -4}, "segment must divide"),
        ({"segment": 7}, "segment must divide"),
    ],
)
def test_absurd_windows_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Adaptation(**options)


def test_the_default_window_may_be_cut_into_segments():
    assert Adaptation(segment=8).segment == 8


def test_calibration_moves_the_shell_alone_after_the_core_is_trained():
    """Bands that start e^3 too wide are right after it, although 6 updates of training could not move them far."""
    model, series = small_model(), standard_series()
    wide = model.replace(shell=Shell(model.shell.log_process_std + 3.0, model.shell.log_observation_std + 3.0))
    plain = adapt(wide, series, KAFFEE, small(), seed=0).model
    calibrated = adapt(wide, series, KAFFEE, small(calibration=150), seed=0).model
    assert same_arrays(calibrated.core, plain.core)
    nis = [normalised_nis_of(each, series) for each in (plain, calibrated)]
    assert nis[0] < 0.1
    assert nis[1] == pytest.approx(1.0, abs=0.3)


def normalised_nis_of(model, series):
    values = jnp.asarray(series.recordings[0][None], jnp.float32)
    found = run_filter(model, values, jnp.ones_like(values, bool), KAFFEE.filter)
    return normalised_nis(np.asarray(found.nis[0]), OBSERVED)


def test_a_negative_number_of_calibrating_updates_is_a_clear_error():
    with pytest.raises(ConfigError, match="calibration, a number of updates"):
        Adaptation(calibration=-1)
