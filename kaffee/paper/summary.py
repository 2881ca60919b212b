"""From cells to a table: medians, standard errors, the paper beside them, a verdict for each number."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaffee.paper.cells import ResultStore
from kaffee.tables import Table

JSON_FIELDS = ("median", "se", "n", "diverged", "missing", "paper", "paper_se")
LARGER_IS_BETTER = {"g_tan"}
# Numbers of runs, which are added up over seeds.
OF_SEEDS = ("returns", "at_rest", "gap")
COUNTED = ("diverged_core", "diverged_stoch", *OF_SEEDS)


def median_with_error(values: list[float]) -> tuple[float, float]:
    """The median and its robust standard error 0.929 IQR / sqrt(n) (appendix C.4).

    >>> [round(x, 3) for x in median_with_error([1.0, 2.0, 3.0, 4.0, 5.0])]
    [3.0, 0.831]
    """
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float(middle), float(0.929 * (high - low) / np.sqrt(len(values)))


@dataclass(frozen=True)
class Summary:
    """One number of a table, over seeds.

    Attributes:
        n: Finite seeds that entered.
        reference_se: Standard error of the reference that the number is measured against, where that is an estimate.
        diverged: Seeds whose run diverged, so that the number does not exist.
        count: Of the metrics in COUNTED the sum over seeds.
        missing: Other finished seeds without the number, where some have it: a filter that broke, say.
    """

    median: float | None
    se: float | None
    n: int
    diverged: int
    paper: float | None
    paper_se: float | None
    reference_se: float = 0.0
    count: int | None = None
    missing: int = 0

    def verdict(self, metric: str) -> str:
        """'agrees' within two combined standard errors, else 'better' or 'worse'; empty without a paper number.

        The true entropy h is itself estimated, by us and by the paper from 1e5 steps each: for |dh| its error enters
        twice. (Where all cores have collapsed, |dh| is that estimate and nothing else.)
        """
        if self.paper is None or self.median is None:
            return ""
        difference = self.median - self.paper
        combined = math.hypot(self.se or 0.0, self.paper_se or 0.0, 2**0.5 * self.reference_se)
        if abs(difference) <= 2.0 * combined:
            return "agrees"
        better = difference > 0 if metric in LARGER_IS_BETTER else difference < 0
        return "better" if better else "worse"


def summarise(
    store: ResultStore, metrics: tuple[str, ...] | None = None, system: str | None = None
) -> dict[str, dict[str, Summary]]:
    """Every row and metric over the finished cells, of all systems together, or of one without the paper."""
    recipe, result = store.recipe, {}
    for row in recipe.rows:
        records = [store.read(cell) for cell in store.cells_of(row.name, system)]
        done = [record for record in records if record is not None and record.get("error") is None]
        result[row.name] = {
            metric: _summary(metric, done, row.paper.get(metric) if system is None else None)
            for metric in metrics or recipe.metrics
        }
    return result


def _value(record: dict[str, Any], metric: str) -> float | None:
    return record[metric] if metric in record else (record.get("extra") or {}).get(metric)


def _summary(metric: str, records: list[dict[str, Any]], paper: tuple[float, float] | None) -> Summary:
    values = [float(value) for record in records if (value := _value(record, metric)) is not None]
    kind = "stoch" if metric.endswith("_stoch") else "core" if metric.endswith("_core") else None
    diverged, count = 0, None
    if metric in COUNTED:
        count = int(sum(values)) if values else None
        diverged = count or 0 if metric.startswith("diverged_") else 0
    elif kind is not None:
        diverged = sum(_diverged(record, kind) for record in records)
    median, se = median_with_error(values) if values else (None, None)
    errors = [_value(record, "h_reference_error") or 0.0 for record in records] if metric.startswith("dh_") else []
    expected, expected_se = paper or (None, None)
    gone = [record for record in records if _value(record, metric) is None]
    explained = sum(_diverged(record, kind) for record in gone) if kind is not None else 0
    missing = len(gone) - explained if values else 0
    reference_se = max(errors, default=0.0)
    return Summary(median, se, len(values), diverged, expected, expected_se, reference_se, count, missing)


def _diverged(record: dict[str, Any], kind: str) -> bool:
    return bool((record.get("extra") or {}).get(f"diverged_at_{kind}"))


def to_json(summaries: dict[str, dict[str, Summary]]) -> dict[str, Any]:
    """`{"rows": {row: {metric: fields}}}`: those of JSON_FIELDS, and "count" where one is."""

    def fields(summary: Summary) -> dict[str, Any]:
        found = {name: getattr(summary, name) for name in JSON_FIELDS}
        return found if summary.count is None else {**found, "count": summary.count}

    return {"rows": {row: {m: fields(s) for m, s in metrics.items()} for row, metrics in summaries.items()}}


def to_table(store: ResultStore, summaries: dict[str, dict[str, Summary]], *, against_paper: bool) -> Table:
    """Medians ± standard errors; with the paper's numbers and verdicts below each row if wanted."""
    recipe = store.recipe
    rows: list[list[Any]] = []
    for row in recipe.rows:
        if row.name not in summaries:
            continue
        found = summaries[row.name]
        count = max((s.n for s in found.values()), default=0)
        rows.append([row.name, count, *[_cell(m, s) for m, s in found.items()]])
        if against_paper and row.paper:
            rows.append(["  paper", None, *[_paper(s) for s in found.values()]])
            rows.append(["  verdict", None, *[s.verdict(m) for m, s in found.items()]])
    note = "Median ± robust standard error of the median over seeds; (k) after a number: k seeds diverged."
    note += _note_on_missing(s for found in summaries.values() for s in found.values())
    metrics = next(iter(summaries.values()), recipe.metrics)
    return Table(recipe.title, ("row", "n", *metrics), rows, note=note)


