"""The corpus of discovered systems that trains the in-context core: no named system is in it.

    python -m benchmarks.corpus [--seed 0] [--chaotic 200] [--other 100] [--cache corpus.npz] [--show] [--sheet PNG]

Chaotic flows are found by search (sparse quadratic, cubic and forced ones in 3 to 6 dimensions), by mutation of those
and as skew products; the others are limit cycles, tori, damped spirals, noisy linear oscillators and smooth maps. Every
flow was bounded over 1e5 steps and kept its lambda_1 at a second step size (`benchmarks.discovery`). A seed decides
everything, so nothing needs to be stored; `path` keeps a copy because training asks often. Recordings are drawn from
the systems by `benchmarks.draws`. For validation use another seed: mutations are relatives of flows of their own seed.
"""

import argparse
import io
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from benchmarks import families
from benchmarks.discovery import (
    CHAOTIC,
    LONG,
    NUM_STATES,
    REGULAR,
    Candidates,
    System,
    as_candidates,
    explore,
    monomials,
    verify,
)
from kaffee.records import write_atomically, write_json
from kaffee.tables import Table

CHAOTIC_KINDS = {"quadratic": 0.3, "cubic": 0.15, "forced": 0.15, "mutation": 0.25, "driven": 0.15}
OTHER_KINDS = {"cycle": 0.25, "torus": 0.2, "spiral": 0.2, "oscillator": 0.2, "map": 0.15}
"""Kinds and their shares of chaotic flows and of the other systems."""
RESTING = ("spiral", "oscillator")
DIMENSIONS = {
    "quadratic": {3: 0.55, 4: 0.25, 5: 0.1, 6: 0.1},
    "cubic": {3: 0.6, 4: 0.4},
    "forced": {4: 0.35, 3: 0.25, 5: 0.2, 6: 0.2},
    "mutation": {3: 0.55, 4: 0.25, 5: 0.1, 6: 0.1},
    "driven": {4: 0.6, 5: 0.4},
    "cycle": {3: 0.4, 2: 0.25, 4: 0.2, 5: 0.15},
    "torus": {4: 0.3, 5: 0.7},
    "spiral": {2: 0.5, 4: 0.5},
    "oscillator": {2: 0.5, 4: 0.5},
    "map": {2: 0.3, 3: 0.4, 4: 0.3},
}
SPARE = 1.4
"""Candidates that are verified per system that is wanted."""
VERSION = 1
"""Of the generator: a cached corpus of another one is generated again."""

_Key = TypeVar("_Key")
Draw = Callable[[np.random.Generator, int, int], np.ndarray]
Pool = dict[tuple[int, bool], list[tuple[Candidates, list[str]]]]

SEARCHED: dict[str, tuple[Draw, int]] = {
    "quadratic": (lambda rng, count, d: families.sparse_flows(rng, count, d, cubic=False), 3_000),
    "cubic": (lambda rng, count, d: families.sparse_flows(rng, count, d, cubic=True), 1_000),
    "forced": (families.forced_flows, 300),
    "cycle": (lambda rng, count, d: (families.cycles if d < 4 else families.forced_flows)(rng, count, d), 150),
    "torus": (families.tori, 50),
    "map": (families.smooth_maps, 200),
}
"""How candidates are drawn, and how many at a time."""


def generate(
    seed: int = 0,
    num_chaotic: int = 200,
    num_other: int = 100,
    *,
    path: Path | None = None,
    long: int = LONG,
    rejected: Counter[str] | None = None,
) -> list[System]:
    """Generate systems, those of a kind together, or read them from `path` if it has these very ones.

    long:     steps over which boundedness is checked and exponents are measured.
    rejected: counts candidates that were rejected, by reason; nothing is counted if the systems are read.
    """
    request = {"version": VERSION, "seed": seed, "num_chaotic": num_chaotic, "num_other": num_other, "long": long}
    if path is not None and path.exists() and (stored := _read(path, request)) is not None:
        return stored
    rejected = Counter() if rejected is None else rejected
    wanted = _split(num_chaotic, CHAOTIC_KINDS) | _split(num_other, OTHER_KINDS)
    found: dict[str, list[System]] = {kind: [] for kind in wanted}
    parents: dict[int, list[Candidates]] = defaultdict(list)
    for attempt in range(10):
        missing = {kind: count - len(found[kind]) for kind, count in wanted.items() if count > len(found[kind])}
        if not missing:
            break
        rng = np.random.default_rng([seed, attempt])
        for system in _verify_all(_propose(rng, missing, parents, rejected, min(4_000, long)), rejected, long):
            found[system.kind].append(system)
    rng = np.random.default_rng([seed, 1_000])
    systems = [_complete(system, rng) for kind, count in wanted.items() for system in _pick(found[kind], count)]
    if path is not None:
        _write(path, systems, request)
    return systems


