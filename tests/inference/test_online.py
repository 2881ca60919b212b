"""The online filter: the batch filter's beliefs, whatever arrives, and a state that survives on disk."""

import json
import os
import pickle
from itertools import pairwise
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model

from inference.problems import SCALER, M, expanding_reconstruction, reconstruct, recordings
from kaffee.data.series import Series
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.inference.ensembles import forecast
from kaffee.inference.online import OnlineFilter
from kaffee.inference.recordings import filter_recordings
from kaffee.model.wrappers import Custom

# The acceptance run: KAFFEE_ONLINE_STEPS=1000000 pytest tests/inference/test_online.py -k endures
STEPS = int(os.environ.get("KAFFEE_ONLINE_STEPS", "20000"))
FIELDS = ("mean", "std", "predicted_mean", "predicted_std", "state_mean", "state_std", "log_likelihood", "nis")


@pytest.fixture(scope="module")
def reconstruction():
    return reconstruct(make_model("straight_through", dtype=np.float32))


def readings(num_steps, seed=0):
    """Standard normal readings in data units, a tenth of the entries missing."""
    rng = np.random.default_rng(seed)
    values = SCALER.inverse(rng.standard_normal((num_steps, 2)))
    values[rng.uniform(size=values.shape) < 0.1] = np.nan
    return values


def assert_same(found, expected, tolerance):
    """Equal to a tolerance in units of the data's spread."""
    for name in FIELDS:
        a, b = getattr(found, name), getattr(expected, name)
        unit = SCALER.scale if a.shape[-1:] == (2,) else 1.0
        np.testing.assert_allclose(a / unit, b / unit, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_beliefs_are_those_of_the_batch_filter(dtype, tolerance):
    with jax.enable_x64(dtype == np.float64):
        model = reconstruct(make_model("straight_through", dtype=dtype))
        batch = filter_recordings(model, recordings())
        for values, expected in zip(recordings().recordings, batch, strict=True):
            online = OnlineFilter(model)
            steps = [online.step(None if np.isnan(row).all() else row) for row in values]
            whole = OnlineFilter(model).run(values)
            assert_same(whole, expected, tolerance)
            for t, belief in enumerate(steps):
                assert_same(belief, expected.at(t), tolerance)
            assert online.num_steps == len(values)


def test_how_rows_arrive_does_not_matter(reconstruction):
    values = readings(600)
    whole, parts = OnlineFilter(reconstruction).run(values), OnlineFilter(reconstruction)
    cuts = [0, 1, 2, 250, 600]
    pieces = [parts.run(values[a:b]) for a, b in pairwise(cuts)]
    for name in FIELDS:
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in pieces]), getattr(whole, name))
    assert parts.run(values[:0]).mean.shape == (0, 2)


def test_saving_and_restoring_in_the_middle_changes_nothing(reconstruction, tmp_path):
    values = readings(40)
    undisturbed = OnlineFilter(reconstruction, gate=0.9)
    expected = [undisturbed.step(row) for row in values]
    first = OnlineFilter(reconstruction, gate=0.9)
    for row in values[:20]:
        first.step(row)
    first.save(tmp_path / "state")
    second = OnlineFilter(reconstruction).restore(tmp_path / "state")
    assert (second.gate, second.num_steps) == (0.9, 20)
    for row, belief in zip(values[20:], expected[20:], strict=True):
        found = second.step(row)
        for name in (*FIELDS, "rejected"):
            np.testing.assert_array_equal(getattr(found, name), getattr(belief, name))


def test_a_damaged_foreign_or_missing_state_is_refused(reconstruction, tmp_path):
    online = OnlineFilter(reconstruction)
    online.step([10.0, -200.0])
    folder = online.save(tmp_path / "state")
    other = reconstruct(make_model("straight_through", seed=1, dtype=np.float32))
    with pytest.raises(CheckpointError, match="another model's filter"):
        OnlineFilter(other).restore(folder)
    with pytest.raises(CheckpointError, match="There is no state"):
        online.restore(tmp_path)
    record = json.loads((folder / "online.json").read_text())
    (folder / "online.json").write_text(json.dumps({**record, "facts": {"gate": None}}))
    with pytest.raises(CheckpointError, match="checksum"):
        online.restore(folder)
    (folder / "online.json").write_text(json.dumps(record))
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        online.restore(folder)


