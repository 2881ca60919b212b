"""Recipes: the paper's numbers, presets, names that do not exist, and what makes a finished cell stale."""

import hashlib
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kaffee.certification.fidelity import Protocol
from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import METHODS
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.objectives import OBJECTIVES
from kaffee.paper.recipe import CellSettings, load_recipe, recipe_names, settings_hash

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper" / "kaffee.tex"  # not part of the repository
COLUMNS = ("nll", "crps", "g_tan", "d_stsp_stoch", "dh_stoch", "d_stsp_core", "dh_core", "d_h_core")
LABELS = {
    "AL-RNN (no shell)": "prior",
    "Frozen-Core Shell Calibration": "frozen_core",
    "[Noise Masking]": "noise_masking",
    "[Core Collapse]": "core_collapse",
    "[Blind Uncertainty]": "blind",
    "(KAFFEE)": "kaffee",
}
COLUMNS_2 = ("nll_standard", "rmse", "g_tan", "d_stsp_ratio", "d_h_core")
LABELS_2 = {"(no adaptation)": "base", "(KAFFEE-DynaMix)": "kaffee"} | {
    words: row for words, row in LABELS.items() if row not in ("prior", "kaffee")
}


@pytest.fixture(scope="module")
def table1():
    return load_recipe("table1")


@pytest.fixture(scope="module")
def rows(table1):
    """The paper's rows; the recipe may have more."""
    return [table1.row(name) for name in LABELS.values()]


def published(label, columns, labels):
    """A table as the paper prints it: {row: {metric: (value, standard error)}}."""
    text = PAPER.read_text(encoding="utf-8")
    body = text[: text.index(rf"\label{{{label}}}")].rpartition(r"\begin{table}")[2]
    rows = {}
    for line in body.splitlines():
        if not line.startswith(r"\hspace{1em}"):
            continue
        first, *cells = line.rstrip("\\").split("&")
        name = next(row for words, row in labels.items() if words in first)
        found = [re.search(r"\$(-?\d+\.\d+)\{\\pm\}(\d+\.\d+)\$", cell) for cell in cells]
        assert len(found) == len(columns)
        rows[name] = {c: (float(m[1]), float(m[2])) for c, m in zip(columns, found, strict=True) if m}
    return rows


# --- the paper's numbers ---


@pytest.mark.skipif(not PAPER.exists(), reason=f"the paper's source is not at {PAPER}")
@pytest.mark.parametrize(
    ("name", "count", "table"),
    [
        ("table1", 43, ("tab:main_l96_ablation", COLUMNS, LABELS)),
        ("table2", 2 + 5 * 5, ("tab:dynamix_results_table", COLUMNS_2, LABELS_2)),
    ],
)
def test_every_number_of_the_paper_is_there(name, count, table):
    expected, recipe = published(*table), load_recipe(name)
    assert sum(map(len, expected.values())) == count
    assert recipe.metrics == table[1]
    assert {row.name: dict(row.paper) for row in recipe.rows if row.reproduces} == expected


def test_the_table_has_43_numbers(table1, rows):
    assert table1.metrics == COLUMNS
    assert [len(row.paper) for row in rows] == [3, 8, 8, 8, 8, 8]
    kaffee, blind, masking = (table1.row(name).paper for name in ("kaffee", "blind", "noise_masking"))
    assert kaffee["nll"] == (1.535, 0.004)
    assert kaffee["g_tan"] == (0.475, 0.004)
    assert blind["g_tan"] == (-0.008, 0.004)
    assert masking["dh_stoch"] == (4.883, 0.0)
    assert table1.row("prior").paper["dh_core"] == table1.row("frozen_core").paper["dh_core"] == (2.773, 0.282)


def test_the_table_is_run_as_the_paper_ran_it(table1, rows):
    assert table1.num_seeds == 20
    for row in rows:
        assert row.settings == CellSettings()
        assert row.method == row.name
    settings = CellSettings()
    assert (settings.core.latent_dim, settings.core.num_gates) == (100, 50)
    assert settings.pretraining.schedule.num_updates == 100_000
    assert (settings.protocol.num_members, settings.protocol.num_starts, settings.protocol.horizon) == (200, 100, 4)


def test_the_second_table_is_run_as_the_paper_ran_it():
    table2 = load_recipe("table2")
    assert (len(table2.systems), table2.num_seeds) == (13, 20)
    for row in (row for row in table2.rows if row.reproduces or row.name == "kaffee_full"):
        adaptation, data = row.settings.adaptation, row.settings.data
        assert (adaptation.schedule.num_updates, adaptation.schedule.batch_size, adaptation.burn_in) == (10, 16, 8)
        assert (adaptation.optimiser.learning_rate, adaptation.optimiser.clip_norm) == (5e-5, 1.0)
        assert (data.num_train_steps, data.observation_noise, data.process_noise) == (2000, 0.1, 0.0)
        assert row.settings.protocol.num_members == 256
        assert row.settings.foundation is not None
        assert row.settings.foundation.tangent == ("full" if row.name.endswith("_full") else "mixture")


def test_a_row_beyond_the_paper_is_compared_with_one_of_its_rows():
    table2 = load_recipe("table2")
    assert not table2.row("kaffee_full").reproduces
    assert table2.row("kaffee_full").paper == table2.row("kaffee").paper


