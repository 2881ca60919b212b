"""A map that is learned beside the fixed one: `python -m benchmarks.observation_maps`.

100 channels of Lorenz-63 (three hidden coordinates, a random matrix) with 20 % noise. A plain `kaffee fit` gives every
channel a latent coordinate; `--observation learned:3` learns a map from three components. Writes the angle between the
span of the map and the true one, held-out NLL, the error of the filtered signal, and the distance of free runs from the
true attractor after alignment (a linear regression of true states on filtered signals of the training rows).
"""

import argparse
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.pipeline import fit
from kaffee.inference.ensembles import simulate as run_free
from kaffee.inference.recordings import filter_recordings
from kaffee.metrics.attractors import measure_distances
from kaffee.records import machine, versions
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.training.components import principal_components, subspace_angle

OUTPUT = Path(__file__).parent.parent / "results" / "observation_maps"
CHANNELS, ROWS, NOISE, TEST = 100, 2000, 0.2, 0.2
FREE_STEPS, FREE_RUNS = 5000, 4
LONG, REFERENCE, AGAIN = 40_000, 30_000, 35_000  # steps of the true system, and where its references start


def observe(states: np.ndarray, channels: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Show states through a random matrix with gains of their own, and noise in shares of each channel's spread."""
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((channels, states.shape[1])) * np.exp(0.5 * rng.standard_normal((channels, 1)))
    signal = states @ B.T + rng.standard_normal(channels)
    return B, signal, signal + noise * signal.std(axis=0) * rng.standard_normal(signal.shape)


@cache
def _long_run() -> np.ndarray:
    """Simulate Lorenz-63 without noise, each coordinate in units of its spread."""
    states = simulate(get_system("lorenz63"), LONG, process_noise=0.0, observation_noise=0.0, seed=0).states
    return (states - states.mean(axis=0)) / states.std(axis=0)


def lorenz(num_steps: int, start: int) -> np.ndarray:
    """Take a part of one long run, which recordings of different starts see in different places."""
    return _long_run()[start : start + num_steps]


def free_distance(model: Reconstruction, rows: np.ndarray, states: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Measure the median distance of free runs of the bare core from the truth, in the coordinates of true states."""
    signal = filter_recordings(model, Series.from_arrays(rows, columns=model.columns))[0].mean
    A, *_ = np.linalg.lstsq(np.c_[signal, np.ones(len(signal))], states, rcond=1e-6)
    runs = [each.values for each in run_free(model, FREE_STEPS, shell=False, runs=FREE_RUNS, seed=0)]
    moved = [np.c_[run, np.ones(len(run))] @ A for run in runs if np.isfinite(run).all()]
    found = measure_distances(truth, moved) if moved else []
    lost = [float("inf")] * (FREE_RUNS - len(found))
    return {name: float(np.median([getattr(each, name) for each in found] + lost)) for name in ("d_stsp", "d_h")}


def judge(model: Reconstruction, cut: int, rows: np.ndarray, signal: np.ndarray, states: np.ndarray) -> dict[str, Any]:
    """Score a model on rows after `cut` and its free run."""
    test = filter_recordings(model, Series.from_arrays(rows[cut:], columns=model.columns))
    error = (test[0].mean - signal[cut:]) / signal.std(axis=0)
    free = free_distance(model, rows[:cut], states[:cut], lorenz(FREE_STEPS, REFERENCE))
    return {"nll": test.facts["nll"], "rmse_signal": float(np.sqrt(np.mean(error[20:] ** 2))), **free}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=CHANNELS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("learned", "fixed"), help="fit this one again, keep the rest of the file")
    given = parser.parse_args()
    file = OUTPUT / f"lorenz63_{given.channels}.json"
    states = lorenz(given.rows, 3000 * given.seed)
    B, signal, rows = observe(states, given.channels, NOISE, given.seed)
    series, cut = Series.from_arrays(rows), round((1.0 - TEST) * given.rows)
    result: dict[str, Any] = {"channels": given.channels, "rows": given.rows, "noise": NOISE, "seed": given.seed}
    for name, asked in (("learned", {"observation": {"components": 3}}), ("fixed", {})):
        if given.only not in (None, name):
            continue
        began = time.process_time()
        settings = settings_for(series, {"seed": given.seed, **asked})
        found = fit(series, settings, dt=get_system("lorenz63").dt)
        model = found.fitted.reconstruction
        own = judge(model, cut, rows, signal, states)
        own |= {"rung": settings.rung, "latent_dim": model.model.latent_dim, "cpu_seconds": time.process_time() - began}
        own["chosen"] = model.provenance.get("rungs", {}).get("chosen")
        if name == "learned":
            units = model.scaler.scale[:, None]
            standard = found.train.standardised(model.scaler)
            own["angle"] = subspace_angle(units * np.asarray(model.model.observation.B), B)  # type: ignore[attr-defined]
            own["angle_components"] = subspace_angle(units * principal_components(standard, 3).loadings, B)
            result["components"] = judge(found.prior.reconstruction, cut, rows, signal, states)
        result[name] = own
        print(name, json.dumps(own), flush=True)
    scale = np.array(found.train.concatenated().std(axis=0))
    noise = NOISE * signal.std(axis=0) / scale
    result["nll_of_truth"] = float(np.mean(0.5 * np.log(2.0 * np.pi * noise**2) + 0.5))
    floor = measure_distances(lorenz(FREE_STEPS, REFERENCE), [lorenz(FREE_STEPS, AGAIN)])[0]
    result["floor"] = {"d_stsp": float(floor.d_stsp), "d_h": float(floor.d_h)}
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if given.only and file.exists():
        result = {**json.loads(file.read_text()), **result}
    text = json.dumps({**result, "versions": versions(), "machine": machine()}, indent=1)
    file.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
