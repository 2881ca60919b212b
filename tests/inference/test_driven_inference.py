"""A driven model in use: matching, folders, filters, forecasts with future inputs, free runs, streams, tables."""

import io
import json
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kaffee
from kaffee.cli.main import app
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.inference.ensembles import forecast, simulate
from kaffee.inference.matching import match_series
from kaffee.inference.online import OnlineFilter
from kaffee.inference.recordings import filter_recordings, impute, smooth
from kaffee.inference.stream import follow
from kaffee.model.inputs import Driven
from kaffee.records import read_record, write_record

from .problems import DT, N, linear_model, reconstruct

T = 30


@pytest.fixture(scope="module")
def model():
    base = linear_model(dtype=np.float32)
    C = jnp.asarray(np.random.default_rng(8).standard_normal((base.latent_dim, 1)), jnp.float32)
    known = reconstruct(base.replace(core=Driven(base.core, C)))
    return replace(known, scaler=replace(known.scaler, inputs=Scaler([5.0], [2.0])), inputs=("stim",))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    rows = np.hstack(
        [rng.standard_normal((T, N)) * [3.0, 40.0] + [10.0, -200.0], 5.0 + 2.0 * rng.standard_normal((T, 1))]
    )
    return pd.DataFrame(rows, columns=["left", "right", "stim"], index=pd.Index(DT * np.arange(T), name="t"))


@pytest.fixture(scope="module")
def series(table):
    return Series.from_arrays(table.to_numpy(), columns=list(table.columns), times=table.index.to_numpy())


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return kaffee.save(model, tmp_path_factory.mktemp("driven") / "model")


def test_inputs_are_found_by_name_wherever_they_are(model, series):
    matched = match_series(model, series)
    assert matched.columns == ("left", "right")
    assert matched.inputs.columns == ("stim",)
    assert match_series(model, series.with_inputs(["stim"])) == matched
    nameless = series.select(["left", "right"]).driven_by(Series.from_arrays(series.recordings[0][:, 2:], ["u1"]))
    assert match_series(model, nameless).inputs.columns == ("stim",)
    with pytest.raises(DataError, match="driven by 'stim', but 'stim' is not among 'left', 'right'"):
        match_series(model, series.select(["left", "right"]))
    with pytest.raises(DataError, match="which are not all among 'rain'"):
        match_series(model, matched.driven_by(Series.from_arrays(np.ones((T, 1)), ["rain"])))


def test_a_folder_keeps_the_inputs(model, folder, series, tmp_path):
    back = kaffee.load(folder)
    assert back.inputs == ("stim",)
    assert back.scaler == model.scaler
    same = [filter_recordings(each, series)[0].mean for each in (model, back)]
    np.testing.assert_array_equal(*same)
    for change, message in (
        ({"inputs": []}, "'inputs' must be 1 names"),
        (
            {"scaler": {key: back.scaler.to_dict()[key] for key in ("mean", "scale")}},
            "scaler of the inputs does not fit",
        ),
        ({"core": {**json.loads((folder / "model.json").read_text())["core"], "driven": 3}}, "map of 3 inputs"),
    ):
        arrays, meta = read_record(folder, "model", "model")
        write_record(tmp_path, "model", arrays, {**meta, **change})
        with pytest.raises(CheckpointError, match=message):
            kaffee.load(tmp_path)


class Pushed(eqx.Module):
    """A user's core of state and inputs."""

    gain: jnp.ndarray

    def __call__(self, z, u):
        return 0.5 * z + self.gain * u[0]


