"""What little optimisation costs and saves: `python -m benchmarks.compiling`.

The gradient of 16 windows of 73 rows, 20 free runs of 5000 steps and 3000 updates of teacher forcing, in processes with
XLA's own flags and with those of `kaffee.checkpoint.programs.compile_quickly`: processor seconds of the first call
(which compiles) and of the fastest of seven. Both flags take turns; ratios are quick over full.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.ekf_kaffee import build
from benchmarks.problem import Size, make_problem
from kaffee.checkpoint.programs import QUICK
from kaffee.data.series import Series
from kaffee.filtering.rollout import free_run
from kaffee.records import machine, versions
from kaffee.training.loop import Schedule
from kaffee.training.pretraining import Pretraining, pretrain

OUTPUT = Path(__file__).parent.parent / "results" / "waiting" / "compiling.json"
REPEATS, TURNS = 7, 2


def clock(call: Callable[[], Any], repeats: int = REPEATS) -> list[float]:
    """Return processor seconds of the first call and of the fastest later one."""
    seconds = []
    for _ in range(repeats + 1):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return [seconds[0], min(seconds[1:])]


def measure() -> dict[str, list[float]]:
    """Measure all programs in this process."""
    found = {}
    for N, M in ((4, 20), (20, 100)):
        problem = make_problem(Size(latent=M, observed=N, windows=16, steps=72))
        found[f"gradient, {M} latents"] = clock(build(problem))
        starts = jax.random.normal(jax.random.key(2), (20, M))
        run = eqx.filter_jit(lambda model, z: free_run(model, z, 5000).observations)
        found[f"free runs, {M} latents"] = clock(
            lambda run=run, m=problem.model, z=starts: run(m, z).block_until_ready()
        )
    model = make_problem(Size(latent=20, observed=4, windows=16, steps=72)).model
    rows = Series.from_arrays(np.random.default_rng(0).normal(size=(2000, 4)))
    forcing = Pretraining(window=50, schedule=Schedule(num_updates=3000, report_every=500))
    found["3000 updates of teacher forcing"] = clock(lambda: jnp.sum(pretrain(model, rows, forcing, seed=0).losses), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="measure in this process and print JSON")
    if parser.parse_args().here:
        print(json.dumps(measure()))
        return
    turns: dict[str, list[dict[str, list[float]]]] = {"full": [], "quick": []}
    for _ in range(TURNS):
        for name, flags in (("full", ""), ("quick", QUICK)):
            environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
            command = [sys.executable, "-m", "benchmarks.compiling", "--here"]
            done = subprocess.run(
                command, env={**environment, "XLA_FLAGS": flags}, check=True, capture_output=True, text=True
            )
            turns[name].append(json.loads(done.stdout.splitlines()[-1]))
    medians = {
        name: {key: np.median([turn[key] for turn in found], axis=0).round(4).tolist() for key in found[0]}
        for name, found in turns.items()
    }
    ratios = {
        key: dict(zip(("first call", "later"), np.divide(medians["quick"][key], each).round(2).tolist(), strict=True))
        for key, each in medians["full"].items()
    }
    result = {**medians, "quick over full": ratios, "turns": TURNS, "versions": versions(), "machine": machine()}
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(ratios, indent=1))


if __name__ == "__main__":
    main()
