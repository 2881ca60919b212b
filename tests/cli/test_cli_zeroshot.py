"""`kaffee zeroshot` in context, and `kaffee fit --core incontext`."""

import json

import numpy as np
import pytest

from kaffee.data.reading import read_series
from kaffee.data.writing import write_series
from kaffee.fitting.run import Run

COLUMNS = ["a", "b", "c"]


@pytest.fixture
def recording(values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_series(values[:150], "recording.csv", columns=COLUMNS, times=0.5 * np.arange(150))
    return "recording.csv"


def test_a_recording_is_forecast_saved_and_drawn(kaffee, recording, tmp_path):
    arguments = ("--steps", 12, "-o", "out.csv", "--save", "model", "--plot", "fan.png", "--quantiles", "0.1,0.9")
    result = kaffee("zeroshot", recording, *arguments)
    assert result.exit_code == 0, result.exception
    assert "150 rows x 3; noise found a " in result.stdout
    assert "out.csv: 12 rows x 15 columns" in result.stdout
    out = read_series("out.csv")
    assert out.columns[:5] == ("a_point", "a_mean", "a_std", "a_q10", "a_q90")
    assert out.times[0][0] == pytest.approx(75.0)
    assert (tmp_path / "fan.png").stat().st_size > 1000
    same = kaffee("forecast", "model", recording, "-o", "again.csv", "--steps", 12, "--quantiles", "0.1,0.9")
    assert same.exit_code == 0, same.exception
    # The most likely trajectory is for zero-shot forecasts only.
    shared = [not name.endswith("_point") for name in out.columns]
    np.testing.assert_allclose(read_series("again.csv").recordings[0], out.recordings[0][:, shared], rtol=1e-5)
    assert "not an empty folder" in str(kaffee("zeroshot", recording, "--save", "model").exception)


def test_columns_rows_and_recordings_are_chosen(kaffee, recording, values):
    write_series(values[150:260], "second.csv", columns=COLUMNS, times=0.5 * np.arange(110))
    arguments = ("--columns", "c,a", "--steps", 4, "--members", 20, "--context", 100, "--json", "--quantiles", "")
    result = kaffee("zeroshot", recording, "second.csv", *arguments)
    assert result.exit_code == 0, result.exception
    facts = json.loads(result.stdout)
    assert (facts["rows"], facts["recordings"], facts["output"]) == (200, [0, 1], "forecast.csv")
    assert facts["columns"] == ["c_point", "c_mean", "c_std", "a_point", "a_mean", "a_std"]
    assert set(facts["noise"]) == {"c", "a"}
    assert read_series("forecast.csv").lengths == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delay", "3"], "--delay is an option of DynaMix"),
        (["--download"], "--download is an option of DynaMix"),
        (["--model", "dynamix", "--quantiles", "0.1"], "--quantiles is an option of the in-context model"),
        (["--context", "500"], "has 150 rows only"),
        (["--recording", "2"], "There is no recording 2"),
        (["--plot", "fan.doc"], "cannot draw '.doc'"),
        (["--plot", "no/such/fan.png"], "there is no folder"),
        (["-o", "recording.csv"], "would overwrite"),
    ],
)
def test_what_does_not_fit_is_a_clear_error(kaffee, recording, arguments, message):
    result = kaffee("zeroshot", recording, "--steps", 2, *arguments)
    assert message in str(result.exception)


def test_a_model_in_context_is_adapted_and_the_better_one_is_kept(kaffee, recording):
    few = ("adaptation.schedule.num_updates=2", "adaptation.calibration=2", "adaptation.scored=6", "adaptation.guard=2")
    sets = [part for each in few for part in ("--set", each)]
    result = kaffee("fit", recording, "-o", "run", "--core", "incontext", "--no-certify", "--quiet", *sets)
    assert result.exit_code == 0, result.exception
    fit = Run.open("run").fit
    rungs = fit.fitted.reconstruction.provenance["rungs"]
    assert rungs["chosen"] in ("incontext", "adapted")
    assert (rungs["chosen"] == "adapted") <= (rungs["gain"] > rungs["error"])
    if rungs["chosen"] == "incontext":
        kept, read = (stage.model.core for stage in (fit.fitted, fit.prior))
        np.testing.assert_array_equal(kept.weights, read.weights)
    again = kaffee("fit", recording, "-o", "run", "--core", "incontext", "--no-certify", "--quiet", *sets)
    assert again.exit_code == 0, again.exception
