"""From cells to a table: medians, their errors, verdicts, seeds that diverged."""

import json
import math

import numpy as np
import pytest

from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.recipe import CellSettings, Recipe, Row
from kaffee.paper.summary import (
    _count_verdicts,
    _Summary,
    median_with_error,
    summarise,
    system_tables,
    to_json,
    to_table,
)

METRICS = ("nll", "g_tan", "dh_stoch", "d_stsp_core")


def record(nll=1.0, g_tan=0.5, dh_stoch=0.1, d_stsp_core=0.3, *, core=0, stoch=0, **extra):
    extra = {"diverged_at_core": core, "diverged_at_stoch": stoch, **extra}
    values = {"nll": nll, "g_tan": g_tan, "dh_stoch": dh_stoch, "d_stsp_core": d_stsp_core}
    return {"error": None, **values, "extra": extra}


@pytest.fixture
def store(tmp_path):
    paper = {"nll": (1.0, 0.5), "g_tan": (0.9, 0.01), "d_stsp_core": (0.3, 0.02)}
    rows = (Row("prior", "Prior", "prior", CellSettings()), Row("kaffee", "KAFFEE", "kaffee", CellSettings(), paper))
    return ResultStore(tmp_path, Recipe("toy", "Toy table", 5, METRICS, rows))


def fill(store, records, row="kaffee"):
    for seed, values in enumerate(records):
        if values is not None:
            store.write(Cell(row, seed), values)


# --- numbers ---


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [5.0, 1.0, 4.0, 2.0, 3.0], [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]])
def test_the_error_of_a_median_is_that_of_the_paper(values):
    """0.929 IQR / sqrt(n), quartiles interpolated between the order statistics."""
    ordered = sorted(values)

    def quantile(q):
        place = q * (len(ordered) - 1)
        below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
        return below + (above - below) * (place - math.floor(place))

    median, error = median_with_error(values)
    assert median == pytest.approx(quantile(0.5), abs=1e-12)
    assert error == pytest.approx(0.929 * (quantile(0.75) - quantile(0.25)) / len(values) ** 0.5, abs=1e-12)


def test_only_finished_cells_enter(store):
    fill(store, [record(nll=1.0), record(nll=3.0), {"error": "no"}, None, record(nll=8.0)])
    found = summarise(store)["kaffee"]["nll"]
    assert (found.median, found.n, found.diverged) == (3.0, 3, 0)
    assert found.se == pytest.approx(0.929 * 3.5 / 3**0.5)
    assert (found.paper, found.paper_se) == (1.0, 0.5)


def test_diverged_seeds_are_counted_where_they_have_no_number(store):
    gone = record(dh_stoch=None, stoch=12)
    both = record(dh_stoch=None, d_stsp_core=None, core=3, stoch=4)
    fill(store, [record(), gone, both, record(d_stsp_core=0.5), record(d_stsp_core=0.7)])
    found = summarise(store)["kaffee"]
    assert (found["dh_stoch"].n, found["dh_stoch"].diverged) == (3, 2)
    assert (found["d_stsp_core"].n, found["d_stsp_core"].diverged) == (4, 1)
    assert (found["nll"].n, found["nll"].diverged) == (5, 0)
    assert found["d_stsp_core"].median == pytest.approx(0.4)  # of 0.3, 0.3, 0.5, 0.7


def test_a_row_in_which_every_seed_diverged_has_no_median(store):
    fill(store, [record(d_stsp_core=None, core=i) for i in range(1, 6)])
    found = summarise(store)["kaffee"]["d_stsp_core"]
    assert (found.median, found.se, found.n, found.diverged) == (None, None, 0, 5)
    assert found.verdict("d_stsp_core") == ""


def test_extra_numbers_are_found_by_name(store):
    fill(store, [record(nll_filtered=0.5), record(nll_filtered=0.7)])
    found = summarise(store, ("nll_filtered", "nll"))
    assert found["kaffee"]["nll_filtered"].median == pytest.approx(0.6)
    table = to_table(store, found, against_paper=False)
    assert list(table.columns) == ["row", "n", "nll_filtered", "nll"]


# --- verdicts ---


@pytest.mark.parametrize(
    ("difference", "smaller_is_better", "larger_is_better"),
    [
        (0.0, "agrees", "agrees"),
        (10.0, "agrees", "agrees"),  # two combined standard errors: sqrt(3^2 + 4^2) = 5
        (-10.0, "agrees", "agrees"),
        (10.0 + 1e-9, "worse", "better"),
        (-10.0 - 1e-9, "better", "worse"),
    ],
)
def test_verdicts_change_at_two_combined_standard_errors(difference, smaller_is_better, larger_is_better):
    summary = _Summary(median=difference, se=3.0, n=20, diverged=0, paper=0.0, paper_se=4.0)
    for metric in ("nll", "crps", "d_stsp_stoch", "dh_stoch", "d_stsp_core", "dh_core", "d_h_core"):
        assert summary.verdict(metric) == smaller_is_better
    assert summary.verdict("g_tan") == larger_is_better


