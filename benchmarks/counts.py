"""Lorenz-63 seen only through the counts of 20 neurons: filters with the true flow, and a fit from the counts alone.

    python -m benchmarks.counts [--seeds 5] [--only filters filters_sparse fit] [--show]

Neuron i fires in each bin of 0.04 units of time with log rate log(mean) + c_i' z, z the standardised state, and mean 2
or, sparse, 0.2. Filters: RMSE of the state per coordinate, in units of its standard deviation, after a spin-up; the
same flow, beside Gaussian filters that read 2 sqrt(x + 3/8), whose noise has variance 1 (Anscombe 1948). Fit: factors
of log(x + 1/2) train a Gaussian model, counts train it on through their likelihood; its free runs beside the truth.
Writes `results/counts/NAME.json`; the same command goes on where it stopped.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.filtering.likelihood import KAFFEE
from kaffee.filtering.rollout import free_run
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.pipeline import fit
from kaffee.inference.data_assimilation import assimilate
from kaffee.metrics.attractors import measure_distances
from kaffee.metrics.lyapunov import lyapunov_spectrum
from kaffee.model.discrete import Discrete
from kaffee.model.observation import LinearObservation
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.records import machine, versions
from kaffee.systems.system import rk4_step
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.loop import Schedule
from kaffee.training.optimiser import Optimiser

OUTPUT = Path("results/counts")
BIN, NEURONS, TUNING = 0.04, 20, 0.5
RATES = {"filters": 2.0, "filters_sparse": 0.2, "fit": 2.0}  # mean counts per bin and neuron
# Mean and standard deviation of the attractor, by a long run.
CENTRE, UNIT = np.array([0.0, 0.0, 23.55]), np.array([7.92, 9.01, 8.62])
ROWS, SPIN_UP = 1_000, 100
PROCESS_STD = 0.02  # that filters allow the flow, in standardised units: particles need some
FILTERS = {
    "particles": ("particle:1000", "poisson"),
    "ekf": ("ekf", "poisson"),
    "ukf": ("ukf", "poisson"),
    "etkf": ("etkf:24", "poisson"),
    "ekf, square roots": ("ekf", "roots"),
    "iekf, square roots": ("iekf:3", "roots"),
    "etkf, square roots": ("etkf:24", "roots"),
}


def _field(y: Float[Array, " 3"]) -> Float[Array, " 3"]:
    return jnp.stack([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])


def flow(z: Float[Array, " 3"]) -> Float[Array, " 3"]:
    """Take standardised states one bin ahead."""
    y = CENTRE + UNIT * z
    for _ in range(4):
        y = rk4_step(_field, y, BIN / 4)
    return (y - CENTRE) / UNIT


def simulate_counts(rows: int, seed: int, mean: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulate states, tuning curves and counts; the same neurons for a seed, however many rows."""
    rng = np.random.default_rng(seed)
    tuning = rng.standard_normal((NEURONS, 3))
    tuning *= TUNING * np.sqrt(3.0) / np.linalg.norm(tuning, axis=1, keepdims=True)
    start = jnp.asarray(rng.standard_normal(3) * 0.1 + 0.5, jnp.float32)
    _, path = jax.lax.scan(lambda z, _: (flow(z),) * 2, start, None, length=500 + rows)
    states = np.asarray(path, np.float64)[499:]
    return states, tuning, rng.poisson(np.exp(np.log(mean) + states[1:] @ tuning.T)).astype(float)


def measure_filters(seed: int, mean: float) -> dict[str, Any]:
    """Run every filter on the counts of one seed."""
    states, tuning, counts = simulate_counts(ROWS, seed, mean)

    def log_rates(z: Float[Array, " 3"]) -> Float[Array, " N"]:
        return jnp.log(mean) + jnp.asarray(tuning, z.dtype) @ z

    def roots(z: Float[Array, " 3"]) -> Float[Array, " N"]:
        return 2.0 * jnp.sqrt(jnp.exp(log_rates(z)) + 0.375)

    guess = states[0] + 0.5 * np.random.default_rng(10_000 + seed).standard_normal(3)
    how: dict[str, Any] = {"start": guess, "start_std": 0.5, "process_std": PROCESS_STD}
    found = {}
    for name, (spec, kind) in FILTERS.items():
        by = f"{spec},seed={seed}" if ":" in spec and not spec.startswith("iekf") else spec
        if kind == "roots":
            given: dict[str, Any] = {"observed": roots, "observation_std": 1.0}
            run = assimilate(flow, 2.0 * np.sqrt(counts + 0.375), **given, **how, filter=by)
        else:
            run = assimilate(flow, counts, observed=log_rates, likelihood="poisson", **how, filter=by)
        late = slice(SPIN_UP, None)
        found[name] = {
            "rmse": float(run.rmse(states[1:])[late].mean()),
            "spread": float(run.spread()[late].mean()),
            "nll": None if kind == "roots" else float(run.nll[late].mean()) / NEURONS,
        }
    return found


def _find_factors(rows: Float[np.ndarray, "T N"]) -> tuple[np.ndarray, np.ndarray]:
    """Find three standardised principal components and the matrix that takes them to the rows."""
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    scale = np.sqrt(values[-3:])
    return rows @ vectors[:, -3:] / scale, vectors[:, -3:] * scale


