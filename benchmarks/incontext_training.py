"""Would a small trained network set the in-context core's noise better than a constant? Measured, and answered: no.

    python -m benchmarks.incontext_training [--recordings 200] [--corpus FILE.npz] [--show]

    factor of the process noise = exp(sum_i p_i log f_i),    p = softmax(W_2 tanh(W_1 s + b_1) + b_2)

s are standardised statistics of a context as it was read.

Every recording is read, and forecasts with every factor of the process noise are scored against the truth at several
horizons (`results/incontext/scores.jsonl`; the same command goes on where it stopped). The network
learns the factor with the least expected score. Systems are split: its table is of systems that it was not trained on.
The package ships the constant that follows from the same table (`ContextSettings.process`).
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from benchmarks.corpus import generate
from benchmarks.draws import Conditions, Recording, draw_many
from kaffee.data.series import Series
from kaffee.errors import KaffeeError
from kaffee.filtering.gated import make_gate
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.rollout import forecast_ensemble
from kaffee.filtering.sweep import batch_recordings, sweep
from kaffee.foundation.embedding import forget_time
from kaffee.foundation.incontext import ContextReading, ContextSettings, build_model, denoise
from kaffee.metrics.scores import gaussian_nll

FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
OUTPUT = Path("results/incontext")
HORIZONS, MEMBERS, WORST, LAST_ROWS = (1, 3, 10, 30, 90), 50, 6.0, 100
CONDITIONS = Conditions(lengths=(128, 512, 1000), horizon=100, univariate=0.1)
HIDDEN, FOLDS, UPDATES, DECAY = 12, 5, 1500, 3e-3


@dataclass(frozen=True, eq=False)
class Hypernetwork:
    """Weights of the network, and the moments that standardise its input."""

    mean: Float[np.ndarray, " S"]
    scale: Float[np.ndarray, " S"]
    hidden_weight: Float[np.ndarray, "H S"]
    hidden_bias: Float[np.ndarray, " H"]
    output_weight: Float[np.ndarray, "F H"]
    output_bias: Float[np.ndarray, " F"]

    def __call__(self, statistics: Float[np.ndarray, " S"]) -> float:
        """Compute the factor of the process noise; statistics beyond those of the corpus count as its limits."""
        inputs = np.clip((statistics - self.mean) / self.scale, -3.0, 3.0)
        scores = self.output_weight @ np.tanh(self.hidden_weight @ inputs + self.hidden_bias) + self.output_bias
        p = np.exp(scores - scores.max())
        return float(np.exp(p @ np.log(FACTORS) / p.sum()))


def describe_context(reading: ContextReading) -> Float[np.ndarray, " S"]:
    """Compute the statistics of a context ."""
    left_out, regression, smoothed = reading.regression.left_out, reading.regression, reading.smoothed
    squares = np.maximum(np.mean(left_out**2, axis=1), 1e-16)
    rows, N = len(left_out), left_out.shape[1]
    positive = [
        rows,
        N,
        reading.pairs.features.shape[1],
        np.mean(smoothed.observation_std),
        np.mean(smoothed.process_std),
        np.sqrt(squares.mean()),
        np.mean(squares**2) / np.mean(squares) ** 2,
        squares[-max(rows // 4, 1) :].mean() / squares.mean(),
        regression.ridge,
        regression.length,
        forget_time(max(reading.states, key=len)),
    ]
    return np.append(np.log(np.maximum(positive, 1e-12)), reading.passes)


def score(recording: Recording, seed: int) -> list[dict[str, Any]]:
    """Score forecasts of a recording after every pass and with every factor."""
    series, rows = Series.from_arrays(recording.context), []
    for reading in list(denoise(series, ContextSettings()))[-1:]:
        found = []
        for factor in FACTORS:
            model = build_model(reading, ContextSettings(process=factor))
            x = batch_recordings(series.standardised(reading.scaler), model.dtype)[-LAST_ROWS:]
            end = (np.zeros(1, int), np.array([len(x) - 1]))
            belief = sweep(model, Recursion(), x, gate=make_gate(), keep=None, starts=end).beliefs
            drawn = forecast_ensemble(
                model, belief, max(HORIZONS), MEMBERS, key=jax.random.key(seed), observation_noise=False
            )
            members = np.asarray(drawn, np.float64)[:, 0]
            truth = reading.scaler.transform(recording.clean_future[: max(HORIZONS)])
            mean, std = members.mean(axis=0), np.maximum(members.std(axis=0), 1e-4)
            nll = np.minimum(np.nan_to_num(gaussian_nll(truth, mean, std), nan=WORST), WORST).mean(axis=1)
            low, high = np.quantile(members, (0.05, 0.95), axis=0)
            inside = ((truth >= low) & (truth <= high)).mean(axis=1)
            found.append([[float(v[h - 1]) for h in HORIZONS] for v in (nll, inside)])
        rows.append({"statistics": describe_context(reading).tolist(), "scores": found})
    return rows


def collect(corpus: Path | None, count: int, seed: int) -> list[dict[str, Any]]:
    """Score recordings that are not scored yet, one line for each."""
    path = OUTPUT / "scores.jsonl"
    OUTPUT.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if len(done) >= count:
        return done
    systems = generate(seed, 90, 60, path=corpus)
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(systems)) for _ in range(-(-count // len(systems)))])[:count]
    recordings = draw_many([systems[i] for i in order], rng, CONDITIONS)
    with path.open("a") as file:
        for number in range(len(done), count):
            recording = recordings[number]
            facts = {"system": int(order[number]), "kind": recording.kind, "noise": recording.noise}
            try:
                stages = score(recording, number)
            except (KaffeeError, ValueError) as error:
                stages, facts = [], {**facts, "error": str(error)}
            done.append({**facts, "shape": recording.context.shape, "stages": stages})
            file.write(json.dumps(done[-1], default=float) + "\n")
            file.flush()
    return done


def examples(found: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return statistics, mean NLL and coverage by factor, and system numbers."""
    kept = [each for each in found if each["stages"]]
    stage = [each["stages"][-1] for each in kept]
    scores = np.array([each["scores"] for each in stage])
    return (
        np.array([each["statistics"] for each in stage]),
        scores[:, :, 0].mean(axis=2),
        scores[:, :, 1],
        np.array([each["system"] for each in kept]),
    )