@pytest.mark.parametrize("added", [True, False])
def test_cores_of_ones_own_are_loaded_with_their_inputs(model, tmp_path, added):
    own = Pushed(jnp.arange(5.0, dtype=jnp.float32))
    plain = lambda z: 0.5 * z  # noqa: E731
    core = Driven(kaffee.as_core(plain, 5), model.model.core.C) if added else kaffee.as_core(own, 5, 1)
    kaffee.save(replace(model, model=model.model.replace(core=core)), tmp_path / "own")
    back = kaffee.load(tmp_path / "own", core=plain if added else Pushed(jnp.zeros(5, jnp.float32)))
    assert back.inputs == ("stim",)
    z, u = jnp.ones((2, 5), jnp.float32), jnp.asarray([[1.0], [2.0]], jnp.float32)
    np.testing.assert_array_equal(back.model.core.with_inputs(u).predict_mean(z), core.with_inputs(u).predict_mean(z))
    assert not np.allclose(core.with_inputs(u).predict_mean(z)[0], core.with_inputs(u).predict_mean(z)[1])


def test_the_online_filter_is_the_filter_and_holds_inputs_that_are_left_out(model, series, tmp_path):
    held = series.recordings[0].copy()
    held[4:7, 2] = held[3, 2]
    whole = filter_recordings(model, Series.from_arrays(held, ["left", "right", "stim"]))[0]
    online = OnlineFilter(model)
    for t in range(5):
        belief = online.step(held[t, :2], inputs=None if t == 4 else held[t, 2:])
    np.testing.assert_allclose(belief.mean, whole.mean[4], rtol=1e-5)
    again = OnlineFilter(model).restore(online.save(tmp_path / "state"))
    u = held[5:, 2:].copy()
    u[:2] = np.nan
    for each in (online, again):
        np.testing.assert_allclose(each.run(held[5:, :2], u).mean[-1], whole.mean[-1], rtol=1e-5)
    with pytest.raises(DataError, match="Inputs of shape"):
        online.step(held[0, :2], inputs=[1.0, 2.0])
    with pytest.raises(DataError, match="Inputs of shape"):
        OnlineFilter(reconstruct(linear_model(dtype=np.float32))).step(held[0, :2], inputs=[1.0])


def test_a_stream_has_inputs_among_its_columns(model, series):
    rows = series.recordings[0][:6]
    lines = "left,right,stim\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n"
    out = io.StringIO()
    counts = follow(OnlineFilter(model), io.BytesIO(lines.encode()), out, print)
    assert (counts.steps, counts.broken) == (6, 0)
    last = json.loads(out.getvalue().splitlines()[-1])
    expected = filter_recordings(model, series.take([(0, slice(0, 6))]))[0].mean[-1]
    np.testing.assert_allclose([last["left_mean"], last["right_mean"]], expected, rtol=1e-5)


def test_forecasts_take_future_inputs(model, series):
    future = Series.from_arrays(np.full((6, 1), 9.0), ["stim"])
    other = Series.from_arrays(np.full((6, 1), 1.0), ["stim"])
    high, low = (forecast(model, series, 6, members=4, inputs=u)[0].mean for u in (future, other))
    # Noise is the same, so that members differ by the inputs alone: B sum_k A^k C du after h steps.
    A, C = (np.asarray(each, np.float64) for each in (model.model.core.inner.A, model.model.core.C))
    step, total = C[:, 0] * 4.0, np.zeros(len(A))
    for h in range(6):
        total = A @ total + step
        np.testing.assert_allclose(high[h] - low[h], total[:N] * [3.0, 40.0], rtol=1e-3, atol=2e-3)
    inside = forecast(model, series, 5, members=4, at=float(series.times[0][T - 8]))[0]
    assert inside.mean.shape == (5, N)  # rows after the start have inputs of their own
    with pytest.raises(DataError, match="needs these inputs for every step, but there are 0 rows"):
        forecast(model, series, 1)
    with pytest.raises(DataError, match="there are 6 rows"):
        forecast(model, series, 7, inputs=future)
    dated = Series.from_arrays(np.arange(12.0)[:, None], ["stim"], times=DT * np.arange(T - 4, T + 8))
    timed = forecast(model, series, 8, members=4, inputs=dated)[0].mean
    plain = forecast(model, series, 8, members=4, inputs=Series.from_arrays(np.arange(4.0, 12.0)[:, None], ["stim"]))
    np.testing.assert_array_equal(timed, plain[0].mean)
    late = Series.from_arrays(np.arange(12.0)[:, None], ["stim"], times=DT * np.arange(T + 4, T + 16))
    with pytest.raises(DataError, match="inputs must begin one step after"):
        forecast(model, series, 8, inputs=late)
    with pytest.raises(DataError, match="2 recordings of inputs for 1 forecasts"):
        forecast(model, series, 2, inputs=Series.from_arrays([np.ones((3, 1))] * 2, ["stim"]))


