"""Recordings by the month: fitted, filtered and forecast with their dates; pages that tell nothing of the machine."""

import json

import numpy as np
import pandas as pd
import pytest

import kaffee as library
from cli.conftest import TINY, sets
from kaffee.certification.check import check
from kaffee.data.reading import read_series
from kaffee.metrics.scores import NLL_UNIT

ROWS = 300
ALONE = sets(*TINY, "rung=scratch")  # no linear models beside it, each with other lags, thus other programs
MONTHS = pd.date_range("1990-01-01", periods=ROWS, freq="MS").strftime("%Y-%m-%d")


@pytest.fixture(scope="module")
def monthly(kaffee, values, tmp_path_factory):
    """(folder of the run, data file); one month is missing."""
    place = tmp_path_factory.mktemp("monthly")
    table = pd.DataFrame(values[:ROWS], columns=["a", "b", "c"])
    table.insert(0, "date", MONTHS)
    table.drop(7).to_csv(place / "monthly.csv", index=False)
    result = kaffee("fit", place / "monthly.csv", "-o", place / "run", "--quiet", *ALONE)
    assert result.exit_code == 0, result.exception
    return place / "run", place / "monthly.csv"


def dates_in(path):
    return [line.split(",")[0] for line in path.read_text().splitlines()[1:]]


def test_a_month_is_a_step(monthly):
    model = library.load(monthly[0])
    assert model.dt == 1.0
    assert model.provenance["frequency"] == "MS"


def test_results_have_the_dates(kaffee, monthly, tmp_path):
    run, path = monthly
    assert kaffee("filter", run, path, "-o", tmp_path / "f.csv").exit_code == 0
    assert dates_in(tmp_path / "f.csv") == list(MONTHS)
    for options, first in (((), "2015-01-01"), (("--at", "1999-12"), "2000-01-01")):
        result = kaffee("forecast", run, path, "-o", tmp_path / "f.csv", "--steps", 3, "--json", *options)
        assert result.exit_code == 0, result.exception
        assert json.loads(result.stdout)["first_times"] == [first]
        assert dates_in(tmp_path / "f.csv") == list(pd.date_range(first, periods=3, freq="MS").strftime("%Y-%m-%d"))


def test_rows_that_could_be_anything_are_months_for_the_model(kaffee, monthly, tmp_path):
    """Two rows alone do not say what a step is."""
    two = tmp_path / "two.csv"
    two.write_text("date,a,b,c\n20240701,1,2,3\n20240901,1,2,3\n")
    assert kaffee("filter", monthly[0], two, "-o", tmp_path / "f.csv").exit_code == 0
    assert dates_in(tmp_path / "f.csv") == ["20240701", "20240801", "20240901"]


def test_other_dates_are_refused(kaffee, refused, monthly, tmp_path):
    daily = tmp_path / "daily.csv"
    daily.write_text("date,a,b,c\n" + "".join(f"2024-07-{day:02d},1,2,3\n" for day in range(1, 9)))
    assert "should follow the frequency 'MS'" in refused("filter", monthly[0], daily, "-o", tmp_path / "f.csv")
    assert "no recording covers the time 1950-01-01; they span 1990-01-01" in refused(
        "forecast", *monthly, "-o", tmp_path / "f.csv", "--at", "1950-01"
    )


def test_a_stream_of_months_may_leave_some_out(kaffee, monthly):
    lines = ["date,a,b,c", "2001-01-01,1,2,3", "2001-02-01,1,2,3", "2001-05-01,1,2,3", "2001-05-20,1,2,3"]
    result = kaffee("filter", monthly[0], "--follow", content="\n".join(lines) + "\n")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row.get("skipped") for row in found] == [None, None, 2, None]
    assert found[-1]["error"] == "time is no step of the calendar 'MS'"


def test_a_surrogate_goes_on_with_months(monthly):
    table = pd.read_csv(monthly[1], parse_dates=["date"], index_col="date")
    future = library.Surrogate.load(monthly[0]).forecast(2, table, members=5).index
    assert list(future.strftime("%Y-%m-%d")) == ["2015-01-01", "2015-02-01"]


def test_tables_have_the_dates_too(monthly):
    found = library.filter_recordings(library.load(monthly[0]), read_series(monthly[1])).to_frame()
    assert str(found.index[-1]) == "2014-12-01 00:00:00"
    assert found.index.name == "date"


def test_a_run_of_an_earlier_version_counts_seconds(kaffee, tmp_path):
    """Years passed for steps of equal length; the fingerprint of such a run is that of seconds."""
    lines = [f"{1700 + year}-01-01,{year % 7},{year % 5},{year % 3}" for year in range(120)]
    path = tmp_path / "yearly.csv"
    path.write_text("date,a,b,c\n" + "\n".join(lines) + "\n")
    assert kaffee("fit", path, "-o", tmp_path / "run", "--quiet", "--no-certify", *ALONE).exit_code == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["data"]["fingerprint"] = read_series(path, frequency=False).fingerprint
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    assert library.Run.open(tmp_path / "run").loaded.series.frequency is None


def test_whatever_names_a_run_is_loaded(monthly, tmp_path):
    run, path = monthly
    wanted = library.load(run).provenance["fingerprint"]
    for name in ("kaffee", "run.json", "report.html", "kaffee/model.json"):
        assert library.load(run / name).provenance["fingerprint"] == wanted
    for wrong in (path, tmp_path / "nothing"):
        with pytest.raises(library.KaffeeError, match=r"There is no run at .*Check the path"):
            library.load(wrong)


def test_pages_do_not_tell_where_files_lie(monthly):
    run, path = monthly
    for name in ("report.html", "certificate.json"):
        text = (run / name).read_text(encoding="utf-8")
        assert str(path.parent) not in text
    assert "monthly" in text


def test_one_nll_of_a_model(kaffee, monthly, tmp_path):
    run, path = monthly
    certificate = json.loads((run / "certificate.json").read_text())
    assert certificate["checks"]["kaffee"]["nll"] == certificate["residuals"]["nll_standard"]
    assert (run / "report.html").read_text(encoding="utf-8").count(NLL_UNIT) >= 3
    result = kaffee("filter", run, path, "-o", tmp_path / "f.csv", "--json")
    facts = json.loads(result.stdout)
    assert facts["nll_unit"] == NLL_UNIT
    # The same filter on the same rows, but for the warm-up.
    assert facts["nll"] == pytest.approx(check(library.load(run), read_series(path), runs=1, steps=10).nll, rel=0.2)
    printed = kaffee("filter", run, path, "-o", tmp_path / "f.csv").stdout
    assert f"NLL {facts['nll']:.3f} {NLL_UNIT}" in printed
    assert np.isfinite(facts["nll"])