def _split(total: int, shares: Mapping[_Key, float], least: int = 1) -> dict[_Key, int]:
    """Divide a number by shares; each gets at least `least` if there is anything, and the first what is left."""
    counts = {key: max(least, int(total * share)) if total else 0 for key, share in shares.items()}
    counts[next(iter(shares))] += max(0, total - sum(counts.values()))
    return counts


def _pick(systems: list[System], count: int) -> list[System]:
    """Take systems evenly from a list that is sorted by dimension."""
    return (
        [systems[i] for i in np.linspace(0, len(systems) - 1, count).astype(int)] if len(systems) > count else systems
    )


def _complete(system: System, rng: np.random.Generator) -> System:
    """Give what comes to rest random starts, and oscillators the noise that keeps their coordinates at sd 1."""
    if system.kind not in RESTING:
        return system
    states, scale = rng.normal(size=(NUM_STATES, system.dimension)), np.ones(system.dimension)
    rate = -system.coefficients[0, 1]
    noise = np.sqrt(2 * rate * system.period) if system.kind == "oscillator" else 0.0
    return replace(system, states=states, scale=scale, process=float(noise))


def _propose(
    rng: np.random.Generator,
    missing: dict[str, int],
    parents: dict[int, list[Candidates]],
    rejected: Counter[str],
    steps: int,
) -> Pool:
    """Find candidates of every missing kind, by dimension and whether they are maps; new flows join the parents."""
    pool: Pool = defaultdict(list)
    for kind, count in missing.items():
        for d, target in _split(max(count + 2, int(np.ceil(SPARE * count))), DIMENSIONS[kind], least=0).items():
            if not target:
                continue
            if kind in RESTING:
                decay, strength = ((3.0, 30.0), 0.3) if kind == "spiral" else ((0.5, 10.0), 0.0)
                flows, period, _ = families.spirals(rng, target, d, decay, strength)
                start = as_candidates(flows, rng.normal(size=(d, target)))
                candidates = replace(start, period=period, step=period / 200)
            else:
                # There are more quadratic flows than mutations, and they come first: no dimension is without parents.
                known = _join(parents[3 if kind == "driven" else d]) if kind in ("mutation", "driven") else None
                candidates = _search(rng, kind, d, target, known, rejected, steps)
            if kind in ("quadratic", "cubic", "forced"):
                parents[d].append(candidates)
            pool[d, kind == "map"].append((candidates, [kind] * len(candidates)))
    return pool


def _search(
    rng: np.random.Generator,
    kind: str,
    dimension: int,
    target: int,
    parents: Candidates | None,
    rejected: Counter[str],
    steps: int,
) -> Candidates:
    """Explore candidates until enough are chaotic, or for cycles and tori regular."""
    found: list[Candidates] = []
    while sum(map(len, found)) < target:
        drawn = _draw_candidates(rng, kind, dimension, parents)
        start = 0.5 * rng.normal(size=(dimension, len(drawn)))
        moving = explore(as_candidates(drawn, start, is_map=kind == "map"), rejected, steps)
        growth = moving.exponent * moving.period
        if kind in ("cycle", "torus"):
            keep, reason = np.abs(growth) < REGULAR, "not regular"
        else:
            # A map of a large exponent is noise to whoever sees its rows.
            keep, reason = (growth > CHAOTIC) & (growth < (0.4 if kind == "map" else 2.0)), "not chaotic"
        rejected[reason] += int((~keep).sum())
        found.append(moving[keep])
    return _join(found)[np.arange(target)]


def _draw_candidates(rng: np.random.Generator, kind: str, dimension: int, parents: Candidates | None) -> np.ndarray:
    """Draw as many candidates of a kind as its yield asks for."""
    if parents is None:
        draw, size = SEARCHED[kind]
        return draw(rng, size, dimension)
    chosen = parents[rng.integers(len(parents), size=60)]
    if kind == "mutation":
        return families.mutations(rng, chosen.coefficients)
    # One state is no standard deviation, but of its order, and the strengths are random anyway.
    return families.driven_flows(rng, chosen.coefficients, np.maximum(np.abs(chosen.x.T), 0.5), dimension)


def _join(parts: Sequence[Candidates]) -> Candidates:
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("coefficients", "step")}
    measured = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("period", "exponent")}
    x = np.concatenate([part.x for part in parts], axis=1)
    return Candidates(x=x, is_map=parts[0].is_map, **joined, **measured)


def _verify_all(pool: Pool, rejected: Counter[str], long: int) -> list[System]:
    systems = []
    for _, parts in sorted(pool.items()):
        kinds = [kind for _, names in parts for kind in names]
        candidates = _join([part for part, _ in parts])
        systems += verify(candidates, kinds, rejected, chaotic=[*CHAOTIC_KINDS, "map"], resting=RESTING, long=long)
    return systems


