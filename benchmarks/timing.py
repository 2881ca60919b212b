"""Interleaved timing: all contestants take turns, so that a slow minute of the machine hits them alike."""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def first_call(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a first call and its seconds, compilation included."""
    begin = time.perf_counter()
    result = run()
    return result, time.perf_counter() - begin


def interleaved(
    contestants: Mapping[str, Callable[[], Any]], repeats: int, *, warm_up: int = 2
) -> dict[str, np.ndarray]:
    """Seconds of `repeats` calls of each contestant, in turns; each call must wait for its own result.

    The order alternates between rounds, so that none always runs after the same neighbour. The pause lets the
    spinning threads of the neighbour's library come to rest.
    """
    for run in contestants.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    gc.disable()
    try:
        for turn in range(repeats):
            names = list(contestants) if turn % 2 == 0 else list(reversed(contestants))
            for name in names:
                time.sleep(0.01)
                begin = time.perf_counter()
                contestants[name]()
                seconds[name].append(time.perf_counter() - begin)
    finally:
        gc.enable()
    return {name: np.array(values) for name, values in seconds.items()}


def summary(seconds: np.ndarray, per_call: int = 1) -> dict[str, float]:
    """Median, least, quartiles in seconds; divided by `per_call` units of work."""
    low, median, high = np.quantile(seconds / per_call, [0.25, 0.5, 0.75])
    least = seconds.min() / per_call
    return {"median": _round(median), "min": _round(least), "q25": _round(low), "q75": _round(high)}


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def compared(
    other: np.ndarray | None, own: np.ndarray, target: float | None = None, *, at_most: bool = False
) -> dict[str, Any] | None:
    """How many times longer `other` takes than `own`, from medians and from the pairs of each round.

    Args:
        target: What the ratio should reach, or with `at_most` stay below.
    """
    if other is None:
        return None
    ratio = float(np.median(other) / np.median(own))
    entry: dict[str, Any] = {"ratio": _round(ratio), "ratio_of_least": _round(other.min() / own.min())}
    if len(other) == len(own):
        entry["paired"] = _round(float(np.median(other / own)))
    if target is not None:
        entry |= {"target": target, "met": ratio <= target if at_most else ratio >= target}
    return entry
