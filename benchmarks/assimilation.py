"""Published scores of assimilation, with our filters and the true flow as the model.

    python -m benchmarks.assimilation [--seeds 5] [--only NAME ...] [--show]

Twin experiments: time-mean RMSE of the analysis after a spin-up, the spread beside it, mean and standard error over
seeds. Writes `results/assimilation/NAME.json`, with versions and machine; the same command goes on where it stopped.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from kaffee.inference.data_assimilation import assimilate
from kaffee.records import machine, versions
from kaffee.systems.system import rk4_step

OUTPUT = Path("results/assimilation")


def _lorenz96(z: Float[Array, " M"]) -> Float[Array, " M"]:
    return rk4_step(lambda y: (jnp.roll(y, -1) - jnp.roll(y, 2)) * jnp.roll(y, 1) - y + 8.0, z, 0.05)


def _lorenz63(z: Float[Array, " 3"]) -> Float[Array, " 3"]:
    def field(y: Float[Array, " 3"]) -> Float[Array, " 3"]:
        return jnp.stack([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])

    return rk4_step(field, z, 0.01)


class Case(NamedTuple):
    """A twin experiment.

    Attributes:
        every: Steps between two readings; the rows between them are missing.
        variance: Of the observation noise.
        start_std: How far the first guess is from the truth, and known to be.
        published: What others report, as text.
    """

    flow: Callable[[Array], Array]
    dim: int
    every: int
    cycles: int
    spin_up: int
    variance: float
    start_std: float
    filter: str
    published: str


L96: tuple[Any, ...] = (_lorenz96, 40, 1, 1000, 400, 1.0, 0.03)
L63: tuple[Any, ...] = (_lorenz63, 3, 25, 1000, 64, 2.0, 1.4)
CASES = {
    "lorenz96_etkf24": Case(*L96, "etkf:24,inflation=1.013", "0.18"),
    "lorenz96_enkf40": Case(*L96, "enkf:40,inflation=1.06", "0.22"),
    "lorenz96_letkf7": Case(*L96, "letkf:7,inflation=1.04,radius=4,period=40", "0.22"),
    "lorenz63_enkf100": Case(*L63, "enkf:100", "0.55-0.60"),
    "lorenz63_etkf24": Case(*L63, "etkf:24,inflation=1.013", ""),
    "lorenz63_letkf7": Case(*L63, "letkf:7,inflation=1.04,radius=4", ""),
    "lorenz63_particle800": Case(*L63, "particle:800,jitter=1,resample_below=0.1", "0.28"),
}


def simulate_twin(case: Case, seed: int) -> tuple[Float[np.ndarray, "T M"], Float[np.ndarray, "T M"]]:
    """Simulate the truth from a random state on the attractor, its first row before any reading, and the readings."""
    rng = np.random.default_rng(seed)
    steps, burn_in = case.every * case.cycles, 2000
    z = jnp.asarray(rng.standard_normal(case.dim) + (8.0 if case.dim > 3 else 1.0), jnp.float32)
    _, truth = jax.lax.scan(lambda z, _: (case.flow(z),) * 2, z, None, length=burn_in + steps)
    states = np.asarray(truth, np.float64)[burn_in - 1 :]
    readings = states[1:] + np.sqrt(case.variance) * rng.standard_normal((steps, case.dim))
    readings[np.arange(1, steps + 1) % case.every != 0] = np.nan
    return states, readings


def measure(case: Case, seed: int) -> dict[str, float]:
    """Run one twin experiment; errors are those at readings, after the spin-up."""
    states, readings = simulate_twin(case, seed)
    guess = states[0] + case.start_std * np.random.default_rng(10_000 + seed).standard_normal(case.dim)
    run = assimilate(
        case.flow,
        readings,
        start=guess,
        start_std=case.start_std,
        observation_std=np.sqrt(case.variance),
        filter=f"{case.filter},seed={seed}",
    )
    at = slice((case.spin_up + 1) * case.every - 1, None, case.every)
    return {
        "rmse": float(run.rmse(states[1:])[at].mean()),
        "spread": float(run.spread()[at].mean()),
        "nll": float(run.nll[at].mean()),
    }


def show(console: Console) -> None:
    """Print the scores beside those that are published."""
    table = Table("case", "filter", "published", "rmse", "± se", "spread", "seeds")
    for name, case in CASES.items():
        path = OUTPUT / f"{name}.json"
        if path.exists():
            rows = json.loads(path.read_text())["seeds"].values()
            rmse = np.array([row["rmse"] for row in rows])
            error = rmse.std(ddof=1) / np.sqrt(len(rmse)) if len(rmse) > 1 else np.nan
            spread = np.mean([row["spread"] for row in rows])
            table.add_row(
                name, case.filter, case.published, f"{rmse.mean():.3f}", f"{error:.3f}", f"{spread:.3f}", str(len(rmse))
            )
    console.print(table)


def main() -> None:
    """Run what is missing, then show everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--show", action="store_true")
    arguments, console = parser.parse_args(), Console()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name in () if arguments.show else arguments.only:
        path, case = OUTPUT / f"{name}.json", CASES[name]
        record = json.loads(path.read_text()) if path.exists() else {}
        if record.get("filter") != case.filter:
            record = {"filter": case.filter, "seeds": {}}
        for seed in range(arguments.seeds):
            if str(seed) not in record["seeds"]:
                record["seeds"][str(seed)] = measure(case, seed)
                record |= {"versions": versions(), "machine": machine()}
                path.write_text(json.dumps(record, indent=1) + "\n")
                console.print(f"{name}, seed {seed}: {record['seeds'][str(seed)]}")
    show(console)


if __name__ == "__main__":
    main()
