"""The first shell: residuals of the prior under teacher forcing against a plain loop, then split 90/10."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from small import LATENT, OBSERVED, gappy_series, same_arrays, small_model, standard_series

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.training.forcing import Forcing
from kaffee.training.pretraining import PIECE, initialise_shell, residual_std


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
    expected = residuals_of(growing, series.pieces(PIECE), 1)
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
