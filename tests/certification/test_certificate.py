"""The whole certificate: complete on ordinary data, honest about what is missing, never a crash."""

import json
from dataclasses import replace

import numpy as np
import pytest

from certification.problems import (
    A,
    gappy_series,
    held_out_series,
    linear_model,
    reconstruct,
    series_of,
    simulated,
    train_series,
    true_reconstruction,
)
from kaffee.certification.certificate import CertificationSettings, certify, describe_shortage
from kaffee.errors import ConfigError, DataError
from kaffee.training import linear

SETTINGS = CertificationSettings(num_starts=400, members=200, horizons=(1, 4), divergence_runs=4, divergence_steps=500)
PARTS = ("residuals", "scores", "spread", "tangents", "agreement", "fan")


@pytest.fixture(scope="module", autouse=True)
def _least_squares_alone():
    """The linear baseline is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            linear, "SETTINGS", replace(linear.SETTINGS, schedule=replace(linear.SETTINGS.schedule, num_updates=0))
        )
        yield


@pytest.fixture(scope="module")
def whole():
    """Gaps in training data; one of the held-out recordings has three rows."""
    stages = []
    found = certify(true_reconstruction(), gappy_series(), held_out_series(), settings=SETTINGS, watch=stages.append)
    return found, stages


def test_every_part_is_there(whole):
    found, stages = whole
    assert found.missing == {}
    assert all(getattr(found, part) is not None for part in PARTS)
    assert stages[0] == "filtering the held-out data"
    assert len(stages) == 7
    status = {verdict.name: verdict.status for verdict in found.verdicts}
    assert status["calibration"] == status["whiteness"] == "pass"
    # Of a linear model, to which the data owe errors of one size.
    assert status["spread"] == "unknown"
    assert found.axes[1] in ("pass", "warn")
    assert all(found.axes[v.axis] == v.status != "unknown" for v in found.verdicts if v.axis > 1)


def test_it_is_json(whole):
    text = json.dumps(whole[0].to_dict(), allow_nan=False)
    read = json.loads(text)
    others = {"axes", "verdicts", "missing", "about", "withheld", "checks", "training", "page"}
    others |= {"drift", "purpose", "refits"}
    assert {*PARTS, *others} == set(read)
    assert read["axes"]["1"]["name"] == "local probabilistic"
    assert read["residuals"]["coverage"]["0.9"] == whole[0].residuals.coverage["0.9"]
    assert read["missing"] == {}
    assert set(read["spread"]["horizons"][0]["foretold"]) == {"by", "rank", "error", "chance"}
    assert all(verdict["sentence"].endswith((".", ")")) for verdict in read["verdicts"])
    assert len(text) < 500_000


def test_the_fan_covers_what_came(whole):
    fan = whole[0].fan
    assert fan.quantiles.shape == (5, 4, 2)
    assert fan.truth.shape == (4, 2)
    assert len(fan.history) == 51
    assert (np.diff(fan.quantiles, axis=0) > 0).all()


def test_held_out_data_that_are_too_short_leave_everything_unknown():
    found = certify(true_reconstruction(), gappy_series(), series_of(simulated(1, 0)), settings=SETTINGS)
    assert all(verdict.status == "unknown" for verdict in found.verdicts)
    assert set(found.axes.values()) == {"unknown"}
    assert "Hold out more" in found.missing["residuals"]
    assert found.fan is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_gaps_in_held_out_data_leave_local_checks_alone():
    found = certify(true_reconstruction(), train_series(), gappy_series(), settings=SETTINGS)
    assert found.missing == {}
    status = {verdict.name: verdict.status for verdict in found.verdicts}
    assert status["calibration"] == status["whiteness"] == "pass"
    seen = sum(int((~np.isnan(values[20:])).sum()) for values in gappy_series().recordings)
    assert found.residuals.num_entries == seen


def test_a_diverging_core_fails_without_a_crash():
    away = reconstruct(linear_model(1.2 * A))
    found = certify(away, train_series(), held_out_series(), settings=SETTINGS)
    status = {verdict.name: verdict.status for verdict in found.verdicts}
    assert status["core"] == status["stochastic run"] == "fail"
    assert status["skill"] != "pass"
    assert (found.axes[2], found.axes[3]) == ("fail", "fail")
    json.dumps(found.to_dict(), allow_nan=False)


def test_other_columns_are_an_error_at_once():
    other = replace(series_of(simulated(50, 0)), columns=("a", "b"))
    with pytest.raises(DataError, match="the model needs"):
        certify(true_reconstruction(), other, other)


@pytest.mark.parametrize("wrong", [{"members": 1}, {"horizons": (0, 3)}, {"horizons": ()}, {"num_starts": 0}])
def test_settings_that_cannot_be(wrong):
    with pytest.raises(ConfigError, match="or more"):
        CertificationSettings(**wrong)


def test_held_out_data_that_are_too_few_are_named_with_what_is_needed():
    rows = np.random.default_rng(0).standard_normal((1000, 2))
    assert describe_shortage(series_of(rows)) == describe_shortage(series_of(rows[:200])) == ""
    assert describe_shortage(series_of(rows[:4])) == (
        "4 held-out rows are too few for the certificate: one-step predictions need 50 readings, of which there are 6 "
        "after 1 row of warm-up; free runs need 200 rows without gaps, of which there are 4. Record more, or hold out "
        "more by test_fraction"
    )
    sentence = describe_shortage(series_of(rows[:60], rows[:40]))
    assert sentence.startswith("100 held-out rows are too few for the certificate: free runs need 200")
    assert "one-step" not in sentence
    rows[:300:2, 0] = np.nan
    assert "need 200 rows without gaps, of which there are 150" in describe_shortage(series_of(rows[:300]))