def train(s: np.ndarray, nll: np.ndarray, seed: int = 0) -> Hypernetwork:
    """Minimise the expected score; weights decay."""
    mean, scale = s.mean(axis=0), s.std(axis=0) + 1e-6
    inputs, cost = jnp.asarray(np.clip((s - mean) / scale, -3, 3)), jnp.asarray(nll)
    keys = jax.random.split(jax.random.key(seed), 2)
    weights = [
        0.3 * jax.random.normal(keys[0], (HIDDEN, s.shape[1])),
        jnp.zeros(HIDDEN),
        0.1 * jax.random.normal(keys[1], (len(FACTORS), HIDDEN)),
        jnp.zeros(len(FACTORS)),
    ]

    def loss(w: list[Any]) -> Any:
        scores = jnp.tanh(inputs @ w[0].T + w[1]) @ w[2].T + w[3]
        squares = jnp.sum(w[0] ** 2) + jnp.sum(w[2] ** 2)
        return jnp.mean(jnp.sum(jax.nn.softmax(scores) * cost, axis=1)) + DECAY * squares

    optimiser = optax.adam(1e-2)
    state = optimiser.init(weights)

    @jax.jit
    def update(w: Any, state: Any) -> Any:
        moves, state = optimiser.update(jax.grad(loss)(w), state)
        return optax.apply_updates(w, moves), state

    for _ in range(UPDATES):
        weights, state = update(weights, state)
    return Hypernetwork(mean, scale, *(np.asarray(w, np.float64) for w in weights))


def evaluate(s: np.ndarray, nll: np.ndarray, inside: np.ndarray, systems: np.ndarray) -> None:
    """Print scores of fixed factors and of the network, trained on other systems."""

    def at(values: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """Interpolate between factors."""
        place = np.interp(np.log(factor), np.log(FACTORS), np.arange(len(FACTORS)))
        low = np.minimum(place.astype(int), len(FACTORS) - 2)
        part = (place - low).reshape(-1, *[1] * (values.ndim - 2))
        rows = np.arange(len(values))
        return (1 - part) * values[rows, low] + part * values[rows, low + 1]

    factor = np.empty(len(s))
    for fold in range(FOLDS):
        out = systems % FOLDS == fold
        network = train(s[~out], nll[~out])
        factor[out] = [network(each) for each in s[out]]
    for name, value in [*((f"{f:g}", np.full(len(s), f)) for f in FACTORS), ("network", factor)]:
        got = at(nll, value)
        cover = np.round(at(inside, value).mean(axis=0), 3)
        print(f"factor {name:8s} NLL {got.mean():.3f} +- {got.std() / len(got) ** 0.5:.3f}  coverage {cover}")
    gain = at(nll, np.ones(len(s))) - at(nll, factor)
    print(f"network over 1: {gain.mean():.3f} +- {gain.std() / len(gain) ** 0.5:.3f} nats, {len(s)} recordings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=int, default=200)
    parser.add_argument("--corpus", type=Path, help="Where the generated systems are kept.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="Score nothing.")
    options = parser.parse_args()
    found = collect(options.corpus, 0 if options.show else options.recordings, options.seed)
    s, nll, inside, systems = examples(found)
    evaluate(s, nll, inside, systems)


if __name__ == "__main__":
    main()
