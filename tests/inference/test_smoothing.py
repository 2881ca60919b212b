"""The smoother against the textbook, the dense posterior of a linear model, and gaps that no model can bridge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, matrix_of

from inference.problems import (
    dense_posterior,
    expanding_reconstruction,
    linear_model,
    reconstruct,
    recordings,
    textbook_smoother,
)
from kaffee.data.series import Series
from kaffee.inference.recordings import filter_recordings, smooth
from kaffee.model.dynamix import DynaMix
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel


def compare(found, reconstruction, means, covariances, r):
    """States, signals and readings of one recording, to 1e-8 in units of the model."""
    model, scaler = reconstruction.model, reconstruction.scaler
    B, Lambda = matrix_of(model.observation), np.asarray(model.shell.observation_variance())
    np.testing.assert_allclose(found[r].state_mean, means, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found[r].state_std ** 2, np.diagonal(covariances, axis1=1, axis2=2), rtol=0, atol=1e-8)
    np.testing.assert_allclose(scaler.transform(found[r].mean), means @ B.T, rtol=0, atol=1e-8)
    signal = np.diagonal(B @ covariances @ B.T, axis1=1, axis2=2)
    np.testing.assert_allclose((found[r].std / scaler.scale) ** 2, signal, rtol=0, atol=1e-8)
    np.testing.assert_allclose((found[r].reading_std / scaler.scale) ** 2, signal + Lambda, rtol=0, atol=1e-8)


def test_a_linear_model_is_smoothed_to_its_exact_posterior(x64):
    for seed in range(4):
        reconstruction, series = reconstruct(linear_model(seed)), recordings(seed)
        found = smooth(reconstruction, series)
        for r, values in enumerate(series.standardised(reconstruction.scaler).recordings):
            compare(found, reconstruction, *dense_posterior(reconstruction.model, values), r)
            compare(found, reconstruction, *textbook_smoother(reconstruction.model, values)[:2], r)


def dynamix_model():
    """A core with noise inside, which smoothing switches off."""
    core = DynaMix.create(5, num_observed=2, num_experts=3, num_frames=9, key=jax.random.key(0), dtype=jnp.float64)
    assert core.noise_dim == 2
    return StateSpaceModel(
        core,
        Shell.from_std(np.full(5, 0.3), np.full(2, 0.4), np.float64),
        Projection(2, 5),
        jnp.asarray(np.random.default_rng(0).uniform(-0.5, 0.5, (5, 2))),
    )


@pytest.mark.parametrize(
    ("make", "method"),
    [(linear_model, "blind"), (lambda: make_model("straight_through", "general"), "kaffee"), (dynamix_model, "kaffee")],
    ids=["without transport", "alrnn", "dynamix"],
)
def test_other_models_are_smoothed_around_the_filters_linearisations(make, method, x64):
    reconstruction, series = reconstruct(make(), method), recordings()
    found = smooth(reconstruction, series)
    for r, values in enumerate(series.standardised(reconstruction.scaler).recordings):
        oracle = textbook_smoother(reconstruction.model, values, transport=method != "blind")
        compare(found, reconstruction, *oracle[:2], r)
        filtered = np.sqrt(np.diagonal(oracle[2], axis1=1, axis2=2))
        assert (found[r].state_std <= filtered + 1e-9).all()
        assert (found[r].state_std[:-1] < filtered[:-1]).any()


def test_a_gap_that_no_model_can_bridge_stays_finite_in_float32():
    """Uncertainty grows 1.1-fold a step for 1000 steps: past 1e40, if nobody stopped it."""
    reconstruction = expanding_reconstruction()
    rng = np.random.default_rng(0)
    values = reconstruction.scaler.inverse(0.3 * rng.standard_normal((1200, 2)))
    values[100:1100] = np.nan
    series = Series.from_arrays(values, columns=reconstruction.columns)
    filtered, smoothed = filter_recordings(reconstruction, series), smooth(reconstruction, series)
    assert filtered.describe()["restarts"] >= 10
    standard = smoothed[0].std / reconstruction.scaler.scale
    assert np.isfinite(smoothed[0].mean).all()
    assert np.isfinite(standard).all()
    assert standard[90:100].max() < 1.0
    assert 1.0 < standard[500:600].max() < 20.0
    assert standard[1110:].max() < 1.0
    assert (smoothed[0].state_std <= filtered[0].state_std * (1 + 1e-3) + 1e-3).all()
