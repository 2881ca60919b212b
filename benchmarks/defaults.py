"""What the suggested settings of `kaffee fit` give on noisy simulations, with and without the guard of the core.

    python -m benchmarks.defaults [--seeds 3] [--only chua] [--show]

Every case is a system with its noise; every seed draws data and training again. Both arms start from the same prior.
Writes one file per case and seed to `results/defaults/`; the same command continues where it stopped.
"""

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from kaffee.certification.check import check
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.fitting.config import to_dict
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import FitSettings
from kaffee.fitting.stages import Stage, StageStore
from kaffee.records import machine, read_json, versions, write_json
from kaffee.systems.catalogue import get_system, stored_measurements
from kaffee.systems.simulation import simulate
from kaffee.tables import Table
from kaffee.training.guard import FreeRunGuard

OUTPUT = Path(__file__).parent.parent / "results" / "defaults"
ROWS = 25_000
# Noise of process and observation.
CASES = {
    "lorenz63": (0.1, 0.1),
    "lorenz63_clean": (0.0, 0.1),
    "chua_clean": (0.0, 0.1),
    "burke_shaw_clean": (0.0, 0.1),
    "van_der_pol": (0.1, 0.1),
}
ARMS = {"guarded": 250, "unguarded": None}


class SharedPrior(StageStore):
    """Keeps the prior of the first fit for the next."""

    prior: Stage | None = None

    def finished(self, name: str) -> Stage | None:
        return self.prior if name == "prior" else None

    def save_stage(self, name: str, stage: Stage) -> None:
        if name == "prior":
            self.prior = stage


def recorded(case: str, seed: int) -> Series:
    """The noisy rows that a user would have."""
    process, observation = CASES[case]
    system = get_system(case.removesuffix("_clean"))
    found = simulate(system, ROWS, seed=seed, process_noise=process, observation_noise=observation)
    return Series.from_arrays(found.observations, times=found.times, name=case)


def collect_facts(model: Reconstruction, test: Series) -> dict[str, Any]:
    """One-step scores, and 20 free runs of the core against the held-out rows; no distance if all of them are lost."""
    found = check(model, test)
    look = FreeRunGuard(test.standardised(model.scaler), every=1).look(model.model)
    facts = {
        "nll": found.nll,
        "coverage_90": found.coverage_90,
        "lambda_1": found.lambda_1,
        "d_stsp_runs": look.distance,
    }
    return {name: value if math.isfinite(value) else None for name, value in facts.items()} | {"lost": look.lost}


def measure(case: str, seed: int) -> dict[str, Any]:
    """Both arms from one prior."""
    series, store, arms = recorded(case, seed), SharedPrior(), {}
    for arm, guard in ARMS.items():
        settings: FitSettings = settings_for(series, {"seed": seed, "adaptation": {"guard": guard}})
        began = time.perf_counter()
        found = fit(series, settings, store=store)
        seconds = time.perf_counter() - began
        arms[arm] = {**collect_facts(found.fitted.reconstruction, found.test), "seconds": seconds}
        arms[arm]["report"] = found.fitted.report
        arms.setdefault("prior", collect_facts(found.prior.reconstruction, found.test))
    return {
        "case": case,
        "seed": seed,
        "fingerprint": series.fingerprint,
        "settings": to_dict(settings),
        "arms": arms,
        "versions": versions(),
        "machine": machine(),
    }


def table() -> Table:
    """Of all results: medians over seeds, and the worst core."""
    records = [read_json(path, "result") for path in sorted(OUTPUT.glob("*.json"))]
    rows = []
    measured = stored_measurements()
    for case in CASES:
        truth = measured[case.removesuffix("_clean")]["exponents"][0]
        for arm in ("prior", *ARMS):
            cells = [record["arms"][arm] for record in records if record["case"] == case]
            if cells:
                rows.append(
                    [
                        case,
                        arm,
                        str(len(cells)),
                        *(
                            f"{statistics.median(_all(cells, key)):.3f}"
                            for key in ("nll", "coverage_90", "d_stsp_runs")
                        ),
                        f"{max(_all(cells, 'd_stsp_runs')):.3f}",
                        f"{sum(cell['lost'] for cell in cells)} of {len(cells) * FreeRunGuard.RUNS}",
                        f"{statistics.median(_all(cells, 'lambda_1')):.2f}",
                        f"{truth:.2f}",
                    ]
                )
    title = "Suggested settings on simulations: medians over seeds, held-out rows"
    note = "20 free runs of 20 000 steps per seed; lost: diverged, or trapped in a small part of the attractor."
    columns = ["case", "core", "seeds", "NLL", "coverage 90 %", "D_stsp", "worst D_stsp", "lost runs"]
    columns += ["lambda_1", "true lambda_1"]
    return Table(title, columns, rows, note=note)


def _all(cells: list[dict[str, Any]], key: str) -> list[float]:
    """A value of every cell; infinite where it is not known, as for a distance of runs that are all lost."""
    return [math.inf if cell[key] is None else cell[key] for cell in cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--show", action="store_true", help="Only print the table.")
    given = parser.parse_args()
    todo = [(case, seed) for seed in range(given.seeds) for case in given.only]
    todo = [] if given.show else [each for each in todo if not _path(*each).exists()]
    for case, seed in track(todo, "Fitting"):
        write_json(_path(case, seed), measure(case, seed))
    Console().print(table())


def _path(case: str, seed: int) -> Path:
    return OUTPUT / f"{case}-{seed}.json"


if __name__ == "__main__":
    main()