def test_free_runs_need_inputs(model, series):
    with pytest.raises(DataError, match="driven by stim: a free run needs inputs"):
        simulate(model, 5)
    recorded = series.select(["stim"])
    (run,) = simulate(model, 40, shell=False, transient=0, start=model.scaler.mean, inputs=recorded)
    assert np.ptp(run.values[:, 0]) > 1.0
    assert simulate(model, 5, inputs=recorded).facts["input_rows"] == T


def test_a_surrogate_takes_inputs_as_arrays_or_columns(folder, table):
    surrogate = kaffee.Surrogate.load(folder)
    x, u = table[["left", "right"]].to_numpy(), table["stim"].to_numpy()
    by_name = surrogate.filter(table)
    assert list(by_name.columns[:2]) == ["left_mean", "left_std"]
    by_array = surrogate.filter(x, inputs=u)
    np.testing.assert_allclose(by_array.mean[:, 0], by_name["left_mean"], rtol=1e-6)
    assert surrogate.score(x, inputs=u) == pytest.approx(surrogate.score(table))
    assert surrogate.smooth(x, inputs=u).mean.shape == (T, N)
    gap = table.copy()
    gap.iloc[5, 0] = np.nan
    filled = surrogate.impute(gap)
    assert list(filled.columns) == ["left", "right"]
    assert filled.notna().all(axis=None)
    ahead = surrogate.forecast(4, x[:20], inputs=u[:24], members=5)
    assert ahead.mean.shape == (4, N)
    np.testing.assert_allclose(
        surrogate.forecast(4, table[:20], inputs=u[20:24], members=5)["left_mean"], ahead.mean[:, 0]
    )
    assert surrogate.simulate(5, inputs=u).shape == (5, N)
    with pytest.raises(DataError, match="give inputs="):
        surrogate.filter(x)


def test_commands_take_files_of_inputs(folder, table, tmp_path):
    def call(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    table.to_csv(tmp_path / "data.csv")
    pd.DataFrame({"t": DT * np.arange(T, T + 5), "stim": 4.0}).to_csv(tmp_path / "future.csv", index=False)
    data, out = tmp_path / "data.csv", tmp_path / "out.csv"
    done = call("forecast", folder, data, "--steps", 5, "--inputs", tmp_path / "future.csv", "-o", out)
    assert done.exit_code == 0, done.exception
    assert len(pd.read_csv(out)) == 5
    assert call("impute", folder, data, "-o", out, "--columns", "right,left").exit_code == 0
    assert list(pd.read_csv(out).columns[:3]) == ["t", "left", "right"]
    assert call("run-free", folder, "--steps", 9, "--inputs", data, "-o", out).exit_code == 0
    assert isinstance(call("run-free", folder, "--steps", 9, "-o", out).exception, DataError)
    plain = kaffee.save(reconstruct(linear_model(dtype=np.float32)), tmp_path / "plain")
    refused = call("run-free", plain, "--steps", 9, "--inputs", data, "-o", out)
    assert isinstance(refused.exception, ConfigError)


def test_models_in_context_take_no_inputs(series):
    with pytest.raises(ConfigError, match="takes no inputs \\(stim\\)"):
        kaffee.zero_shot(series.with_inputs(["stim"]))


def test_smoothing_and_imputing_use_inputs(model, series):
    zero = series.with_inputs(["stim"])
    other = zero.driven_by(Series.from_arrays(np.full((T, 1), 5.0), ["stim"]))
    a, b = (smooth(model, each)[0].mean for each in (zero, other))
    assert np.abs(a - b).max() > 0.1
    np.testing.assert_array_equal(impute(model, zero)[0].values, zero.recordings[0])
