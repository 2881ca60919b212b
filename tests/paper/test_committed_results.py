"""What the committed results must show: signatures of the paper, counts, controls. Cheap: nothing is computed."""

import json
from itertools import product
from pathlib import Path

import pytest

from benchmarks.defaults import ARMS, CASES
from kaffee.paper.cells import ResultStore
from kaffee.paper.recipe import load_recipe
from kaffee.paper.summary import _count_verdicts, summarise

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture(scope="module")
def table1():
    store = ResultStore(RESULTS, load_recipe("table1"))
    found = summarise(store)
    return store, {row: {metric: s.median for metric, s in metrics.items()} for row, metrics in found.items()}, found


def test_every_cell_of_table_1_is_there(table1):
    store = table1[0]
    assert all(store.is_done(cell) for cell in store.cells())


def test_the_signatures_of_the_paper(table1):
    median = table1[1]
    kaffee, prior = median["kaffee"], median["prior"]
    for row in ("noise_masking", "core_collapse"):
        assert median[row]["dh_core"] > 4
        assert median[row]["d_stsp_core"] > 5 * kaffee["d_stsp_core"]
    for row in ("noise_masking", "blind"):
        assert abs(median[row]["g_tan"]) < 0.05
    paper_rows = ("frozen_core", "noise_masking", "core_collapse", "blind")
    assert kaffee["g_tan"] > 1.3 * max(median[row]["g_tan"] for row in paper_rows)
    for metric in ("d_stsp_core", "dh_core", "d_h_core"):
        assert max(kaffee[metric], median["blind"][metric]) < prior[metric]
        assert median["frozen_core"][metric] == prior[metric]


def test_enough_numbers_agree_or_are_better(table1):
    counts = _count_verdicts(table1[0], table1[2])
    assert counts.total() == 43
    assert counts["agrees"] + counts["better"] >= 32


def test_averaged_iterates_reach_every_column_of_the_paper(table1):
    verdicts = {metric: summary.verdict(metric) for metric, summary in table1[2]["kaffee_averaged"].items()}
    assert set(verdicts.values()) <= {"agrees", "better"}, verdicts


@pytest.mark.parametrize("row", ["kaffee_plus", "kaffee_averaged"])
def test_no_free_run_of_the_confined_cores_diverges(table1, row):
    watched = summarise(table1[0], ("diverged_core", "diverged_stoch"))[row]
    assert (watched["diverged_core"].count, watched["diverged_stoch"].count) == (0, 0)


def test_controls():
    store = ResultStore(RESULTS, load_recipe("controls"))
    assert all(store.is_done(cell) for cell in store.cells())
    spiral = summarise(store, ("radius_error",), "spiral_0.5")
    assert spiral["kaffee"]["radius_error"].median < spiral["noisy_state_1"]["radius_error"].median / 4
    cycle = summarise(store, ("returns",), "van_der_pol")
    assert cycle["kaffee"]["returns"].count >= 9
    assert cycle["noisy_state_1"]["returns"].count <= 1


def test_table_2():
    store = ResultStore(RESULTS, load_recipe("table2"))
    missing = {(cell.row, cell.system, cell.seed) for cell in store.cells() if not store.is_done(cell)}
    assert not missing
    systems = [summarise(store, ("coverage_95",), system) for system in store.recipe.systems]
    calibrated = [found["kaffee_calibrated"]["coverage_95"].median for found in systems]
    assert sum(0.92 <= share <= 0.98 for share in calibrated) >= 10
    everywhere = summarise(store)
    for metric in ("d_stsp_ratio", "d_h_core"):
        assert everywhere["frozen_core"][metric].median == everywhere["base"][metric].median


def test_the_electrocardiogram_meets_its_lines():
    """`python -m benchmarks.recording`: sharper than all baselines, calibrated, truer than its prior; gaps imputed."""
    found = json.loads((RESULTS / "recordings" / "ecg.json").read_text(encoding="utf-8"))
    whole = found["whole"]
    assert whole["all_seconds"] < 15 * 60
    first = {name: scores[0]["nll_standard"] for name, scores in whole["certificate"]["scores"]["methods"].items()}
    assert first["surrogate"] < min(first[name] for name in ("persistence", "climatology", "linear"))
    prior, fitted = whole["checks"]["prior"], whole["checks"]["kaffee"]
    assert 0.85 <= fitted["coverage_90"] <= 0.95
    assert fitted["d_h_core"] < prior["d_h_core"]
    assert fitted["d_stsp_core"] < prior["d_stsp_core"]
    assert 0.85 <= found["with_gaps"]["imputation"]["coverage_90"] <= 0.95


def test_the_tangent_proxy_orders_the_rows_as_g_tan_does_on_every_seed():
    rows = ("kaffee", "frozen_core", "blind")
    for seed in range(5):
        cells = [json.loads((RESULTS / "proxies" / row / f"{seed:02d}" / "cell.json").read_text()) for row in rows]
        for metric in ("g_tan", "proxy_tan", "proxy_tan_within", "proxy_tan_local"):
            first, second, third = (cell[metric] for cell in cells)
            assert first > second > third, (seed, metric)


def test_the_guard_keeps_cores_of_the_suggested_settings_on_the_attractor():
    """`python -m benchmarks.defaults`: at most a tenth of the runs of a core is lost, a hundredth of all."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS / "defaults").glob("*.json")]
    assert sorted((record["case"], record["seed"]) for record in records) == sorted(product(CASES, range(3)))
    lost = {arm: sum(record["arms"][arm]["lost"] for record in records) for arm in ("prior", *ARMS)}
    assert lost["guarded"] <= 0.01 * 20 * len(records) < min(lost["prior"], lost["unguarded"])
    for record in records:
        guarded, unguarded = (record["arms"][arm] for arm in ARMS)
        assert guarded["lost"] <= 2
        assert 0.85 <= guarded["coverage_90"] <= 0.95
        assert guarded["nll"] < unguarded["nll"] + 0.02
