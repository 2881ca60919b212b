"""`kaffee bench run|check|status|retry|table`: what they do with their options, say and refuse."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaffee.cli.main import app
from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper import engine
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.recipe import load_recipe
from kaffee.paper.summary import _count_verdicts, summarise

COMMANDS = ("run", "status", "retry", "table")
TINY = ("table1", "--preset", "tiny")


@pytest.fixture
def kaffee(tmp_path):
    """Call `kaffee bench`; its results are in a folder of their own."""

    def call(command, *arguments):
        return CliRunner().invoke(app, ["bench", command, *map(str, arguments), "--results", str(tmp_path)])

    return call


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path, load_recipe("table1", "tiny"))


@pytest.fixture
def engines(store, monkeypatch):
    """Engines that note how they were made and what they ran, and write records; `fail` makes a cell fail."""
    made = []

    class Fake:
        fail = ()

        def __init__(self, *options):
            self.options, self.num_workers, self.ran = options, 1, []
            made.append(self)

        def run(self, todo, arguments, ready, finished):
            for cell in todo:
                if ready(cell):
                    self.ran.append(arguments(cell))
                    store.write(cell, {"error": "ValueError: no" if cell.name in self.fail else None, "nll": 1.5})
                    finished(cell)

    class Local(Fake):
        pass

    class Dask(Fake):
        pass

    monkeypatch.setattr(engine, "LocalEngine", Local)
    monkeypatch.setattr(engine, "DaskEngine", Dask)
    made.append(Fake)
    return made


def fill(store, **values):
    for cell in store.cells():
        store.write(cell, {"error": None, "extra": {}, **values})


# --- run ---


def test_run_does_all_cells_and_says_what_next(kaffee, engines, store, tmp_path):
    result = kaffee("run", *TINY)
    assert result.exit_code == 0, result.exception
    total = len(store.cells())
    see = f"kaffee bench table table1 --preset tiny --results {tmp_path}"
    assert result.stdout == f"{total} cells run, 0 failed. See: {see}\n"
    assert result.stderr.splitlines()[0] == f"[1/{total}] prior/00"
    assert result.stderr.splitlines()[-1].startswith(f"[{total}/{total}] ")
    made = engines[1]
    assert (type(made).__name__, made.options) == ("Local", (None,))
    assert made.ran[0] == (str(tmp_path), "table1", "tiny", "prior", 0, "")
    again = kaffee("run", *TINY)
    assert again.stdout.startswith("0 cells run, 0 failed.")


def test_only_some_rows_and_the_priors_they_need(kaffee, engines):
    result = kaffee("run", *TINY, "--rows", "blind, kaffee")
    assert result.exit_code == 0
    assert [arguments[3:5] for arguments in engines[1].ran] == [
        ("prior", 0), ("prior", 1), ("blind", 0), ("blind", 1), ("kaffee", 0), ("kaffee", 1),
    ]  # fmt: skip


def test_only_some_seeds(kaffee, engines, store):
    assert kaffee("run", *TINY, "--rows", "kaffee", "--seeds", "1").exit_code == 0
    assert [arguments[3:5] for arguments in engines[1].ran] == [("prior", 1), ("kaffee", 1)]
    assert store.is_done(Cell("kaffee", 1))
    assert store.read(Cell("kaffee", 0)) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seeds", "1,2"), "table1-tiny has seeds 0 to 1, not 2."),
        (("--seeds", "-1"), "table1-tiny has seeds 0 to 1, not -1."),
        (("--seeds", "1;2"), "--seeds takes whole numbers by commas, such as 3,13; not '1;2'."),
        (("--systems", "chua"), "table1-tiny has one system only; leave out --systems."),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_seeds_and_systems_that_are_not_there_are_refused(kaffee, command, options, words, tmp_path):
    result = kaffee(command, *TINY, *options)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == words
    assert list(tmp_path.iterdir()) == []


def test_systems_are_chosen_by_name(tmp_path):
    store = ResultStore(tmp_path, load_recipe("table2"))
    found = [cell.name for cell in store.select(["kaffee"], [13, 3], ["chua"])]
    assert found == ["base/chua/03", "base/chua/13", "kaffee/chua/03", "kaffee/chua/13"]
    with pytest.raises(ConfigError, match=r"Unknown system 'chau'. Did you mean 'chua'\?"):
        store.select(systems=["chau"])


# --- check ---


def test_a_cell_that_is_made_again_is_compared_with_the_stored_one(kaffee, monkeypatch, store):
    """The last bit counts; seconds, versions and the machine do not."""

    class Local:
        num_workers = 1

        def __init__(self, workers):
            assert workers == 1

        def run(self, todo, arguments, ready, finished):
            for cell in todo:
                assert ready(cell)
                fresh = ResultStore(Path(arguments(cell)[0]), store.recipe)
                assert fresh.root != store.root
                fresh.write(cell, {"error": None, "nll": 0.1 + 0.2, "seconds": {"training": 2.0}, "versions": {}})
                finished(cell)

    monkeypatch.setattr(engine, "LocalEngine", Local)
    about = {"seconds": {"training": 1.0}, "versions": {"commit": "abc-dirty"}, "machine": {}}
    store.write(Cell("prior", 1), {"error": None, "nll": 0.1 + 0.2, **about})
    store.write(Cell("kaffee", 1), {"error": None, "nll": 0.1 + 0.2})
    spot = (*TINY, "--seeds", "1", "--workers", "1", "--rows")
    same = kaffee("check", *spot, "kaffee")
    assert same.exit_code == 0, same.exception
    assert same.stdout.splitlines() == [
        "prior/01: identical (stored by abc-dirty)",
        "kaffee/01: identical (stored by an unknown commit)",
    ]
    store.write(Cell("kaffee", 1), {"error": None, "nll": 0.3})
    other = kaffee("check", *spot, "kaffee,blind")
    assert other.exit_code == 1
    assert other.stdout.splitlines()[1:] == [
        "blind/01: not stored (stored by an unknown commit)",
        "kaffee/01: nll: 0.3 before, 0.30000000000000004 now (stored by an unknown commit)",
    ]
    assert store.read(Cell("blind", 1)) is None


@pytest.mark.parametrize(
    ("options", "kind", "made_with"),
    [
        ((), "Local", (None,)),
        (("--workers", 3), "Local", (3,)),
        (("--dask",), "Dask", (None, None)),
        (("--dask", "--workers", 3), "Dask", (None, 3)),
        (("--scheduler", "tcp://far:8786"), "Dask", ("tcp://far:8786", None)),
    ],
)
def test_options_choose_the_workers(kaffee, options, kind, made_with, engines):
    assert kaffee("run", *TINY, *options).exit_code == 0
    assert (type(engines[1]).__name__, engines[1].options) == (kind, made_with)


def test_no_workers_are_refused(kaffee, tmp_path):
    result = kaffee("run", *TINY, "--workers", 0)
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_workers_of_a_scheduler_are_not_ours_to_count(kaffee):
    pytest.importorskip("distributed", reason="the Dask engine needs: pip install 'kaffee[dask]'")
    result = kaffee("run", *TINY, "--scheduler", "tcp://far:8786", "--workers", 2)
    assert isinstance(result.exception, ConfigError)
    assert "has its own workers" in str(result.exception)


def test_failed_cells_are_reported_kept_and_retried(kaffee, engines, store, tmp_path):
    engines[0].fail = ("prior/01", "blind/00")
    total = len(store.cells())
    done = total // 2 - 1  # those of seed 0, but for the one that fails
    result = kaffee("run", *TINY)
    assert result.exit_code == 1
    assert "2 failed. See: kaffee bench status table1 --preset tiny" in result.stdout

    status = kaffee("status", *TINY)
    assert status.exit_code == 0
    assert status.stdout.splitlines() == [
        f"table1-tiny: {done} of {total} cells done",
        "  failed prior/01: ValueError: no",
        "  failed blind/00: ValueError: no",
    ]

    engines[0].fail = ()
    unchanged = kaffee("run", *TINY)
    assert unchanged.exit_code == 1  # a failed cell is not run again by itself
    retry = kaffee("retry", *TINY)
    now = f"kaffee bench run table1 --preset tiny --results {tmp_path}"
    assert retry.stdout == f"2 failed cells forgotten. Now: {now}\n"
    assert kaffee("run", *TINY).exit_code == 0
    assert kaffee("status", *TINY).stdout == f"table1-tiny: {total} of {total} cells done\n"
    assert kaffee("retry", *TINY).stdout.startswith("0 failed cells forgotten.")


# --- table ---


def test_the_table_as_json(kaffee, store):
    fill(store, nll=1.5, g_tan=0.4)
    result = kaffee("table", *TINY, "--json")
    found = json.loads(result.stdout)
    expected = {"median": 1.5, "se": 0.0, "n": 2, "diverged": 0, "missing": 0, "paper": 1.535, "paper_se": 0.004}
    assert found["rows"]["kaffee"]["nll"] == expected
    assert found["rows"]["kaffee"]["crps"]["median"] is None
    assert list(found["rows"]) == [row.name for row in store.recipe.rows]


def test_the_table_against_the_paper(kaffee, store):
    fill(store, nll=1.535, g_tan=0.1)
    plain = kaffee("table", *TINY, "--markdown").stdout
    assert plain.splitlines()[0].startswith("| row | n | nll | crps | g_tan |")
    assert "paper" not in plain
    beside = kaffee("table", *TINY, "--markdown", "--against", "paper").stdout
    lines = beside.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("| kaffee |"))
    assert [cell.strip() for cell in lines[row].split("|")[1:6]] == ["kaffee", "2", "1.535±0.000", "–", "0.100±0.000"]
    assert [cell.strip() for cell in lines[row + 1].split("|")[3:6]] == ["1.535±0.004", "0.632±0.005", "0.475±0.004"]
    assert [cell.strip() for cell in lines[row + 2].split("|")[3:6]] == ["agrees", "", "worse"]
    counts = _count_verdicts(store, summarise(store))
    assert counts["agrees"] >= 1
    words = ", ".join(f"{counts[word]} {word}" for word in ("agrees", "better", "worse"))
    assert lines[-1] == f"{words} (the paper's rows, {counts.total()} numbers)"
    for_people = kaffee("table", *TINY, "--against", "paper").stdout
    assert for_people.splitlines()[-1] == lines[-1]
    assert "Lorenz-96 ablation" in for_people


def test_a_table_without_results_is_empty(kaffee):
    result = kaffee("table", *TINY, "--json")
    assert result.exit_code == 0
    assert {entry["n"] for row in json.loads(result.stdout)["rows"].values() for entry in row.values()} == {0}


# --- errors ---


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_names_are_refused_by_every_command(kaffee, command, tmp_path):
    for arguments, words in [
        (("tabel1",), "Unknown recipe 'tabel1'. Did you mean 'table1'?"),
        (("table1", "--preset", "tini"), "Unknown preset 'tini'. Did you mean 'tiny'?"),
    ]:
        result = kaffee(command, *arguments)
        assert isinstance(result.exception, KaffeeError)
        assert str(result.exception) == words
    assert list(tmp_path.iterdir()) == []


def test_unknown_rows_and_comparisons_are_refused(kaffee):
    result = kaffee("run", *TINY, "--rows", "kaffee,blnd")
    assert str(result.exception) == "Unknown row 'blnd'. Did you mean 'blind'?"
    result = kaffee("table", *TINY, "--against", "papper")
    assert str(result.exception) == "--against knows 'paper', not 'papper'."


def test_a_damaged_cell_is_named(kaffee, store):
    fill(store)
    (store.cell_folder(Cell("blind", 1)) / "cell.json").write_text("{")
    result = kaffee("status", *TINY)
    assert "blind/01/cell.json is not a readable cell" in str(result.exception)
