"""Logging during adaptation: fixed windows, any score, any loss; certification of models with and without a truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model, standard_series

from kaffee.certification.fidelity import Protocol, simulate_reference
from kaffee.data.series import Series
from kaffee.data.windows import training_windows
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.likelihood import CORE_COLLAPSE, KAFFEE, window_nll
from kaffee.filtering.rollout import free_run
from kaffee.metrics.spectra import d_hellinger
from kaffee.model.alrnn import ALRNN
from kaffee.model.statespace import StateSpaceModel
from kaffee.systems.catalogue import get_system
from kaffee.theory.dpc import Certifier, Entry, GapLog, Measured, fixed_score
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.loop import Schedule, Watcher

SETTINGS = Adaptation(scored=4, burn_in=1, schedule=Schedule(num_updates=6, batch_size=2, report_every=2, save_every=6))


def test_a_log_looks_every_k_updates_and_changes_nothing():
    seen = []

    class Inner(Watcher):
        def advanced(self, update, loss, skipped):
            seen.append(update)

    log = GapLog(lambda m: float(jnp.sum(m.core.W)), lambda m: {"D": Measured(1.0)}, every=4, last=6, inner=Inner())
    watched = adapt(small_model(), standard_series(), KAFFEE, SETTINGS, seed=0, watcher=log)
    plain = adapt(small_model(), standard_series(), KAFFEE, SETTINGS, seed=0)
    assert [e.update for e in log.entries] == [0, 4, 6]
    assert seen == [2, 4, 6]
    assert log.entries[0] == Entry(0, float(jnp.sum(small_model().core.W)), {"D": Measured(1.0)})
    np.testing.assert_array_equal(watched.model.core.W, plain.model.core.W)
    with pytest.raises(ConfigError, match="every 0"):
        GapLog(lambda m: 0.0, lambda m: {}, every=0)


@pytest.mark.parametrize("method", [KAFFEE, CORE_COLLAPSE])
def test_the_fixed_score_is_the_methods_objective_on_the_same_windows(method):
    model, series = small_model(), standard_series()
    score = fixed_score(model, series, method, SETTINGS, num_windows=5)
    surrogate = model.replace(core=model.core.surrogate())
    batch = training_windows(series, 6).sample(jax.random.key(0), 5)
    expected = window_nll(surrogate, batch.observations, batch.mask, method.recursion, burn_in=1).loss
    assert score(surrogate) == pytest.approx(float(expected), rel=1e-5)
    assert score(surrogate) == score(surrogate)


def recording(num_rows=300):
    return Series.from_arrays(np.random.default_rng(0).standard_normal((num_rows, 2)))


def test_without_a_truth_the_recording_is_what_runs_are_compared_with():
    model = small_model()
    certify = Certifier.from_series(recording(), num_runs=2, num_steps=200, transient=10)
    losses = certify(model)
    assert set(losses) == {"d_stsp_core", "d_h_core", "d_stsp_stoch"}
    data = recording().recordings[0][:200]
    starts = model.embed(jnp.asarray(data[[0, 199]], model.dtype))
    runs = np.asarray(free_run(model, starts, 200, transient=10).observations, np.float64)
    values = [d_hellinger(data, run) for run in runs]
    assert losses["d_h_core"].value == pytest.approx(np.mean(values), rel=1e-6)
    assert losses["d_h_core"].se == pytest.approx(np.std(values, ddof=1) / 2**0.5, rel=1e-6)


def test_the_longest_complete_stretch_of_a_gappy_recording_is_used():
    values = np.random.default_rng(0).standard_normal((400, 2))
    values[120, 0] = np.nan
    certify = Certifier.from_series(Series.from_arrays(values), num_steps=1000)
    np.testing.assert_array_equal(certify.noisy, values[121:])
    assert certify.num_steps == 279
    values[::50] = np.nan
    with pytest.raises(DataError, match="at least 100 consecutive complete rows, not 49"):
        Certifier.from_series(Series.from_arrays(values))


def test_a_diverging_model_has_infinite_losses():
    model = small_model()
    M = model.latent_dim
    wild = model.replace(core=ALRNN(jnp.full(M, 1.5), jnp.zeros((M, M)), jnp.ones(M), 1, "hard"))
    losses = Certifier.from_series(recording(), num_runs=2, num_steps=200)(wild)
    assert all(loss.value == np.inf for loss in losses.values())


def test_with_a_truth_entropy_and_grounding_are_certified_too():
    protocol = Protocol(rollout_steps=1500, transient=100, forecast_span=600, num_extra_starts=100)
    noise = {"process_noise": 0.02, "observation_noise": 0.1, "seed": 0}
    reference = simulate_reference(get_system("lorenz63"), num_train_steps=500, protocol=protocol, **noise)
    model = StateSpaceModel.create(ALRNN.create(6, 3, key=jax.random.key(0)), 3, key=jax.random.key(1))
    sizes = {"num_runs": 2, "num_steps": 300, "transient": 50, "grounding_steps": 100}
    losses = Certifier.from_reference(reference, KAFFEE.filter, **sizes)(model)
    assert set(losses) == {"d_stsp_core", "d_h_core", "d_stsp_stoch", "dh_core", "blindness"}
    # An untrained core of small weights contracts: no positive exponent, the error is the whole entropy.
    assert losses["dh_core"].value == pytest.approx(reference.lyapunov.sum_positive, rel=1e-6)
    assert 0.0 <= losses["blindness"].value <= 2.0
    assert losses["blindness"].se > 0.0
