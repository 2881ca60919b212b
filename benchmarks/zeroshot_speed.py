"""Zero-shot in seconds: a filter step, an ensemble forecast, and a first forecast, warm and cold.

Contestants are ours, DynaMix in our JAX (random weights: no number of operations depends on them) and the local linear
map in NumPy with a KD-tree, all with the same context of Lorenz-63 with 10 % noise. Cold is a process of its own
(`python -m benchmarks.zeroshot_speed METHOD ROWS`) which compiles everything.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from benchmarks.timing import compared, first_call, interleaved, summary
from benchmarks.zeroshot_baselines import LocalLinear, Pairs
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.filtering.gated import make_gate
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.rollout import forecast_ensemble
from kaffee.filtering.sweep import sweep
from kaffee.foundation.context import condition
from kaffee.foundation.continuation import zero_shot
from kaffee.foundation.incontext import read_context
from kaffee.inference.ensembles import forecast
from kaffee.model.dynamix import DynaMix
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate

LIMIT = 0.3
"""Seconds that a first forecast may take when everything is compiled."""
NOISE = 0.1
METHODS = ("kaffee", "dynamix", "local_linear")

Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Size:
    """How large the problem is.

    Attributes:
        rows: Of the context of filter steps and forecasts.
        filtered: Rows that are filtered at a time.
        steps, members: Of a forecast.
        ahead: Steps of a first forecast.
        first: Rows of its contexts.
    """

    rows: int = 2000
    filtered: int = 500
    steps: int = 300
    members: int = 100
    ahead: int = 30
    first: tuple[int, ...] = (512, 2000)


QUICK = Size(rows=80, filtered=10, steps=10, members=4, ahead=5, first=(60,))


def make_context(rows: int, seed: int) -> Float[np.ndarray, "T N"]:
    """Simulate noisy readings."""
    return simulate(get_system("lorenz63"), rows, seed=seed, observation_noise=NOISE).observations


def make_dynamix(seed: int) -> DynaMix:
    """Make a model of the published size."""
    return DynaMix.create(30, num_observed=3, num_experts=10, num_gates=2, key=jax.random.key(seed))


def make_models(size: Size, seed: int) -> tuple[dict[str, Reconstruction], Pairs, Float[np.ndarray, "T N"]]:
    """Make the surrogates of one context, and the readings that follow it."""
    every = make_context(size.rows + size.filtered, seed)
    context, following = np.split(every, [size.rows])
    models = {
        "kaffee": read_context(Series.from_arrays(context)),
        "dynamix": condition(make_dynamix(seed), context)[0],
    }
    return models, Pairs(context), following


def filter_numpy(pairs: Pairs, readings: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Run an extended Kalman filter with the local affine map, in plain NumPy."""
    core, N = LocalLinear.for_noise(pairs, NOISE), readings.shape[1]
    R, Q, identity = NOISE**2 * np.eye(N), 1e-3 * np.eye(N), np.eye(N)
    mean, P, beliefs = pairs.last, R, np.empty_like(readings)
    for t, x in enumerate((readings - pairs.mean) / pairs.scale):
        after, J = core.linearise(mean[None])
        P = J[0] @ P @ J[0].T + Q
        gain = np.linalg.solve(P + R, P).T
        mean, P = after[0] + gain @ (x - after[0]), (identity - gain) @ P
        beliefs[t] = mean
    return beliefs


def filter_calls(size: Size, seed: int) -> Calls:
    """Filter the rows after the context."""
    models, pairs, following = make_models(size, seed)
    gate = make_gate()

    def call(model: Reconstruction) -> Callable[[], Any]:
        x = jnp.asarray(model.scaler.transform(following), model.model.dtype)[:, None]
        # As an argument a model shares one program with all of its size.
        return lambda: jax.block_until_ready(_filter(model.model, model.filter, x, gate))

    return {name: call(model) for name, model in models.items()} | {
        "local_linear": lambda: filter_numpy(pairs, following)
    }


def _filter(model: Any, recursion: Any, x: Any, gate: Any) -> Any:
    return sweep(model, recursion, x, gate=gate).final