def _write(path: Path, systems: list[System], request: dict[str, int]) -> None:
    """Store systems in an npz without pickled objects; arrays of different shapes are flat, one after another."""
    arrays: dict[str, np.ndarray] = {"request": np.array(json.dumps(request))}
    arrays["dimension"] = np.array([system.dimension for system in systems])
    for field in fields(System):
        values = [np.asarray(getattr(system, field.name)).ravel() for system in systems]
        arrays[field.name] = np.concatenate(values)
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    write_atomically(path, stream.getvalue())


def _read(path: Path, request: dict[str, int]) -> list[System] | None:
    """Read systems, or return None if the file has others."""
    with np.load(path, allow_pickle=False) as stored:
        if json.loads(str(stored["request"])) != request:
            return None
        arrays = dict(stored)
    shapes: dict[str, Callable[[int], tuple[int, ...]]] = {
        "coefficients": lambda d: (d, len(monomials(d))),
        "states": lambda d: (NUM_STATES, d),
        "scale": lambda d: (d,),
    }
    ends = dict.fromkeys(shapes, 0)
    systems = []
    for i, d in enumerate(arrays["dimension"]):
        values = {field.name: arrays[field.name][i].item() for field in fields(System) if field.name not in shapes}
        for name, shape in shapes.items():
            size = int(np.prod(shape(d)))
            values[name] = arrays[name][ends[name] : ends[name] + size].reshape(shape(d))
            ends[name] += size
        systems.append(System(**values))
    return systems


def summarise(systems: list[System]) -> list[dict[str, object]]:
    """Count the systems of every kind, with dimensions and quantiles of lambda_1 per period."""
    rows = []
    for kind in (*CHAOTIC_KINDS, *OTHER_KINDS):
        chosen = [system for system in systems if system.kind == kind]
        if not chosen:
            continue
        low, middle, high = np.quantile([system.exponent * system.period for system in chosen], (0.1, 0.5, 0.9))
        sizes = Counter(system.dimension for system in chosen)
        rows.append(
            {
                "kind": kind,
                "systems": len(chosen),
                "dimensions": ", ".join(f"{d}: {sizes[d]}" for d in sorted(sizes)),
                "lambda_1 T, 10 %": low,
                "50 %": middle,
                "90 %": high,
            }
        )
    return rows


def draw_sheet(systems: list[System], path: Path, count: int = 24) -> None:
    """Draw two coordinates of systems of all kinds, a sheet of small pictures."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    from benchmarks.draws import simulate

    chosen = [systems[i] for i in np.linspace(0, len(systems) - 1, count).astype(int)]
    figure, axes = plt.subplots(4, (count + 3) // 4, figsize=(2 * ((count + 3) // 4), 8.4))
    intervals = [1.0 if system.is_map else system.period / 30 for system in chosen]
    paths = simulate(chosen, [system.states[0] for system in chosen], intervals, [2_000] * len(chosen))
    for system, x, axis in zip(chosen, paths, axes.flat, strict=False):
        axis.plot(x[:, 0], x[:, 1], "." if system.is_map else "-", ms=1, lw=0.4, color="C0")
        label = f"{system.kind}, D = {system.dimension}\n$\\lambda_1$ T = {system.exponent * system.period:.2f}"
        axis.set_title(label, fontsize=7)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate the corpus and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chaotic", type=int, default=200, help="chaotic flows")
    parser.add_argument("--other", type=int, default=100, help="cycles, tori, spirals, noisy oscillators, maps")
    parser.add_argument("--long", type=int, default=LONG, help="steps of the check")
    parser.add_argument("--cache", type=Path, help="npz file that is read if it has this corpus, else written")
    parser.add_argument("--show", action="store_true", help="print tables")
    parser.add_argument("--sheet", type=Path, help="PNG with 24 attractors")
    parser.add_argument("--summary", type=Path, help="JSON with the tables")
    options = parser.parse_args(arguments)
    rejected: Counter[str] = Counter()
    began = time.perf_counter()
    systems = generate(
        options.seed, options.chaotic, options.other, path=options.cache, long=options.long, rejected=rejected
    )
    seconds = time.perf_counter() - began
    rows = summarise(systems)
    if options.show:
        console = Console()
        title = f"{len(systems)} systems, seed {options.seed}, {seconds:.0f} s"
        console.print(Table(title, list(rows[0]), [list(row.values()) for row in rows], note="T is the period."))
        console.print(Table("Rejected candidates", ["reason", "candidates"], rejected.most_common()))
    if options.summary:
        write_json(
            options.summary, {"seed": options.seed, "seconds": seconds, "kinds": rows, "rejected": dict(rejected)}
        )
    if options.sheet:
        draw_sheet(systems, options.sheet)


if __name__ == "__main__":
    main()
