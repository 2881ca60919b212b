"""Where the time of kaffee's EKF gradient goes: `python -m benchmarks.profile`.

Traces a few calls with JAX's profiler and sums the durations of the compiled operations by name.
"""

import argparse
import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax


def trace(run: Callable[[], Any], calls: int) -> list[dict[str, Any]]:
    """The profiler's events of compiled operations during some calls."""
    run()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                run()
        (path,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    # A loop contains its operations; counting both would count twice.
    named = [e for e in events if "hlo_op" in e.get("args", {})]
    return [e for e in named if not e["args"]["hlo_op"].startswith("while")]


def operation_times(run: Callable[[], Any], calls: int = 5) -> dict[str, float]:
    """Wall seconds per call of each operation; an instant with several at work is shared between them."""
    edges = []
    for event in trace(run, calls):
        name = event["args"]["hlo_op"]
        edges += [(event["ts"], 1, name), (event["ts"] + event["dur"], -1, name)]
    edges.sort()
    active: Counter[str] = Counter()
    microseconds: Counter[str] = Counter()
    before = 0.0
    for now, change, name in edges:
        at_work = active.total()
        for other, count in active.items():
            microseconds[other] += (now - before) * count / at_work
        active[name] += change
        active += Counter()  # drops those at zero
        before = now
    return {name: us * 1e-6 / calls for name, us in microseconds.most_common()}


def main() -> None:
    """Print the costliest operations of one gradient."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="adjoint", choices=["adjoint", "autodiff", "autodiff_dense"])
    parser.add_argument("--top", type=int, default=25)
    options = parser.parse_args()

    from rich.console import Console
    from rich.table import Table

    from benchmarks import ekf_kaffee
    from benchmarks.problem import Size, make_problem

    problem = make_problem(Size())
    compiled = ekf_kaffee.value_and_gradient(options.variant).lower(*ekf_kaffee.arguments(problem, options.variant))
    lines = compiled.compile().compiled.as_text().splitlines()
    shapes = {}
    for line in lines:
        left, _, right = line.strip().removeprefix("ROOT ").partition(" = ")
        if right:
            shapes[left.lstrip("%")] = right
    seconds = operation_times(ekf_kaffee.build(problem, options.variant))
    total = sum(seconds.values())
    table = Table(title=f"{options.variant}: {total:.4f} s of wall time in operations, per call")
    for column in ("share", "ms", "operation", "what"):
        table.add_column(column, no_wrap=True)
    for name, value in list(seconds.items())[: options.top]:
        table.add_row(f"{value / total:.1%}", f"{1e3 * value:.2f}", name, shapes.get(name, "")[:90])
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