def test_without_a_number_on_either_side_there_is_no_verdict():
    assert _Summary(1.0, 0.1, 5, 0, None, None).verdict("nll") == ""
    assert _Summary(None, None, 0, 5, 1.0, 0.1).verdict("nll") == ""


def test_verdicts_are_counted(store):
    fill(store, [record(nll=1.1, g_tan=0.5, dh_stoch=0.0, d_stsp_core=0.1)] * 5)
    assert _count_verdicts(store, summarise(store)) == {"agrees": 1, "better": 1, "worse": 1}  # nll, d_stsp_core, g_tan


# --- shapes ---


def test_json_has_the_promised_shape(store):
    fill(store, [record()] * 5)
    found = json.loads(json.dumps(to_json(summarise(store)), allow_nan=False))
    assert list(found) == ["rows"]
    assert list(found["rows"]) == ["prior", "kaffee"]
    for metrics in found["rows"].values():
        assert list(metrics) == list(METRICS)
        for entry in metrics.values():
            assert list(entry) == ["median", "se", "n", "diverged", "missing", "paper", "paper_se"]
    nothing = {"median": None, "se": None, "n": 0, "diverged": 0, "missing": 0, "paper": None, "paper_se": None}
    assert found["rows"]["prior"]["nll"] == nothing
    full = {"median": 1.0, "se": 0.0, "n": 5, "diverged": 0, "missing": 0, "paper": 1.0, "paper_se": 0.5}
    assert found["rows"]["kaffee"]["nll"] == full


def test_the_table_has_the_paper_and_verdicts_below_each_row_if_wanted(store):
    fill(store, [record(d_stsp_core=None, core=9), *[record(nll=1.0 + i) for i in range(4)]])
    plain = to_table(store, summarise(store), against_paper=False)
    assert [row[0] for row in plain.rows] == ["prior", "kaffee"]
    assert plain.rows[0][1:] == [0, "–", "–", "–", "–"]
    error = 0.929 * 2.0 / np.sqrt(5)  # of 1, 1, 2, 3, 4
    assert plain.rows[1][1:3] == [5, f"2.000±{error:.3f}"]
    assert plain.rows[1][-1] == "0.300±0.000 (1)"
    beside = to_table(store, summarise(store), against_paper=True)
    assert [row[0] for row in beside.rows] == ["prior", "kaffee", "  paper", "  verdict"]
    assert beside.rows[2] == ["  paper", None, "1.000±0.500", "0.900±0.010", "–", "0.300±0.020"]
    assert beside.rows[3] == ["  verdict", None, "agrees", "worse", "", "agrees"]


def test_a_median_that_leaves_cells_out_says_how_many(store):
    """A filter that broke has no such number, and no free run that diverged explains it."""
    fill(store, [record(g_tan=None), record(g_tan=None, d_stsp_core=None, core=4), record(), record(), record()])
    found = summarise(store)
    assert {metric: s.missing for metric, s in found["kaffee"].items()} == dict(zip(METRICS, (0, 2, 0, 0), strict=True))
    assert to_json(found)["rows"]["kaffee"]["g_tan"]["missing"] == 2
    table = to_table(store, found, against_paper=False)
    assert table.rows[1][2:] == ["1.000±0.000", "0.500±0.000 [2]", "0.100±0.000", "0.300±0.000 (1)"]
    assert "[k]: k cells without the number are left out" in table.to_markdown()


def test_marks_are_explained_where_they_are_used_only(store):
    fill(store, [record()] * 5)
    found = summarise(store, ("nll", "not_measured"))
    assert found["kaffee"]["not_measured"].missing == 0  # of no cell, and nothing is left out
    assert "[k]" not in to_table(store, found, against_paper=False).note


def test_tables_by_system_say_it_too(tmp_path):
    row = Row("kaffee", "KAFFEE", "kaffee", CellSettings())
    store = ResultStore(tmp_path, Recipe("toy", "Toy table", 2, ("nll",), (row,), systems=("chua", "chen")))
    for seed, nll in enumerate((1.0, None)):
        store.write(Cell("kaffee", seed, "chua"), record(nll=nll))
        store.write(Cell("kaffee", seed, "chen"), record())
    [table] = system_tables(store, ("chua", "chen"))
    assert [line[1] for line in table.rows] == ["1.000±0.000 [1]", "1.000±0.000"]
    assert "[k]" in table.note
