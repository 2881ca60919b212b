"""Fixed points of AL-RNNs that were fitted to Lorenz-63, beside the true three, over refits with other seeds.

    python -m benchmarks.fixed_points [--refits 5] [--show]

The vector field of Lorenz-63 vanishes at 0 and at (+-sqrt(beta (rho - 1)), +-sqrt(beta (rho - 1)), rho - 1), and a map
that takes steps of a flow rests where the flow does. Data: 6000 rows, 5 % noise on readings. Fits are kept in
`results/fixed_points/runs` (not committed); numbers go to `results/fixed_points/lorenz63.json`. The same command
continues where it stopped.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from kaffee.certification.stability import Candidate
from kaffee.fitting.config import override
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.refits import fit_refits
from kaffee.fitting.run import Run, Source
from kaffee.fitting.settings import FitSettings
from kaffee.progress import TrainingProgress
from kaffee.records import jsonable, machine, read_json, versions, write_json
from kaffee.systems.catalogue import get_system
from kaffee.tables import Table
from kaffee.theory.analysis import Analysis, analyse, compare_analyses
from kaffee.theory.fixed_points import MAX_GATES, find_cycles

OUTPUT = Path(__file__).parent.parent / "results" / "fixed_points"
SIMULATION = ("simulation.num_steps=6000", "simulation.process_noise=0.0", "simulation.observation_noise=0.05")
FEWER = ("rung=alrnn", "pretraining.schedule.num_updates=8000", "adaptation.schedule.num_updates=1500")
"""Updates that take one or two minutes; the suggested settings have 20 000 and 10 000."""
STEPS = 20_000
NAMES = ("origin", "left wing", "right wing")


def true_points() -> Float[np.ndarray, "3 3"]:
    """Return where the vector field of Lorenz-63 vanishes."""
    beta, rho = (get_system("lorenz63").parameters[name] for name in ("beta", "rho"))
    wing = np.sqrt(beta * (rho - 1.0))
    return np.array([[0.0, 0.0, 0.0], [-wing, -wing, rho - 1.0], [wing, wing, rho - 1.0]])


def true_eigenvalues(point: Float[np.ndarray, " 3"]) -> Float[np.ndarray, " 3"]:
    """Compute the moduli of exp(dt J) at a point, J the derivative of the vector field; largest first."""
    system = get_system("lorenz63")
    sigma, rho, beta = (system.parameters[name] for name in ("sigma", "rho", "beta"))
    x, y, z = point
    J = np.array([[-sigma, sigma, 0.0], [rho - z, -1.0, -x], [y, x, -beta]])
    return np.sort(np.exp(system.dt * np.linalg.eigvals(J).real))[::-1]


def fit_all(count: int, *, quiet: bool = False) -> list[Candidate]:
    """Fit an AL-RNN to the same rows with so many seeds, or load what is there."""
    source, rough = Source(system="lorenz63"), override(FitSettings(), list(SIMULATION))
    loaded = source.load(rough)
    settings = override(settings_for(loaded.series), [*SIMULATION, *FEWER])
    run = Run.start(OUTPUT / "runs", settings, source, loaded)
    with TrainingProgress(Console(stderr=True), quiet=quiet) as progress:
        return fit_refits(run, count, watcher=progress.watcher)


def measure(seeds: list[int], analyses: list[Analysis]) -> dict[str, Any]:
    """Find the point of each fit that is nearest to each true one, in standard deviations of the data."""
    scale = np.asarray(analyses[0].scaler.scale)
    points = []
    for name, truth in zip(NAMES, true_points(), strict=True):
        true = true_eigenvalues(truth)
        fits = []
        for each in analyses:
            places = [each.observe(cycle.states[0]) for cycle in each.fixed_points]
            gaps = [float(np.sqrt(np.mean(((place - truth) / scale) ** 2))) for place in places]
            i = int(np.argmin(gaps)) if gaps else None
            cycle = None if i is None else each.fixed_points[i]
            fits.append(
                None
                if i is None or cycle is None
                else {
                    "place": places[i],
                    "distance": gaps[i],
                    "num_unstable": cycle.num_unstable,
                    "radius": cycle.radius,
                }
            )
        unstable = int((true > 1.0).sum())
        points.append({"name": name, "truth": truth, "radius": true[0], "num_unstable": unstable, "fits": fits})
    spread = compare_analyses(analyses)
    exponents = [
        None if each.spectrum is None else {"value": each.spectrum.maximal, "error": each.spectrum.standard_errors[0]}
        for each in analyses
    ]
    return jsonable({"seeds": seeds, "points": points, "spread": spread, "exponents": exponents})


def search_agrees(candidate: Candidate) -> bool:
    """Tell whether the search from training states alone finds the fixed points that all regions have."""
    model = candidate.reconstruction.model
    assert model.climate is not None
    starts = np.asarray(model.climate.states, np.float64)
    every, some = (find_cycles(model.core, starts, max_gates=gates).cycles for gates in (MAX_GATES, 0))
    return len(every) == len(some) and all(
        np.allclose(one.states, other.states, atol=1e-9) for one, other in zip(every, some, strict=True)
    )


def show(record: dict[str, Any]) -> list[Table]:
    """Set what was found beside the truth."""
    rows = []
    for point in record["points"]:
        fits = [fit for fit in point["fits"] if fit is not None]
        places = np.array([fit["place"] for fit in fits]).reshape(-1, 3)
        mean, std = places.mean(axis=0), places.std(axis=0, ddof=1)
        where = [f"{m:.2f} ± {s:.2f} ({t:.2f})" for m, s, t in zip(mean, std, point["truth"], strict=True)]
        same = sum(fit["num_unstable"] == point["num_unstable"] for fit in fits)
        radius = np.array([fit["radius"] for fit in fits])
        growth = f"{radius.mean():.3f} ± {radius.std(ddof=1):.3f} ({point['radius']:.3f})"
        far = max(fit["distance"] for fit in fits)
        rows.append([point["name"], *where, f"{far:.2f}", f"{same} of {len(record['seeds'])}", growth])
    head = ["", "x1 (true)", "x2 (true)", "x3 (true)", "farthest", "unstable directions as true", "|eigenvalue| (true)"]
    note = (
        "Mean ± standard deviation over fits. Farthest: root mean square of a fit's error, in deviations of the data."
    )
    spread = record["spread"]
    each = zip(record["seeds"], spread["num_fixed_points"], spread["num_stable"], record["exponents"], strict=True)
    fits = [
        [f"seed {seed}", count, stable, found and found["value"], found and found["error"], dimension]
        for (seed, count, stable, found), dimension in zip(each, spread["dimensions"], strict=True)
    ]
    columns = ["", "fixed points", "stable", "lambda 1", "standard error", "Kaplan-Yorke dim."]
    known = "Lorenz-63: 3 fixed points, none stable, lambda 1 = 0.906, dimension 2.06."
    return [
        Table("Fixed points of AL-RNNs fitted to Lorenz-63", head, rows, note=note),
        Table("Fits", columns, fits, note=known),
    ]


def main() -> None:
    """Fit, analyse, write and print."""
    parser = argparse.ArgumentParser(description="Fixed points of AL-RNNs that were fitted to Lorenz-63.")
    parser.add_argument("--refits", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="Print what is stored, and compute nothing.")
    arguments = parser.parse_args()
    path = OUTPUT / "lorenz63.json"
    if not arguments.show:
        candidates = fit_all(arguments.refits)
        analyses = [analyse(each.reconstruction, num_steps=STEPS, grid=None) for each in candidates]
        record = measure([each.seed for each in candidates], analyses)
        record["search_agrees"] = [search_agrees(each) for each in candidates]
        write_json(path, {**record, "settings": [*SIMULATION, *FEWER], "versions": versions(), "machine": machine()})
    for table in show(read_json(path, "result")):
        print(f"{table.title}\n\n{table.to_markdown()}")


if __name__ == "__main__":
    main()
