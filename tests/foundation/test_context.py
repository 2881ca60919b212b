"""In-context adaptation: what it reads, what it moves, what it refuses; DynaMix and a model that is not."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.checkpoint.reconstruction import load
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.sweep import run_filter
from kaffee.fitting.pipeline import adapt_foundation_model
from kaffee.foundation.context import IN_CONTEXT, condition, lyapunov_window, read_all
from kaffee.model.maps import Linear
from kaffee.model.statespace import split_residuals
from kaffee.training.forcing import Forcing
from kaffee.training.loop import Schedule
from kaffee.training.pretraining import residual_std

from .conftest import make_core

FEW = replace(IN_CONTEXT, burn_in=2, schedule=Schedule(num_updates=3, batch_size=4, report_every=3, save_every=3))


def wave(num_rows=60, scale=(3.0, 0.5), offset=(10.0, -1.0)):
    """A noisy circle in data units."""
    angle = 0.3 * np.arange(num_rows)
    noise = 0.05 * np.random.default_rng(0).standard_normal((num_rows, 2))
    return (np.stack([np.sin(angle), np.cos(angle)], axis=1) + noise) * scale + offset


@pytest.fixture(scope="module")
def model():
    return make_core(np.float32, num_frames=0)


def adapted(model, method, observations=None, **options):
    observations = wave() if observations is None else observations
    # 1 / (lambda dt) is far below 24: windows of 24 scored steps
    return adapt_foundation_model(
        model,
        observations,
        method=method,
        lyapunov_exponent=5.0,
        settings=FEW,
        **{"seed": 0, "held_out": 0.0, **options},
    )


class Regression:
    """A context model in two lines: least squares, whose core is a plain function."""

    def in_context(self, context):
        x = np.asarray(context)
        A = jnp.asarray(np.linalg.lstsq(x[:-1], x[1:], rcond=None)[0].T, jnp.float32)
        return Step(A)

    def initial_state(self, x):
        return x


class Step(eqx.Module):
    A: jax.Array

    def __call__(self, z):
        return self.A @ z


# --- conditioning ---


def test_the_context_sets_units_embedding_and_shell(model):
    observations = wave()
    surrogate, context = condition(model, observations, dt=0.1, columns=("a", "b"))
    mean, std = observations.mean(axis=0), observations.std(axis=0, ddof=1)
    np.testing.assert_allclose(surrogate.scaler.mean, mean)
    np.testing.assert_allclose(surrogate.scaler.scale, std)
    np.testing.assert_allclose(context.recordings[0], (observations - mean) / std, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(surrogate.model.core.context.frames.T, context.recordings[0][:-1], rtol=1e-5, atol=1e-5)
    x = jnp.asarray([0.3, -0.7])
    np.testing.assert_allclose(surrogate.model.embed(x), model.initial_state(x), rtol=1e-6)
    residuals = residual_std(surrogate.model, context, Forcing(interval=1))
    expected = split_residuals(residuals, model.latent_dim, 0.9)
    np.testing.assert_allclose(surrogate.model.shell.process_variance(), expected.process_variance(), rtol=1e-5)
    np.testing.assert_allclose(surrogate.model.shell.observation_variance(), expected.observation_variance(), rtol=1e-5)
    assert (surrogate.dt, surrogate.columns) == (0.1, ("a", "b"))


@pytest.mark.parametrize(
    ("exponent", "dt", "steps"),
    [(0.902, 0.02, 55), (3.677, 0.005, 54), (2e-4, 0.02, 128), (50.0, 0.02, 24), (0.0, 0.02, 128), (None, 1.0, 128)],
)
def test_windows_are_one_lyapunov_time_within_bounds(exponent, dt, steps):
    assert lyapunov_window(exponent, dt) == steps


# --- adaptation ---


def experts_and_rest(core):
    rest = eqx.tree_at(lambda c: (c.A, c.W, c.h), core, (0.0, 0.0, 0.0))
    return (core.A, core.W, core.h), rest


@pytest.mark.parametrize("method", ["kaffee", "noise_masking", "frozen_core"])
def test_experts_and_shell_move_and_nothing_else_does(model, method):
    before, _ = condition(model, wave())
    after = adapted(model, method)
    experts, rest = experts_and_rest(before.model.core)
    moved, kept = experts_and_rest(after.model.core)
    assert eqx.tree_equal(rest, kept)  # gate, context, B
    same = bool(eqx.tree_equal(experts, moved))
    assert same == (method == "frozen_core")
    assert not eqx.tree_equal(before.model.shell, after.model.shell)
    largest = max(float(jnp.abs(a - b).max()) for a, b in zip(experts, moved, strict=True))
    assert largest <= 3 * 5e-5 * 1.01  # three Adam steps of 5e-5


def test_the_gate_trains_if_asked(model):
    after = adapted(model.with_tangent("mixture", train_gate=True), "kaffee")
    before = model.in_context(jnp.asarray(condition(model, wave())[1].recordings[0]))
    assert not eqx.tree_equal(before.gating, after.model.core.gating)
    assert eqx.tree_equal(before.context, after.model.core.context)


def test_seeds_decide(model):
    first, again, other = (adapted(model, "kaffee", seed=seed) for seed in (1, 1, 2))
    assert eqx.tree_equal(first.model, again.model)
    assert not eqx.tree_equal(first.model, other.model)


def test_an_adapted_model_is_saved_and_restored(model, tmp_path):
    made = adapted(model, "kaffee")
    made.save(tmp_path / "run")
    back = load(tmp_path / "run")
    assert eqx.tree_equal(made.model, back.model)
    assert back.provenance["method"] == back.method == "kaffee"
    assert back.provenance["scored"] == 24


def test_a_model_that_is_not_dynamix():
    surrogate = adapted(Regression(), "kaffee")
    x = jnp.asarray(surrogate.scaler.transform(wave()), jnp.float32)[None]
    run = run_filter(surrogate.model, x, jnp.ones_like(x, bool))
    assert run.outcome.ok
    error = np.asarray(run.innovations[0, 10:]).std()
    assert error < 0.3  # of a circle with standard deviation 1 and 5 % noise


def test_a_core_of_the_library_passes_through():
    class Constant(Regression):
        def in_context(self, context):
            return Linear(super().in_context(context).A, jnp.zeros(2, jnp.float32))

    assert isinstance(adapted(Constant(), "frozen_core").model.core, Linear)


# --- rows that are held out ---


def test_held_out_rows_are_not_read_until_the_end(model):
    observations = wave(120)
    zero_shot, rows = condition(model, observations, held_out=0.25)
    whole = zero_shot.scaler.transform(observations)
    np.testing.assert_allclose(zero_shot.model.core.context.frames.T, whole[:90][:-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows.recordings[0], whole[90:])
    np.testing.assert_allclose(zero_shot.scaler.mean, observations.mean(axis=0))
    after = adapted(model, "kaffee", observations, held_out=0.25)
    np.testing.assert_allclose(after.model.core.context.frames.T, whole[:-1], rtol=1e-5, atol=1e-5)
    assert not eqx.tree_equal(after.model.core.A, zero_shot.model.core.A)
    assert after.provenance["held_out"] == 0.25


def test_a_core_that_cannot_read_stays_as_it_is():
    surrogate, _ = condition(Regression(), wave(), held_out=0.25)
    assert read_all(surrogate.model, wave()) is surrogate.model


@pytest.mark.parametrize("share", [-0.1, 0.01, 0.99, 1.0, 2.0])
def test_shares_that_leave_nothing_are_refused(model, share):
    with pytest.raises(ConfigError, match="both sides"):
        condition(model, wave(), held_out=share)


# --- bad contexts ---


def spoiled(row, column, value):
    observations = wave()
    observations[row, column] = value
    return observations


@pytest.mark.parametrize(
    ("observations", "words"),
    [
        (wave(2), r"at least 3 frames.*given 2"),
        (wave(3), r"3 rows are too few to adapt on.*Give at least 4 rows"),
        (spoiled(7, 1, np.nan), r"first in row 7, coordinate 1"),
        (spoiled(7, 0, np.inf), r"first in row 7, coordinate 0"),
        (np.concatenate([wave()[:, :1], np.full((60, 1), 2.0)], axis=1), r"Coordinate 1 of the context is constant"),
        (np.concatenate([wave(), wave()], axis=1), r"shape \(T, 2\).*given \(60, 4\)"),
        (wave()[:, 0], r"shape \(T, N\).*given \(60,\)"),
    ],
)
def test_contexts_that_cannot_be_used_are_refused(model, observations, words):
    with pytest.raises(DataError, match=words):
        adapted(model, "kaffee", observations)


def test_messages_count_the_rows_that_were_given(model):
    """Not those that are left of them."""
    with pytest.raises(DataError, match=r"^13 rows are too few .* last 25%, which are held out. Give at least 14 rows"):
        adapted(model, "kaffee", wave(13), held_out=0.25)


@pytest.mark.parametrize("exponent", [np.nan, np.inf])
def test_an_exponent_that_is_no_number_is_refused(exponent):
    with pytest.raises(ConfigError, match="Leave it out if it is not known"):
        lyapunov_window(exponent, 0.1)