def system_tables(
    store: ResultStore,
    systems: tuple[str, ...],
    metrics: tuple[str, ...] | None = None,
    rows: tuple[str, ...] | None = None,
) -> list[Table]:
    """One table for each metric: systems down, rows across."""
    names = rows or tuple(row.name for row in store.recipe.rows)
    found = {system: summarise(store, metrics, system) for system in systems}
    note = "Median ± robust standard error over seeds; (k) after a number: k seeds diverged."
    return [
        Table(
            f"{store.recipe.title}: {metric} by system",
            (metric, *names),
            [
                [system, *[_cell(metric, summaries[row][metric]) for row in names]]
                for system, summaries in found.items()
            ],
            note=note + _note_on_missing(summaries[row][metric] for summaries in found.values() for row in names),
        )
        for metric in metrics or store.recipe.metrics
    ]


def _note_on_missing(summaries: Iterable[Summary]) -> str:
    """What [k] means, where it is used."""
    return " [k]: k cells without the number are left out." if any(s.missing for s in summaries) else ""


def _cell(metric: str, summary: Summary) -> str:
    missing = f" [{summary.missing}]" if summary.missing else ""
    if summary.count is not None:
        return (f"{summary.count} of {summary.n}" if metric in OF_SEEDS else str(summary.count)) + missing
    if summary.median is None:
        return "–" if not summary.diverged else f"({summary.diverged})"
    mark = (f" ({summary.diverged})" if summary.diverged else "") + missing
    return f"{summary.median:.3f}±{summary.se:.3f}{mark}"


def _paper(summary: Summary) -> str:
    return "–" if summary.paper is None else f"{summary.paper:.3f}±{summary.paper_se:.3f}"


def agreement(store: ResultStore, summaries: dict[str, dict[str, Summary]], *, reproduces: bool = True) -> Counter[str]:
    """How many numbers agree with the paper, are better, are worse; over its own rows, or over those beyond it."""
    return Counter(
        verdict
        for row, metrics in summaries.items()
        if store.recipe.row(row).reproduces == reproduces
        for metric, summary in metrics.items()
        if (verdict := summary.verdict(metric))
    )


def agreement_lines(store: ResultStore, summaries: dict[str, dict[str, Summary]]) -> list[str]:
    """The counts in words, for the paper's rows and for those beyond it that are shown."""
    lines = []
    for reproduces, title in ((True, "the paper's rows"), (False, "rows beyond the paper")):
        counts = agreement(store, summaries, reproduces=reproduces)
        if counts:
            words = ", ".join(f"{counts[word]} {word}" for word in ("agrees", "better", "worse"))
            lines.append(f"{words} ({title}, {counts.total()} numbers)")
    return lines
