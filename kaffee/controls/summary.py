"""Cells of several seeds as the numbers that the controls are judged by."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

Cell = Mapping[str, Any]


class Interval(NamedTuple):
    """A mean over seeds with half the width of its 95 % confidence interval (Student's t)."""

    mean: float
    half_width: float


def confidence(values: Iterable[float]) -> Interval:
    """Mean and 95 % interval; the interval of a single value is not known.

    >>> interval = confidence([1.0, 2.0, 3.0])
    >>> round(interval.mean, 3), round(interval.half_width, 3)
    (2.0, 2.484)
    """
    array = np.array(list(values), np.float64)
    if len(array) < 2:
        return Interval(float(array.mean()), float("nan"))
    error = array.std(ddof=1) / np.sqrt(len(array))
    return Interval(float(array.mean()), float(student.ppf(0.975, len(array) - 1) * error))


def spiral_summary(cells: Iterable[Cell]) -> dict[str, dict[float, dict[str, Any]]]:
    """By objective and noise level: spectral radius and its absolute error, as means with intervals, and seeds."""
    groups: dict[tuple[str, float], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell["objective"], cell["noise"]].append(cell)
    summary: dict[str, dict[float, dict[str, Any]]] = defaultdict(dict)
    for (objective, noise), group in sorted(groups.items()):
        summary[objective][noise] = {
            "spectral_radius": confidence(cell["spectral_radius"] for cell in group),
            "radius_error": confidence(cell["radius_error"] for cell in group),
            "num_seeds": len(group),
        }
    return dict(summary)
