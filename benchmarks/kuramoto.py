"""Kuramoto-Sivashinsky from a quarter of its points: a wide core by the low-rank filter, beside a dense one.

    python -m benchmarks.kuramoto [--only NAME ...] [--rows 4000] [--updates 300] [--quick] [--show]

The truth is a ring of length 22 on 256 points; every fourth one is read, with noise of a tenth of the field's spread.
Both models are fitted by the same pipeline as `kaffee fit` (teacher forcing, shell, adaptation) and compared by free
runs without noise: power spectra of the points that are read (Hellinger), D_stsp on the leading modes of the truth,
and the leading Lyapunov exponents. Writes `results/kuramoto/NAME.json`; the same command goes on where it stopped.
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import CoreSettings, FitSettings
from kaffee.metrics.geometry import d_stsp_mixture
from kaffee.metrics.lyapunov import lyapunov_spectrum
from kaffee.metrics.spectra import d_hellinger
from kaffee.records import machine, read_json, versions, write_json
from kaffee.systems.kuramoto_sivashinsky import KuramotoSivashinsky
from kaffee.training.adaptation import Adaptation
from kaffee.training.loop import Schedule
from kaffee.training.pretraining import Pretraining

OUTPUT = Path("results/kuramoto")
POINTS, EVERY, LENGTH, DT = 256, 4, 22.0, 0.5
NOISE, MODES, EXPONENTS = 0.1, 4, 6


@dataclass(frozen=True)
class Case:
    """A core and the filter that it trains through."""

    latent_dim: int
    filter: str | None
    structure: str | None = None


CASES = {
    "lowrank": Case(512, "lowrank:32"),
    "lowrank_structured": Case(512, "lowrank:32", "lowrank:64"),
    "dense": Case(128, None),
}
SIZES = {"rows": 4000, "forcing": 10_000, "updates": 300, "free": 4000}
QUICK = {"rows": 300, "forcing": 20, "updates": 2, "free": 200}


def read_noisy(num_rows: int, seed: int = 0) -> np.ndarray:
    """Noisy readings of every fourth point."""
    flow = KuramotoSivashinsky(POINTS, LENGTH, DT)
    states = flow.trajectory(num_rows, seed=seed)
    noise = np.random.default_rng(seed + 1).standard_normal((num_rows, POINTS // EVERY))
    return states[:, ::EVERY] + NOISE * states.std() * noise


def leading_modes(truth: np.ndarray) -> np.ndarray:
    """Principal directions of the points that are read."""
    _, _, V = np.linalg.svd(truth - truth.mean(axis=0), full_matrices=False)
    return V[:MODES].T


def measure(case: Case, sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    """Fit one case and compare its free run with a trajectory that training has not seen."""
    readings = read_noisy(sizes["rows"], seed)
    base = FitSettings()
    quick = sizes["rows"] < 1000
    settings = replace(
        base,
        seed=seed,
        core=CoreSettings(latent_dim=72 if quick else case.latent_dim, structure=case.structure),
        pretraining=Pretraining(schedule=Schedule(sizes["forcing"], report_every=100, save_every=10**6)),
        adaptation=Adaptation(
            filter="lowrank:4" if quick and case.filter else case.filter,
            confine=0.25,
            schedule=Schedule(sizes["updates"], report_every=10, save_every=10**6),
        ),
    )
    began = time.process_time()
    result = fit(Series.from_arrays(readings), settings, dt=DT)
    seconds = time.process_time() - began
    made = result.fitted.reconstruction
    model, scaler = made.model.exact(), made.scaler
    return {**compare(model, scaler, sizes["free"], seed), "latent_dim": model.latent_dim, "seconds": seconds}


def compare(model: Any, scaler: Scaler, num_steps: int, seed: int) -> dict[str, Any]:
    """Distances of a free run without noise, and the leading exponents of model and truth."""
    flow = KuramotoSivashinsky(POINTS, LENGTH, DT)
    truth = flow.trajectory(num_steps, seed=seed + 100)
    seen, step = truth[:, ::EVERY], model.core.stepper()
    start = model.embed(jnp.asarray(scaler.transform(seen[:1]), model.dtype))

    @jax.jit
    def run(z: Any) -> Any:
        z = jax.lax.scan(lambda z, _: (step(z), None), z, None, length=200)[0]
        return jax.lax.scan(lambda z, _: (step(z), z), z, None, length=num_steps)[1]

    latent = np.asarray(run(start))[:, 0]
    free = scaler.inverse(np.asarray(model.observation.observe(jnp.asarray(latent))))
    V = leading_modes(seen)
    own = lyapunov_spectrum(model.core, latent[-1], num_steps=num_steps // 2, num_exponents=EXPONENTS, dt=DT)
    with jax.enable_x64(True):
        true = lyapunov_spectrum(
            KuramotoSivashinsky(64, LENGTH, DT),
            KuramotoSivashinsky(64, LENGTH, DT).trajectory(1, seed=seed)[0],
            num_steps=num_steps,
            num_exponents=EXPONENTS,
            dt=DT,
        )
    return {
        "finite": bool(np.isfinite(free).all()),
        "std": float(free.std()),
        "std_truth": float(seen.std()),
        "d_h": float(d_hellinger(seen, free)),
        "d_stsp_modes": float(d_stsp_mixture(seen @ V, free @ V)),
        "exponents": [round(float(x), 4) for x in own.exponents],
        "exponents_truth": [round(float(x), 4) for x in true.exponents],
    }


def show(records: dict[str, dict[str, Any]]) -> None:
    """Print all cases that are stored."""
    columns = ("latent_dim", "seconds", "std", "std_truth", "d_h", "d_stsp_modes", "exponents", "exponents_truth")
    table = Table("case", *columns, title="Kuramoto-Sivashinsky, free runs", title_justify="left")
    for name, record in records.items():
        cells = [record[column] for column in columns]
        table.add_row(name, *(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console().print(table)


def main() -> None:
    """Measure the cases that are missing, and print all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kuramoto", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--forcing", type=int)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--show", action="store_true", help="print what is stored and measure nothing")
    options = parser.parse_args()
    sizes = dict(QUICK if options.quick else SIZES)
    sizes |= {name: value for name in ("rows", "forcing", "updates") if (value := getattr(options, name)) is not None}
    for name in () if options.show else options.only:
        path = options.output / f"{name}.json"
        if not path.exists():
            found = measure(CASES[name], sizes)
            write_json(path, {**found, "sizes": sizes, "versions": versions(), "machine": machine()})
    show({path.stem: read_json(path, "measurement") for path in sorted(options.output.glob("*.json"))})


if __name__ == "__main__":
    main()