def test_a_gate_rejects_reports_and_gives_in(reconstruction):
    online = OnlineFilter(reconstruction, gate=1 - 1e-9, patience=3)
    for row in readings(20):
        online.step(row)
    far = SCALER.mean + np.array([0.0, 60.0]) * SCALER.scale
    rejected = [online.step(far).rejected.tolist() for _ in range(4)]
    assert rejected == [[False, True]] * 3 + [[False, False]]
    assert not online.step([np.nan, np.nan]).rejected.any()


def test_nothing_that_is_read_destroys_the_belief(reconstruction):
    online = OnlineFilter(reconstruction)
    for row in readings(5):
        online.step(row)
    for bad in (np.inf, -np.inf, 1e300, 1e38, -1e30):
        belief = online.step([bad, SCALER.mean[1]])
        assert belief.rejected.tolist() == [True, False]
        assert np.isfinite(belief.mean).all()
    lost = OnlineFilter(expanding_reconstruction())
    lost.step(SCALER.mean)
    restarts = 0
    for _ in range(300):
        belief = lost.step()
        restarts += int(belief.restarted)
        assert np.isfinite(belief.std).all()
    assert 2 <= restarts <= 20


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ([1.0], r"shape \(1,\) does not fit: the model observes 2 coordinates \(left, right\)"),
        ("oops", "must be numbers"),
        ([1.0 + 2.0j, 3.0], r"must be numbers, nan for missing ones, not \[\(1\+2j\), 3.0\]"),
        (np.ones(2, complex), "must be numbers"),
    ],
)
def test_readings_that_do_not_fit_are_one_sentence(reconstruction, reading, message):
    with pytest.raises(DataError, match=message):
        OnlineFilter(reconstruction).step(reading)
    with pytest.raises(ConfigError, match="quantile between 0 and 1"):
        OnlineFilter(reconstruction, gate=1.5)
    with pytest.raises(DataError, match="does not fit"):
        OnlineFilter(reconstruction).run(np.ones(2))


def test_one_program_serves_all_filters_of_a_structure():
    traces = []

    class Counted(eqx.Module):
        weights: jax.Array

        def __call__(self, z):
            traces.append(1)
            return jnp.tanh(self.weights @ z)

        def jacobian(self, z):
            return jnp.eye(M, dtype=z.dtype)

    counts = []
    for seed in (0, 1):
        weights = jnp.asarray(np.random.default_rng(seed).standard_normal((M, M)), jnp.float32)
        model = make_model(Custom(Counted(weights), M), dtype=np.float32)
        online = OnlineFilter(reconstruct(model), gate=0.99 if seed else None)
        for row in readings(5, seed):
            online.step(row)
        counts.append(len(traces))
    assert counts[0] == counts[1] > 0


def resident_bytes():
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_filter_endures(reconstruction):
    """Many steps in float32: finite all along, in memory that does not grow."""
    online, values = OnlineFilter(reconstruction), readings(5000)
    online.run(values)
    before = resident_bytes() if Path("/proc/self/statm").exists() else 0
    while online.num_steps < STEPS:
        found = online.run(values)
        assert np.isfinite(found.mean).all()
        assert (found.std > 0).all()
    for row in values[:500]:
        online.step(row)
    if before:
        assert resident_bytes() - before < 40e6
    assert online.num_steps >= STEPS


def test_a_forecast_goes_on_from_what_was_read(reconstruction):
    online = OnlineFilter(reconstruction)
    with pytest.raises(DataError, match="nothing was read yet"):
        online.forecast(3)
    rows = readings(5)
    online.run(rows)
    again = pickle.loads(pickle.dumps(online))
    expected = forecast(reconstruction, Series.from_arrays(rows, ["x1", "x2"]), 3, members=10, seed=2)[0]
    for each in (online, again):
        np.testing.assert_allclose(each.forecast(3, members=10, seed=2).members, expected.members, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(online.step(rows[0]).mean, again.step(rows[0]).mean)
