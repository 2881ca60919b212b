"""What a rank costs: innovation NLL of low-rank filters on adapted Lorenz-96 cores, beside the dense filter's.

    python -m benchmarks.lowrank [--seeds 3] [--ranks 5 10 20 30] [--steps 1500] [--show]

The core of a seed is the row `kaffee` of Table 1 (M = 100, N = 20), adapted from the committed prior. All filters read
the same rows of test data; NLL per entry, after a spin-up. Writes `results/lowrank/SS.json` for every seed; the same
command goes on where it stopped.
"""

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from kaffee.filtering.filters import parse_filter
from kaffee.filtering.likelihood import window_nll
from kaffee.filtering.recursion import Recursion
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.models import reference_for, trained_model
from kaffee.paper.recipe import load_recipe
from kaffee.records import machine, read_json, versions, write_json

RESULTS, OUTPUT = Path("results"), Path("results/lowrank")
RANKS = (5, 10, 20, 30)
SPIN_UP = 50
TARGETS = {20: 0.005, 30: 0.001}


@eqx.filter_jit
def _score(model: StateSpaceModel, x: Any, mask: Any, recursion: Recursion) -> Any:
    return window_nll(model, x, mask, recursion, burn_in=SPIN_UP).loss


def measure(seed: int, ranks: tuple[int, ...], num_steps: int, results: Path = RESULTS) -> dict[str, Any]:
    """NLL per entry of the dense filter and of every rank, on the test data of Table 1."""
    recipe = load_recipe("table1")
    store, cell = ResultStore(results, recipe), Cell("kaffee", seed)
    settings = store.row(cell).settings
    reference = reference_for(settings.data, settings.protocol)
    model = trained_model(store, cell, reference).model.exact()
    rows = reference.scaler.transform(reference.test_observations[: num_steps + 1])
    x = jnp.asarray(rows[None], model.dtype)
    mask = jnp.ones(x.shape, bool)
    found = {
        spec: float(_score(model, x, mask, Recursion(filter=parse_filter(spec))))
        for spec in ("ekf", *(f"lowrank:{rank}" for rank in ranks))
    }
    return {"seed": seed, "steps": num_steps - SPIN_UP, "nll": found, "versions": versions(), "machine": machine()}


def show(records: list[dict[str, Any]]) -> None:
    """Print the dense filter's NLL and what every rank has beyond it, mean and range over seeds."""
    table = Table(title=f"Innovation NLL per entry, {len(records)} seeds", title_justify="left")
    for name in ("filter", "NLL", "beyond dense", "worst seed", "target"):
        table.add_column(name, justify="left" if name == "filter" else "right")
    for spec in records[0]["nll"]:
        values = np.array([record["nll"][spec] for record in records])
        beyond = values - np.array([record["nll"]["ekf"] for record in records])
        target = TARGETS.get(int(spec.partition(":")[2] or 0))
        met = "" if target is None else f"{target:g} ({'met' if beyond.max() <= target else 'missed'})"
        table.add_row(spec, f"{values.mean():.4f}", f"{beyond.mean():.4f}", f"{beyond.max():.4f}", met)
    Console().print(table)


def main() -> None:
    """Measure the seeds that are missing, and print all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lowrank", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--show", action="store_true", help="print what is stored and measure nothing")
    options = parser.parse_args()
    for seed in range(0 if options.show else options.seeds):
        path = OUTPUT / f"{seed:02d}.json"
        if not path.exists():
            write_json(path, measure(seed, tuple(options.ranks), options.steps))
    show([read_json(path, "measurement") for path in sorted(OUTPUT.glob("*.json"))])


if __name__ == "__main__":
    main()
