"""Choosing settings by a grid search on training data, with the one-standard-error rule."""

import math
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from kaffee.errors import KaffeeError
from kaffee.paper.cells import ResultStore
from kaffee.paper.recipe import CellSettings, Row
from kaffee.tables import Table

CRITERION = "d_stsp_train"


class Candidate(NamedTuple):
    """One point of a grid.

    Attributes:
        excess: Mean over seeds of its criterion minus that of the best candidate.
        error: Standard error of that difference.
        distance: From the default settings, in factors of e of the learning rates.
    """

    row: str
    value: float
    excess: float
    error: float
    distance: float
    chosen: bool


def distance_from_default(row: Row) -> float:
    """Sum of |log ratio| of the learning rates of core and shell to the paper's."""
    ours, paper = row.settings.adaptation.optimiser, CellSettings().adaptation.optimiser
    shell = ours.shell_learning_rate or ours.learning_rate
    return sum(abs(math.log(rate / paper.learning_rate)) for rate in (ours.learning_rate, shell))


def choose(store: ResultStore) -> dict[str, list[Candidate]]:
    """By method: all candidates, of which one is chosen.

    Of the candidates that are not worse than the best by more than one standard error of their paired difference over
    seeds, the one closest to the paper's settings. A candidate that diverged on a seed is out.
    """
    groups: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for row in store.recipe.rows:
        records = [store.read(cell) or {} for cell in store.cells_of(row.name)]
        values = [record.get(CRITERION) for record in records]
        groups[row.method][row.name] = [math.inf if value is None else float(value) for value in values]
    return {method: _choose_one(store, candidates) for method, candidates in groups.items()}


def _choose_one(store: ResultStore, candidates: dict[str, list[float]]) -> list[Candidate]:
    finite = {row: values for row, values in candidates.items() if np.isfinite(values).all()}
    if not finite:
        raise KaffeeError(f"No finished candidate among {', '.join(candidates)}. First: kaffee bench run")
    best = min(finite, key=lambda row: float(np.mean(finite[row])))
    rated = []
    for row, values in finite.items():
        difference = np.subtract(values, finite[best])
        error = float(difference.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
        distance = distance_from_default(store.recipe.row(row))
        rated.append(Candidate(row, float(np.mean(values)), float(difference.mean()), error, distance, False))
    good = [candidate for candidate in rated if candidate.excess <= candidate.error]
    winner = min(good, key=lambda candidate: (round(candidate.distance, 6), candidate.value))
    return [candidate._replace(chosen=candidate is winner) for candidate in rated]


def choice_table(store: ResultStore) -> Table:
    """All candidates with their criterion, the chosen ones marked."""
    rows: list[list[Any]] = [
        [c.row, c.value, c.excess, c.error, "chosen" if c.chosen else ""]
        for candidates in choose(store).values()
        for c in candidates
    ]
    note = "Of those within one standard error of the best, the one closest to the paper's settings is chosen."
    return Table(store.recipe.title, ("candidate", CRITERION, "above best", "±", ""), rows, note=note)