TRAIN_ROWS = 12_000
PRIOR_UPDATES, FACTOR_UPDATES, COUNT_UPDATES = 6_000, 2_000, 300


def measure_fit(seed: int, mean: float) -> dict[str, Any]:
    """Fit a model to counts alone: a prior on their factors, then the counts by their likelihood."""
    states, tuning, counts = simulate_counts(TRAIN_ROWS, seed, mean)
    series = Series.from_arrays(counts)
    scaler = Scaler.fit(series, "poisson")
    rows = series.standardised(scaler)
    factors, loadings = _find_factors(rows.recordings[0])
    given = {"rung": "alrnn", "seed": seed}
    given |= {"pretraining": {"schedule": {"num_updates": PRIOR_UPDATES}}}
    given |= {"adaptation": {"schedule": {"num_updates": FACTOR_UPDATES}}}
    seen = Series.from_arrays(factors)
    prior = fit(seen, settings_for(seen, given)).fitted.reconstruction
    # Factors in the units of the prior: f = mean + scale * B z.
    units, L = prior.scaler, jnp.asarray(loadings, jnp.float32)
    B = L * jnp.asarray(units.scale, jnp.float32) @ prior.model.observation.matrix()
    discrete = Discrete(*(jnp.asarray(each, jnp.float32) for each in (scaler.mean, scaler.scale)), "poisson")
    model = StateSpaceModel(
        core=prior.model.core,
        shell=Shell(prior.model.shell.log_process_std, jnp.full(NEURONS, -0.5)),
        observation=LinearObservation(B),
        embedding=prior.model.embedding @ (jnp.linalg.pinv(L) / jnp.asarray(units.scale, jnp.float32)[:, None]),
        climate=prior.model.climate,
        discrete=discrete,
    )
    settings = Adaptation(
        scored=60,
        burn_in=8,
        climate=True,
        confine=0.1,
        guard=200,
        optimiser=Optimiser(learning_rate=1e-3),
        schedule=Schedule(num_updates=COUNT_UPDATES),
    )
    adapted = adapt(model, rows, KAFFEE, settings, seed=seed, parts=("core", "shell", "observation")).model
    truth = np.log(mean) + states[1:] @ tuning.T
    # Log rates in the three directions of the data in which the truth moves most, standardised.
    values, vectors = np.linalg.eigh(np.cov(truth.T))

    def project(x: np.ndarray) -> np.ndarray:
        return (x - truth.mean(axis=0)) @ vectors[:, -3:] / np.sqrt(values[-3:])

    result = {}
    for name, each in (("factors", model), ("counts", adapted)):
        starts = each.embed(jnp.asarray(rows.recordings[0][200:2200:200], jnp.float32))
        run = free_run(each, starts, 2_000, transient=500)
        stays = np.asarray(run.diverged_at) == 0
        rates = np.asarray(run.observations, np.float64)[stays] * scaler.scale + scaler.mean
        views = [project(rate) for rate in rates]
        found = measure_distances(project(truth)[-4_000:], views, spectra=True) if len(views) else []
        spectra = [lyapunov_spectrum(each.core.exact(), z, num_exponents=2, dt=BIN) for z in run.states[stays][:5]]
        result[name] = {
            "diverged": int((~stays).sum()),
            "d_stsp": float(np.median([d.d_stsp for d in found])) if found else float("nan"),
            "d_h": float(np.median([d.d_h for d in found])) if found else float("nan"),
            "lambda_1": float(np.median([s.exponents[0] for s in spectra])) if spectra else float("nan"),
        }
    halves = measure_distances(project(truth)[-4_000:], [project(truth)[:2_000]], spectra=True)[0]
    result["truth"] = {"diverged": 0, "d_stsp": float(halves.d_stsp), "d_h": float(halves.d_h), "lambda_1": 0.906}
    return result


KINDS: dict[str, Callable[[int, float], dict[str, Any]]] = {
    "filters": measure_filters,
    "filters_sparse": measure_filters,
    "fit": measure_fit,
}


def show(console: Console) -> None:
    """Print means and standard errors over seeds."""
    for kind in KINDS:
        path = OUTPUT / f"{kind}.json"
        if not path.exists():
            continue
        seeds = list(json.loads(path.read_text())["seeds"].values())
        names = list(seeds[0][next(iter(seeds[0]))])
        table = Table(kind, *names, title=f"{len(seeds)} seeds")
        for row in seeds[0]:
            cells = []
            for name in names:
                values = np.array([each[row][name] for each in seeds], float)
                error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
                cells.append(f"{values.mean():.3f} ± {error:.3f}")
            table.add_row(row, *cells)
        console.print(table)


def main() -> None:
    """Run what is missing, then show everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--show", action="store_true")
    arguments, console = parser.parse_args(), Console()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for kind in () if arguments.show else arguments.only:
        path = OUTPUT / f"{kind}.json"
        record = json.loads(path.read_text()) if path.exists() else {"seeds": {}}
        for seed in range(arguments.seeds):
            if str(seed) not in record["seeds"]:
                record["seeds"][str(seed)] = KINDS[kind](seed, RATES[kind])
                record |= {"versions": versions(), "machine": machine()}
                path.write_text(json.dumps(record, indent=1) + "\n")
                console.print(f"{kind}, seed {seed}: {record['seeds'][str(seed)]}")
    show(console)


if __name__ == "__main__":
    main()
