"""Pin the hashes of all recipes, and that all committed cells and models are still theirs."""

import json
from dataclasses import replace
from itertools import product

import equinox as eqx
import jax
import numpy as np

import kaffee as library

from .pinned import RESULTS, check, digest, read


def recipe_module():
    """Return the module of the recipes: the one place where these tests know of a module's place."""
    from kaffee.paper import recipe  # MOVES: the only import to adjust

    return recipe


def loaded_recipes(*presets):
    """Yield all recipes, under each of the presets that they have."""
    for name, preset in product(recipe_module().recipe_names(), presets):
        try:
            yield recipe_module().load_recipe(name, preset)
        except library.KaffeeError:
            assert preset is not None


def hashes(recipe):
    """Return the settings hash of every row and system; all seeds have the same."""
    found = {}
    for row, system in product(recipe.rows, recipe.systems or ("",)):
        data = row.settings.data
        settings = replace(row.settings, data=replace(data, system=system) if system else data)
        found[f"{row.name}/{system}".rstrip("/")] = recipe_module().settings_hash(settings)
    return found


def test_every_recipe_has_the_same_cells_and_hashes():
    found = {}
    for recipe in loaded_recipes(None, "smoke", "tiny"):
        found[recipe.name] = {
            "kind": recipe.kind,
            "metrics": list(recipe.metrics),
            "num_seeds": recipe.num_seeds,
            "systems": digest(",".join(recipe.systems)),
            "settings": digest(json.dumps(hashes(recipe))),
            "rows": {row.name: [row.method, row.training_hash] for row in recipe.rows},
            "paper": digest(json.dumps([dict(row.paper) for row in recipe.rows])),
        }
    check("recipes", found, tolerance=0)


def test_every_committed_cell_has_the_hash_of_its_recipe(kaffee):
    seen = 0
    for recipe in loaded_recipes(None):
        name, expected = recipe.name, hashes(recipe)
        if not (RESULTS / name).exists():
            continue  # a recipe that has not been run
        files = sorted((RESULTS / name).rglob("cell.json"))
        for path in files:
            cell = read(path)
            key = "/".join(part for part in (cell["row"], cell.get("system")) if part)
            assert path.parent == RESULTS / name / key / f"{cell['seed']:02d}"
            assert (cell["settings_hash"], cell["error"]) == (expected[key], None), path
        status = kaffee("bench", "status", name, "--results", RESULTS).stdout
        assert status == f"{name}: {len(files)} of {len(files)} cells done\n"
        seen += len(files)
    assert seen == len(list(RESULTS.rglob("cell.json"))) == 5017


def test_every_committed_model_loads_as_it_was():
    found, load_recipe = {}, recipe_module().load_recipe
    # Priors are committed; other models are made again by whoever draws figures, and are not part of the project.
    for folder in sorted(path.parent for path in RESULTS.glob("*/prior/**/model.json")):
        loaded = library.load(folder)
        name, row = folder.relative_to(RESULTS).parts[:2]
        assert loaded.provenance["training_hash"] == load_recipe(name).row(row).training_hash
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(loaded.model, eqx.is_array))]
        found[folder.relative_to(RESULTS).as_posix()] = {
            "about": digest(json.dumps([loaded.method, loaded.columns, loaded.dt, loaded.provenance])),
            "weights": digest(",".join(sorted(leaf.tobytes().hex() for leaf in leaves))),
        }
    assert len(found) == 35
    check("models", found, tolerance=0)
