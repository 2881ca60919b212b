"""Fixed points of AL-RNNs that were fitted to Lorenz-63, beside the true three, over refits with other seeds.

    python -m benchmarks.fixed_points [--refits 5] [--show]

The vector field of Lorenz-63 vanishes at 0 and at (+-sqrt(beta (rho - 1)), +-sqrt(beta (rho - 1)), rho - 1), and a map
that takes steps of a flow rests where the flow does. Data: 6000 rows, 5 % noise on readings. Fits are kept in
`results/fixed_points/runs` (not committed); numbers go to `results/fixed_points/lorenz63.json`. The same command
continues where it stopped.
"""

import argparse
from pathlib import Path

from rich.console import Console

from kaffee.certification.stability import Candidate
from kaffee.fitting.config import override
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.refits import fit_refits
from kaffee.fitting.run import Run, Source
from kaffee.fitting.settings import FitSettings
from kaffee.progress import TrainingProgress

OUTPUT = Path(__file__).parent.parent / "results" / "fixed_points"
SIMULATION = ("simulation.num_steps=6000", "simulation.process_noise=0.0", "simulation.observation_noise=0.05")
FEWER = ("rung=alrnn", "pretraining.schedule.num_updates=8000", "adaptation.schedule.num_updates=1500")
"""Updates that two cores take in two minutes; the suggested settings have 20 000 and 10 000."""


def fit_all(count: int, *, quiet: bool = False) -> list[Candidate]:
    """Fit an AL-RNN to the same rows with so many seeds, or load what is there."""
    source, rough = Source(system="lorenz63"), override(FitSettings(), list(SIMULATION))
    loaded = source.load(rough)
    settings = override(settings_for(loaded.series), [*SIMULATION, *FEWER])
    run = Run.start(OUTPUT / "runs", settings, source, loaded)
    with TrainingProgress(Console(stderr=True), quiet=quiet) as progress:
        return fit_refits(run, count, watcher=progress.watcher)


def main() -> None:
    """Fit, analyse, print and write."""
    parser = argparse.ArgumentParser(description="Fixed points of AL-RNNs that were fitted to Lorenz-63.")
    parser.add_argument("--refits", type=int, default=5)
    arguments = parser.parse_args()
    for each in fit_all(arguments.refits):
        print(each.seed, each.validation)


if __name__ == "__main__":
    main()
