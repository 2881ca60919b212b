"""Zero-shot forecasts of series of any dimension, in data units."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.errors import ConfigError, DataError
from kaffee.foundation.continuation import _autocorrelation, _choose_delay, _choose_period, _embed, zero_shot

from .conftest import make_core

T = np.arange(300.0)
WAVES = np.stack([np.sin(T / 10), np.cos(T / 7), np.sin(T / 4 + 1), T % 13], axis=1)


@pytest.fixture(scope="module")
def model():
    return make_core(np.float32, latent_dim=6, num_observed=3, num_frames=0)


def standardised(x):
    return (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)


def by_hand(model, context, num_steps, noise=None):
    """The model's own steps from the last frame, in standard units."""
    core = model.in_context(context)
    step = eqx.filter_jit(lambda core, z: core(z))
    z = core.initial_state(jnp.asarray(context[-1], jnp.float32))
    rows = []
    for t in range(num_steps):
        z = step(core if noise is None else core.with_noise(noise[t]), z)
        rows.append(np.asarray(z[:3]))
    return np.stack(rows)


@pytest.mark.parametrize("seed", [None, 3])
def test_three_dimensions_go_in_directly(model, seed):
    x = 5.0 + 2.0 * WAVES[:, :3]
    key = None if seed is None else jax.random.key(seed)
    forecast = zero_shot(model, x, 8, key=key)
    noise = None if seed is None else jax.random.normal(key, (8, 1, 3))[:, 0]
    expected = by_hand(model, standardised(x), 8, noise) * x.std(axis=0, ddof=1) + x.mean(axis=0)
    np.testing.assert_allclose(np.asarray(forecast), expected, rtol=1e-4, atol=1e-5)
    assert (forecast.embedding, forecast.delays, forecast.periods) == ("direct", (), ())
    assert forecast.values.dtype == np.float64


def test_the_key_decides(model):
    runs = [np.asarray(zero_shot(model, WAVES[:, :3], 20, key=key)) for key in map(jax.random.key, (0, 0, 1))]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert np.abs(runs[0] - runs[2]).max() > 1e-4


def test_a_context_of_the_model_is_replaced(model):
    plain = zero_shot(model, WAVES[:, :3], 5).values
    busy = model.in_context(WAVES[::-1, 1:]).with_noise(jnp.ones(3, jnp.float32))
    np.testing.assert_array_equal(zero_shot(busy, WAVES[:, :3], 5).values, plain)


def test_one_dimension_is_delay_embedded(model):
    x = WAVES[:, 0]
    forecast = zero_shot(model, x, 6)
    (tau,) = forecast.delays
    assert tau == _choose_delay(x, 75) == 12
    rows = np.stack([x[2 * tau :], x[tau:-tau], x[: -2 * tau]], axis=1)
    expected = by_hand(model, standardised(rows), 6)[:, :1] * rows[:, 0].std(ddof=1) + rows[:, 0].mean()
    np.testing.assert_allclose(forecast.values, expected, rtol=1e-4, atol=1e-5)
    assert zero_shot(model, x, 6, delay=3).delays == (3,)


def test_two_dimensions_get_one_delayed_column():
    contexts, _, delays, _ = _embed(WAVES[:, :2], 3, "delay", 4, None)
    assert contexts.shape == (1, 296, 3)
    np.testing.assert_array_equal(contexts[0], np.column_stack([WAVES[4:, :2], WAVES[:-4, 0]]))
    assert delays == [4, 4]


def test_many_dimensions_are_forecast_one_by_one_in_one_batch(model):
    forecast = zero_shot(model, WAVES, 6, delay=5)
    assert forecast.values.shape == (6, 4)
    for j in range(4):
        alone = zero_shot(model, WAVES[:, j], 6, delay=5).values[:, 0]
        np.testing.assert_allclose(forecast.values[:, j], alone, rtol=1e-4, atol=1e-5)


def test_delays_of_many_dimensions_end_at_the_same_frame():
    contexts, _, delays, _ = _embed(WAVES, 3, "delay", None, None)
    assert len(set(delays)) > 1
    assert contexts.shape == (4, 300 - 2 * max(delays), 3)
    for j, tau in enumerate(delays):
        np.testing.assert_array_equal(contexts[j, -1], WAVES[[-1, -1 - tau, -1 - 2 * tau], j])


