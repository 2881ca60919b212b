"""The model: its parts, the embedding, what is trainable; and the stochastic shell, its bounds and first split."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import LATENT, MAPS, OBSERVED, PROPERTY, make_core, make_model, matrix_of

from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.data.scaler import Scaler
from kaffee.errors import ConfigError
from kaffee.model.alrnn import ALRNN
from kaffee.model.observation import Projection
from kaffee.model.statespace import LOG_STD_BOUND, PARTS, Shell, StateSpaceModel, split_residuals, trainable


def test_create(x64):
    model = StateSpaceModel.create(make_core("hard"), 4, key=jax.random.key(0), noise_std=0.3, dtype=np.float64)
    assert (model.latent_dim, model.num_observed, model.dtype) == (LATENT, 4, np.float64)
    assert isinstance(model.observation, Projection)
    np.testing.assert_allclose(model.shell.process_variance(), np.full(LATENT, 0.09), rtol=1e-12)
    np.testing.assert_allclose(model.shell.observation_variance(), np.full(4, 0.09), rtol=1e-12)
    E = np.asarray(model.embedding)
    assert E.shape == (LATENT, 4)
    assert np.abs(E).max() <= 0.5  # 1 / sqrt(4)
    assert np.abs(E).max() > 0.4


@pytest.mark.parametrize("observation", MAPS)
def test_embedding_keeps_what_was_observed(observation, x64):
    model = make_model("smooth", observation)
    x = np.random.default_rng(0).standard_normal((3, OBSERVED))
    z = np.asarray(model.embed(jnp.asarray(x)))
    B, E = matrix_of(model.observation), np.asarray(model.embedding)
    np.testing.assert_allclose(z @ B.T, x, atol=1e-13)
    expected = x @ E.T
    expected = expected + (x - expected @ B.T) @ np.linalg.pinv(B).T
    np.testing.assert_allclose(z, expected, atol=1e-13)


def test_parts_must_fit(x64):
    model = make_model("smooth")
    with pytest.raises(ConfigError, match="core has 3 latent coordinates but B expects 5"):
        model.replace(core=make_core("linear", latent_dim=3))
    with pytest.raises(ConfigError, match=r"embedding has shape \(2, 5\).*must be \(5, 2\)"):
        model.replace(embedding=model.embedding.T)
    with pytest.raises(ConfigError, match=r"log_observation_std has shape \(3,\).*must be \(2,\)"):
        model.replace(shell=Shell(jnp.zeros(LATENT), jnp.zeros(3)))
    with pytest.raises(ConfigError, match=r"log_process_std has shape \(2,\)"):
        model.replace(shell=Shell(jnp.zeros(2), jnp.zeros(OBSERVED)))


@pytest.mark.parametrize("parts", [(), ("shell",), ("core", "shell"), PARTS])
def test_trainable_marks_exactly_the_chosen_parts(parts, x64):
    model = make_model("custom", "general")
    chosen, rest = eqx.partition(model, trainable(model, parts))
    for part in PARTS:
        arrays = jax.tree.leaves(eqx.filter(getattr(model, part), eqx.is_inexact_array))
        assert len(jax.tree.leaves(getattr(chosen, part))) == (len(arrays) if part in parts else 0)
    np.testing.assert_array_equal(eqx.combine(chosen, rest).embedding, model.embedding)


def test_unknown_part(x64):
    with pytest.raises(ConfigError, match=r"Unknown trainable part 'shel'. Did you mean 'shell'"):
        trainable(make_model("smooth"), ["shel"])


def test_exact_and_replace_change_nothing_else(x64):
    model = make_model("straight_through")
    exact = model.exact()
    assert exact.core.gate == "hard"
    assert model.core.gate == "straight_through"
    np.testing.assert_array_equal(exact.core.W, model.core.W)
    np.testing.assert_array_equal(exact.embedding, model.embedding)


def test_variances_are_squares(x64):
    shell = Shell.from_std([0.1, 2.0], [0.5], np.float64)
    np.testing.assert_allclose(shell.process_variance(), [0.01, 4.0], rtol=1e-14)
    np.testing.assert_allclose(shell.observation_variance(), [0.25], rtol=1e-14)


def test_given_scales_are_kept_and_trained_ones_are_bounded(tmp_path):
    shell = Shell.from_std([1e-9, 1.0], [1e6])
    np.testing.assert_allclose(np.sqrt(shell.process_variance()), [1e-9, 1.0], rtol=1e-5)
    np.testing.assert_allclose(np.sqrt(shell.observation_variance()), [1e6], rtol=1e-5)
    assert Shell.from_std([1e-3], [1.0]).bound == split_residuals(jnp.full(1, 1e-9), 2).bound == LOG_STD_BOUND
    model = StateSpaceModel.create(ALRNN.create(2, 1, key=jax.random.key(0)), 1, key=jax.random.key(1))
    saved = Reconstruction(model.replace(shell=shell), Scaler.identity(1)).save(tmp_path / "model")
    assert load(saved).model.shell.bound == shell.bound == 21.0
    with pytest.raises(ConfigError, match="does not fit into float32"):
        Shell.from_std([1e-30], [1.0])


@PROPERTY
@given(log_std=st.floats(allow_nan=False, width=32))
def test_variances_are_positive_and_finite_in_float32(log_std):
    shell = Shell(jnp.full(2, log_std, jnp.float32), jnp.full(1, log_std, jnp.float32))
    for variance in (shell.process_variance(), shell.observation_variance()):
        assert np.isfinite(variance).all()
        assert (np.asarray(variance) > 0).all()
        # and so are their inverses and squares, which a likelihood needs
        assert np.isfinite(1.0 / np.asarray(variance) ** 2).all()


def test_gradient_is_finite_everywhere_and_zero_beyond_the_bound(x64):
    gradient = jax.grad(lambda g: jnp.sum(Shell(g, g).process_variance()))
    g = jnp.asarray([-100.0, -3.0, 0.0, 2.0, 100.0])
    np.testing.assert_allclose(gradient(g), [0.0, 2 * np.exp(-6.0), 2.0, 2 * np.exp(4.0), 0.0], rtol=1e-14)
    assert LOG_STD_BOUND == 10.0


def test_split_of_the_paper(x64):
    r = np.array([0.2, 0.5, 1.1])
    shell = split_residuals(jnp.asarray(r), latent_dim=5)
    np.testing.assert_allclose(shell.observation_variance(), 0.9 * r**2, rtol=1e-12)
    q = np.mean(np.sqrt(0.1) * r)
    np.testing.assert_allclose(shell.process_variance(), np.full(5, q**2), rtol=1e-12)
    assert shell.log_process_std.dtype == np.float64


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.5])
def test_share_lies_between_nothing_and_all(alpha):
    with pytest.raises(ConfigError, match=r"lies in \(0, 1\)"):
        split_residuals(jnp.ones(2), 3, alpha)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_standard_deviations_must_be_positive_and_finite(bad):
    with pytest.raises(ConfigError, match="Every observation standard deviation must be positive and finite"):
        Shell.from_std([1.0], [1.0, bad])
    with pytest.raises(ConfigError, match="Every process standard deviation"):
        Shell.from_std([bad], [1.0])
