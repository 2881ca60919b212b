"""Pin the benchmark: a smoke preset that is run, and the tables of the committed results to the last digit."""

import json

import pytest

from .pinned import BOX, RESULTS, check, digest, read


def test_the_smoke_preset_of_the_controls_gives_the_same_table(kaffee, tmp_path):
    smoke = ("controls", "--preset", "smoke", "--results", tmp_path)
    ran = kaffee("bench", "run", *smoke, "--workers", 1)
    assert ran.stdout.startswith("6 cells run, 0 failed. See: kaffee bench table controls --preset smoke --results ")
    files = sorted(tmp_path.rglob("cell.json"))
    hashes = {path.parent.relative_to(tmp_path).as_posix(): read(path)["settings_hash"] for path in files}
    found = json.loads(kaffee("bench", "table", *smoke, "--json").stdout)
    check("bench_smoke", {"table": found, "hashes": hashes, "said": ran.stderr.splitlines()})


@pytest.mark.parametrize("recipe", ["table1", "table2", "controls"])
def test_the_table_of_the_committed_results_is_the_same(kaffee, recipe):
    call = ("bench", "table", recipe, "--results", RESULTS)
    for form in ("json", "markdown"):
        lines = kaffee(*call, "--against", "paper", f"--{form}").stdout.splitlines()
        check(f"{recipe}_{form}", lines, tolerance=0)


def test_other_tables_of_the_committed_results_are_the_same(kaffee):
    """Keep only digests of these: they are long, and the cells that they come from are committed."""
    calls = {
        recipe.name: ("table", recipe.name, "--json")
        for recipe in sorted(RESULTS.iterdir())
        if any(recipe.rglob("cell.json"))
    }
    calls |= {
        f"{name} by system": ("table", name, "--by-system", "--json")
        for name in ("table2", "controls", "proxies_systems")
    }
    calls["choice"] = ("choose", "table1_tuning")
    texts = {name: kaffee("bench", *call, "--results", RESULTS).stdout for name, call in calls.items()}
    found = {name: digest(" ".join(BOX.sub(" ", text).split())) for name, text in texts.items()}
    check("bench_digests", found, tolerance=0)