def test_positions_in_a_period_can_fill_missing_columns(model):
    contexts, _, _, periods = _embed(WAVES[:, [2]], 5, "positional", None, None)
    assert periods == [25.0]
    angle = 2 * np.pi * T / 25.0
    waves = [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
    np.testing.assert_allclose(contexts[0], np.stack([WAVES[:, 2], *waves], axis=1), atol=1e-12)
    forecast = zero_shot(model, WAVES[:, 2], 4, embedding="positional", period=25.1)
    assert (forecast.embedding, forecast.periods) == ("positional", (25.1,))
    assert zero_shot(model, WAVES, 4, embedding="positional").values.shape == (4, 4)


def test_the_autocorrelation_is_the_sum_over_pairs():
    x = np.random.default_rng(0).standard_normal(50)
    c = x - x.mean()
    direct = np.array([c[: 50 - lag] @ c[lag:] for lag in range(50)]) / (c @ c)
    np.testing.assert_allclose(_autocorrelation(x), direct, atol=1e-12)


def test_delays_and_periods_are_bounded():
    ramp = np.arange(100.0)
    assert _choose_delay(ramp, 7) == 7
    assert _choose_delay(np.tile([1.0, -1.0], 50), 7) == 1
    assert _choose_period(np.tile([1.0, -1.0], 50)[:, None]) == 2.0
    assert _embed(np.arange(5.0)[:, None], 3, "delay", None, None)[0].shape[1] >= 3


@pytest.mark.parametrize("length", [3, 5])
def test_short_contexts_work_if_three_frames_are_left(model, length):
    assert np.isfinite(zero_shot(model, WAVES[:length, :3], 3).values).all()
    if length == 5:
        assert zero_shot(model, WAVES[:5, 0], 3).delays == (1,)


def test_divergence_is_flagged(model):
    wild = eqx.tree_at(lambda c: c.A, model, jnp.full_like(model.A, 9.0))
    forecast = zero_shot(wild, WAVES[:, :3], 100)
    assert 1 <= forecast.diverged_at < 10
    assert not np.isfinite(forecast.values).all()


BAD = {
    "at least 3 frames": (WAVES[:2, :3], {}),
    "Coordinate 2 of the context is constant": (np.column_stack([WAVES[:, :2], np.ones(300)]), {}),
    "3 missing or infinite values, the first in row 7, coordinate 0": (
        np.where(T[:, None] == 7, np.nan, WAVES)[:, :3],
        {},
    ),
    r"one row per time step; given \(1, 300, 3\)": (WAVES[None, :, :3], {}),
    r"one row per time step; given \(300, 0\)": (WAVES[:, :0], {}),
    "A delay of 149 steps takes 298 of the 300 frames": (WAVES[:, 0], {"delay": 149}),
    "Delayed by 240 steps, the 60 frames that are left": (np.where(T < 150, 1.0, np.sin(T)), {"delay": 120}),
    "At a period of 2 steps a sine is constant": (WAVES[:, 0], {"embedding": "positional", "period": 2}),
    "A delay of 1 steps takes 2 of the 4 frames": (WAVES[:4, 0], {}),
}


@pytest.mark.parametrize("message", BAD)
def test_contexts_that_cannot_be_used_are_clear_errors(model, message):
    context, options = BAD[message]
    with pytest.raises(DataError, match=message):
        zero_shot(model, context, 5, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding": "dely"}, "Did you mean 'delay'"),
        ({"delay": 0}, "delay must be at least one step, not 0"),
        ({"period": -3.0}, "period must be at least one step"),
        ({"num_steps": 0}, "num_steps must be at least 1"),
        ({"model": make_core}, "need a DynaMix .* got function|got _lru_cache_wrapper"),
    ],
)
def test_options_that_cannot_be_are_clear_errors(model, options, message):
    call = {"model": model, "context": WAVES[:, 0], "num_steps": 5, **options}
    with pytest.raises(ConfigError, match=message):
        zero_shot(**call)