def test_rows_at_ten_times_the_rate_differ_in_nothing_else():
    table2 = load_recipe("table2")
    for method in ("noise_masking", "core_collapse", "blind", "kaffee"):
        row, stated = table2.row(f"{method}_5e-4"), table2.row(method)
        assert (row.method, row.paper, row.reproduces) == (method, stated.paper, False)
        optimiser = row.settings.adaptation.optimiser
        assert (optimiser.learning_rate, optimiser.shell_learning_rate) == (5e-4, None)
        adaptation = replace(row.settings.adaptation, optimiser=stated.settings.adaptation.optimiser)
        assert replace(row.settings, adaptation=adaptation) == stated.settings


def test_cells_of_several_systems(tmp_path):
    store = ResultStore(tmp_path, load_recipe("table2"))
    cells = store.cells()
    assert len(cells) == len(set(cells)) == 13 * 20 * len(store.recipe.rows)
    assert [cell.system for cell in cells] == [
        s for s in store.recipe.systems for _ in range(20 * len(store.recipe.rows))
    ]
    cell = Cell("kaffee", 3, "chua")
    assert store.cell_folder(cell) == tmp_path / "table2" / "kaffee" / "chua" / "03"
    assert store.find_prior(cell) == Cell("base", 3, "chua")
    assert store.find_prior(Cell("base", 3, "chua")) is None
    assert store.settings(cell).data.system == "chua"
    store.write(cell, {"error": None})
    assert store.is_done(cell)
    assert not store.is_done(Cell("kaffee", 3, "chen"))
    shutil.copytree(store.cell_folder(cell), store.cell_folder(Cell("kaffee", 3, "chen")))
    assert not store.is_done(Cell("kaffee", 3, "chen"))  # made for another system


# --- names and presets ---


def test_unknown_recipes_presets_and_rows_are_errors(table1):
    with pytest.raises(ConfigError, match=r"Unknown recipe 'tabel1'. Did you mean 'table1'\?"):
        load_recipe("tabel1")
    with pytest.raises(ConfigError, match=r"Unknown preset 'smok'. Did you mean 'smoke'\?"):
        load_recipe("table1", "smok")
    with pytest.raises(ConfigError, match=r"Unknown row 'blnd'. Did you mean 'blind'\?"):
        table1.row("blnd")


@pytest.mark.parametrize("preset", ["smoke", "tiny"])
def test_presets_change_sizes_and_the_name_and_nothing_else(preset, table1):
    small = load_recipe("table1", preset)
    assert small.name == f"table1-{preset}"
    assert small.num_seeds == 2
    assert small.metrics == table1.metrics
    assert set(LABELS.values()) <= {row.name for row in small.rows}
    for ours in small.rows:
        theirs = table1.row(ours.name)
        assert (ours.method, ours.paper) == (theirs.method, theirs.paper)
        assert ours.settings.data.num_train_steps < theirs.settings.data.num_train_steps
        assert ours.settings.adaptation.optimiser == theirs.settings.adaptation.optimiser
        assert ours.settings.data.system == "lorenz96"


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_is_shipped_can_be_loaded(name):
    recipe = load_recipe(name)
    assert recipe.rows
    assert len({row.name for row in recipe.rows}) == len(recipe.rows)
    for row in recipe.rows:
        assert row.method in (OBJECTIVES if recipe.kind == "control" else {"prior", *METHODS})
        assert set(row.paper) <= set(recipe.metrics)


# --- what makes a cell stale ---


def without_none(value):
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list | tuple) else value


def test_options_that_are_none_do_not_enter_the_hash():
    """So that a new option, off by default, leaves finished results valid."""
    values = asdict(CellSettings())
    assert values["adaptation"]["confine"] is None
    text = json.dumps(without_none(values), sort_keys=True)
    assert settings_hash(CellSettings()) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_hash_of_the_table_is_that_of_its_published_results(table1, rows):
    """If this fails, a default has changed: every cell in results/table1 is then stale and has to be run again."""
    assert {settings_hash(row.settings) for row in rows} == {"600affb9308344f1"}
    assert table1.row("prior").training_hash == "6a1dbd38df49fc53"


@pytest.mark.parametrize(
    "change",
    [
        {"data": replace(CellSettings().data, seed=1)},
        {"core": replace(CellSettings().core, num_gates=49)},
        {"pretraining": replace(CellSettings().pretraining, window=49)},
        {"shell": replace(CellSettings().shell, alpha=0.8)},
        {"adaptation": replace(CellSettings().adaptation, confine=0.25)},
        {"protocol": Protocol(num_members=100)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_enters_the_hash_and_the_protocol_not_that_of_training(change, table1):
    row, part = table1.row("kaffee"), next(iter(change))
    changed = replace(row, settings=replace(row.settings, **change))
    assert settings_hash(changed.settings) != settings_hash(row.settings)
    assert (changed.training_hash == row.training_hash) == (part == "protocol")
    prior = table1.row("prior")
    changed = replace(prior, settings=replace(prior.settings, **change))
    # the prior is trained before there is an adaptation
    assert (changed.training_hash == prior.training_hash) == (part in ("protocol", "adaptation"))


def test_methods_are_trained_differently(table1):
    assert len({row.training_hash for row in table1.rows}) == len(table1.rows)
