"""Teacher-forced pretraining: what it learns, what it leaves alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import same_arrays, small_model, standard_series

from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.model.maps import Linear
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.forcing import Forcing
from kaffee.training.loop import Schedule
from kaffee.training.optimiser import Optimiser
from kaffee.training.pretraining import Pretraining, pretrain, pretraining_sampler

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
    assert pretraining_sampler(standard_series(), SETTINGS).length == 7


def test_data_shorter_than_a_window_are_a_clear_error():
    with pytest.raises(DataError, match="has 6 steps, but a window needs 7"):
        pretrain(small_model(), standard_series(6), SETTINGS, seed=0)


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_without_steps_is_refused(window):
    with pytest.raises(ConfigError, match="window of pretraining has at least 1 step"):
        Pretraining(window=window)
