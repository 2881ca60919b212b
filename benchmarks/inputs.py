"""A driven system with and without its known input: forecasts and free runs of the Duffing oscillator.

    python -m benchmarks.inputs [--show]

    x'' = x - x^3 - 0.3 x' + 0.5 u(t),   u constant over 10 rows, drawn from -1, 0 and 1

The stimulus throws the oscillator from one well into the other; nothing in its state tells when. Position and velocity
are read with 10 % noise, every 0.2 units of time: 2000 rows to fit, 2000 others to judge. The same settings with and
without the input (fewer updates than suggested); linear model and AL-RNN are those of the same fits. Free runs of
driven models use the input of the judged rows. Numbers go to `results/inputs/duffing.json`.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from kaffee.certification.forecasts import block_mean, count_blocks, forecast_at
from kaffee.certification.free_runs import agreement
from kaffee.certification.innovations import choose_starts, filter_pass
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.fitting.config import override
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.pipeline import fit
from kaffee.inference.ensembles import simulate
from kaffee.metrics.scores import gaussian_nll
from kaffee.records import jsonable, read_json, versions, write_json
from kaffee.tables import Table

_FILE = Path(__file__).parent.parent / "results" / "inputs" / "duffing.json"
ROWS, DT, SUBSTEPS, HELD, NOISE = 2000, 0.2, 20, 10, 0.1
FEWER = ("rung=alrnn", "pretraining.schedule.num_updates=2000", "adaptation.schedule.num_updates=300")
"""Updates that take a minute; the suggested settings have 20 000 and 4800."""
HORIZONS, STARTS, MEMBERS = (1, 4, 16, 64), 400, 200
FREE_RUNS, FREE_STEPS, SETTLED = 10, 6_000, 100


def duffing(num_rows: int, seed: int) -> tuple[Series, Float[np.ndarray, "T 2"]]:
    """Simulate readings with their input, and the states behind them, by fourth-order Runge-Kutta steps.

    The input of a row is what acted on the way to it.
    """
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.integers(-1, 2, num_rows // HELD + 1), HELD)[:num_rows].astype(float)

    def field(z: Float[np.ndarray, " 2"], push: float) -> Float[np.ndarray, " 2"]:
        return np.array([z[1], z[0] - z[0] ** 3 - 0.3 * z[1] + 0.5 * push])

    z, h, states = np.array([1.0, 0.0]), DT / SUBSTEPS, []
    for push in u.tolist():
        for _ in range(SUBSTEPS):
            a = field(z, push)
            b = field(z + 0.5 * h * a, push)
            c = field(z + 0.5 * h * b, push)
            d = field(z + h * c, push)
            z = z + h / 6.0 * (a + 2.0 * b + 2.0 * c + d)
        states.append(z)
    clean = np.array(states)
    readings = clean + NOISE * clean.std(axis=0) * rng.standard_normal(clean.shape)
    table = np.column_stack([readings, u])
    series = Series.from_arrays(table, columns=["position", "velocity", "stimulus"], times=DT * np.arange(num_rows))
    return series.with_inputs(["stimulus"]), clean


def judge(known: Reconstruction, train: Series, test: Series, clean: Float[np.ndarray, "T 2"]) -> dict[str, Any]:
    """Score forecasts of readings, and free runs, of one model."""
    run = filter_pass(known, test, choose_starts(test, STARTS, climate=True))
    mean, std = forecast_at(run, HORIZONS, MEMBERS, 0, exact=False)
    scores: dict[str, Any] = {"nll": [], "nll_error": [], "rmse": []}
    for i, h in enumerate(HORIZONS):
        y = run.starts.ahead(run.standard, h)
        mask = ~np.isnan(y)
        nll = gaussian_nll(np.where(mask, y, 0.0), mean[:, i], std[:, i])
        value, error, _ = block_mean(nll, mask, count_blocks(run, h))
        rmse = float(np.sqrt(np.mean((y - mean[:, i])[mask] ** 2)))
        for name, number in (("nll", value), ("nll_error", error), ("rmse", rmse)):
            scores[name].append(number)
    free = agreement(known, train, test, runs=FREE_RUNS, steps=FREE_STEPS)
    inputs = None if test.inputs is None else test.inputs.take([(0, slice(1, None))])
    how: dict[str, Any] = {
        "shell": False,
        "start": clean[0],
        "transient": 0,
        "inputs": inputs if known.inputs else None,
    }
    (alone,) = simulate(known, len(clean) - 1, **how)
    pair = alone.values[SETTLED:, 0], clean[1:][SETTLED:, 0]
    same = float(np.corrcoef(*pair)[0, 1]) if np.ptp(pair[0]) > 1e-6 else 0.0
    return {
        **scores,
        "d_stsp_core": free.core.typical.d_stsp,
        "d_stsp_noisy": free.stochastic.typical.d_stsp,
        "d_h_core": free.core.typical.d_h,
        "lost_core": free.core.lost,
        "d_stsp_floor": free.floor.d_stsp,
        "correlation": same,
    }


def measure(*, quiet: bool = False) -> dict[str, Any]:
    """Fit and judge all four models."""
    (train, _), (test, clean) = duffing(ROWS, seed=0), duffing(ROWS, seed=1)
    rows = {}
    for name, part in (("without", train.driven_by(None)), ("with", train)):
        fitted = fit(part, override(settings_for(part), list(FEWER)))
        assert fitted.linear is not None
        for kind, stage in (("linear", fitted.linear), ("AL-RNN", fitted.fitted)):
            seen = test if name == "with" else test.driven_by(None)
            rows[f"{kind}, {name} input"] = judge(stage.reconstruction, part, seen, clean)
            if not quiet:
                Console(stderr=True).print(f"{kind}, {name} input: {rows[f'{kind}, {name} input']}", markup=False)
    return {"horizons": list(HORIZONS), "settings": list(FEWER), "versions": versions(), "models": rows}


def table() -> Table:
    """Show the stored numbers of all models beside each other."""
    found = read_json(_FILE, "results of benchmarks.inputs")
    horizons = found["horizons"]
    columns = ["model", *(f"nll, {h}" for h in horizons), *(f"rmse, {h}" for h in horizons)]
    rows = [
        [name, *each["nll"], *each["rmse"], each["d_stsp_core"], each["d_stsp_noisy"], each["correlation"]]
        for name, each in found["models"].items()
    ]
    floor = next(iter(found["models"].values()))["d_stsp_floor"]
    return Table(
        "Driven Duffing oscillator",
        (*columns, "d_stsp core", "d_stsp noisy", "correlation"),
        rows,
        note="nll (nats per reading) and rmse of forecasts 1, 4, ... steps ahead, standardised; d_stsp of free runs "
        f"(training data: {floor:.3f}); correlation of the position in one free run of the core, from the true first "
        "state, with the true one after 100 steps.",
    )


def main() -> None:
    """Measure and write, or show what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="show the stored numbers")
    if not parser.parse_args().show:
        write_json(_FILE, jsonable(measure(), digits=6))
    Console().print(table())


if __name__ == "__main__":
    main()
