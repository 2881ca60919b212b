"""Teacher forcing: the run, its loss and its hand-derived gradient against an explicit loop."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from models import OBSERVED, STEPS, WINDOWS, flat, make_data, make_model, matrix_of

from kaffee.errors import ConfigError
from kaffee.training.forcing import Forcing, forcing_loss, run_forced

SPARSE, GENERALISED = Forcing(interval=3), Forcing(interval=1, alpha=0.3)


def explicit_loss(model, B, x, mask, forcing):
    """The mean squared error of a forced run: a Python loop over windows and steps. B is fixed, as in the paper."""
    B_plus = np.linalg.pinv(B)
    total, count = 0.0, 0
    for w in range(WINDOWS):
        z = model.embedding @ x[w, 0]
        z = z + B_plus @ (x[w, 0] - B @ z)
        for t in range(1, STEPS + 1):
            z = model.core(z)
            seen = np.asarray(mask[w, t])
            gap = jnp.where(seen, jnp.nan_to_num(x[w, t]) - B @ z, 0.0)
            total, count = total + jnp.sum(gap**2), count + int(seen.sum())
            if t % forcing.interval == 0:
                z = z + forcing.alpha * B_plus @ gap
    return total / count


@eqx.filter_jit
def loss_and_gradient(model, x, mask, forcing):
    return eqx.filter_value_and_grad(forcing_loss)(model, x, mask, forcing)


@pytest.mark.parametrize(
    ("kind", "observation", "forcing"),
    [("hard", "projection", SPARSE), ("hard", "general", GENERALISED), ("mlp", "general", SPARSE)],
)
def test_loss_and_gradient_are_those_of_the_loop(kind, observation, forcing, x64):
    model, (x, mask) = make_model(kind, observation), make_data()
    B = matrix_of(model.observation)
    expected, gradient = eqx.filter_value_and_grad(explicit_loss)(model, B, x, np.asarray(mask), forcing)
    value, adjoint = loss_and_gradient(model, x, mask, forcing)
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    scale = np.abs(flat(gradient.core)).max()
    for part in ("core", "embedding"):
        a, b = flat(getattr(adjoint, part)), flat(getattr(gradient, part))
        assert np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * scale, err_msg=part)
    assert (flat(adjoint.shell) == 0.0).all()


def test_states_and_the_embedding_are_differentiated_too(x64):
    """A function of the carried states alone, with the core frozen."""
    model, (x, mask) = make_model("smooth", "general"), make_data()
    forcing = Forcing(interval=2, alpha=0.5)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def total(model):
        run, _ = run_forced(model.replace(core=frozen), x, mask, forcing)
        return jnp.sum(run.states**2)

    frozen = model.core
    gradient = total(model)[1]
    step, direction = 1e-6, np.random.default_rng(0).standard_normal(model.embedding.shape)
    high, low = (float(total(model.replace(embedding=model.embedding + s * direction))[0]) for s in (step, -step))
    assert float(jnp.sum(gradient.embedding * direction)) == pytest.approx((high - low) / (2 * step), rel=1e-6)
    assert (flat(gradient.core) == 0.0).all()


def test_forcing_at_every_step_predicts_from_the_data(x64):
    """B = I: with interval 1 and alpha 1 every prediction is the core's step from the row before it."""
    model, (x, mask) = make_model("linear"), make_data(missing=0.0)
    run, observations = run_forced(model, x, mask, Forcing(interval=1))
    np.testing.assert_allclose(run.states[..., :OBSERVED], observations.x, rtol=1e-12)
    hidden = run.states[2, 0, OBSERVED:]
    z = jnp.concatenate([x[0, 3], hidden])
    np.testing.assert_allclose(run.predictions[3, 0], model.core(z)[:OBSERVED], rtol=1e-12)


def test_without_forcing_it_is_a_free_run(x64):
    model, (x, mask) = make_model("linear"), make_data(missing=0.0)
    run, _ = run_forced(model, x, mask, Forcing(interval=1, alpha=0.0))
    z = np.asarray(model.embed(x[1, 0]))
    for t in range(STEPS):
        z = np.asarray(model.core(jnp.asarray(z)))
        np.testing.assert_allclose(run.states[t, 1], z, rtol=1e-11, atol=1e-12)


def test_missing_entries_may_hold_anything(x64):
    model, (x, mask) = make_model("linear"), make_data()
    mask = mask.at[0, 0, 0].set(False)
    losses = {float(forcing_loss(model, jnp.where(mask, x, junk), mask, SPARSE)) for junk in (0.0, np.nan, 1e30)}
    assert len(losses) == 1
    assert np.isfinite(losses.pop())
    assert float(forcing_loss(model, x, jnp.zeros_like(mask), SPARSE)) == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"interval": 0}, "at least 1 step, not 0"),
        ({"alpha": 1.5}, "alpha lies in"),
        ({"alpha": -0.1}, "alpha lies in"),
    ],
)
def test_settings_must_make_sense(values, message):
    with pytest.raises(ConfigError, match=message):
        Forcing(**values)


def test_an_interval_beyond_64_bits_never_forces():
    assert not Forcing(interval=2**70).strengths(5).any()
    np.testing.assert_array_equal(Forcing(interval=5).strengths(5), [0, 0, 0, 0, 1])