def forecast_calls(size: Size, seed: int) -> Calls:
    """Forecast an ensemble from a belief around the last reading."""
    models, pairs, _ = make_models(size, seed)
    rng = np.random.default_rng(seed)

    def call(model: Reconstruction) -> Callable[[], Any]:
        last = jnp.asarray(model.scaler.transform(pairs.restore(pairs.rows[-1:])), model.model.dtype)
        mean = model.model.embed(last)
        belief = Belief(mean, 0.01 * jnp.eye(mean.shape[1], dtype=mean.dtype)[None])
        arguments, key = (model.model, belief, size.steps, size.members), jax.random.key(seed)
        return lambda: jax.block_until_ready(forecast_ensemble(*arguments, key=key))

    core = LocalLinear.for_noise(pairs, NOISE)

    def noisy(z: np.ndarray) -> np.ndarray:
        return core(z) + 0.03 * rng.standard_normal(z.shape)

    own = {name: call(model) for name, model in models.items()}
    return own | {"local_linear": lambda: pairs.run(noisy, size.steps, size.members)}


def first_calls(rows: int, size: Size, seed: int) -> Calls:
    """Read a context and forecast: all that comes between a recording and its first forecast."""
    context = make_context(rows, seed)
    series, model = Series.from_arrays(context), make_dynamix(seed)

    def local() -> np.ndarray:
        pairs = Pairs(context)
        return pairs.restore(pairs.run(LocalLinear.for_noise(pairs, NOISE), size.ahead, size.members))

    return {
        "kaffee": lambda: forecast(read_context(series), series, size.ahead, members=size.members),
        "dynamix": lambda: zero_shot(model, context, size.ahead),
        "local_linear": local,
    }


def _section(name: str, calls: Calls, per_call: int, repeats: int) -> dict[str, Any]:
    detail: dict[str, Any] = {each: {"first_call": round(first_call(call)[1], 3)} for each, call in calls.items()}
    seconds = {each: values / per_call for each, values in interleaved(calls, repeats, warm_up=1).items()}
    for each, values in seconds.items():
        detail[each] |= summary(values)
    ratios = {each: compared(seconds[each], seconds["kaffee"]) for each in seconds if each != "kaffee"}
    medians = {each: detail[each]["median"] for each in seconds}
    return {name: medians, f"{name}_detail": detail, "ratios": {name: ratios}}


def measure_filter(size: Size, repeats: int, seed: int = 0) -> dict[str, Any]:
    """The section `zeroshot_filter`: seconds of one step with a reading."""
    return _section("zeroshot_filter", filter_calls(size, seed), size.filtered, repeats)


def measure_forecast(size: Size, repeats: int, seed: int = 0) -> dict[str, Any]:
    """The section `zeroshot_forecast`: seconds of an ensemble."""
    return _section("zeroshot_forecast", forecast_calls(size, seed), 1, repeats)


def measure_first(size: Size, repeats: int, seed: int = 0, *, cold: bool = True) -> dict[str, Any]:
    """The section `zeroshot_first`: seconds from a context to its first forecast, warm and cold."""
    found: dict[str, Any] = {"zeroshot_first": {}, "zeroshot_first_detail": {}, "ratios": {"zeroshot_first": {}}}
    for rows in size.first:
        one = _section("first", first_calls(rows, size, seed), 1, repeats)
        warm = one["first"]
        found["zeroshot_first"][str(rows)] = {"warm": warm, "limit": LIMIT, "met": warm["kaffee"] <= LIMIT}
        found["zeroshot_first_detail"] |= {f"{name}, {rows} rows": each for name, each in one["first_detail"].items()}
        found["ratios"]["zeroshot_first"] |= {f"{name}, {rows} rows": r for name, r in one["ratios"]["first"].items()}
        if cold:
            found["zeroshot_first"][str(rows)]["cold"] = {name: measure_apart(name, rows, seed) for name in METHODS}
    return found


def measure_apart(method: str, rows: int, seed: int) -> float:
    """Measure one cold forecast in a fresh process, after its imports and without programs from a disk."""
    command = [sys.executable, "-m", "benchmarks.zeroshot_speed", method, str(rows), str(seed)]
    root, environment = Path(__file__).resolve().parent.parent, {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def main() -> None:
    """Measure one method here and print one line of JSON."""
    method, rows, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    call = first_calls(rows, Size(), seed)[method]
    print(json.dumps({"seconds": round(first_call(call)[1], 3)}))


if __name__ == "__main__":
    main()
