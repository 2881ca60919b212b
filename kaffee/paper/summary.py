"""Summarise cells: medians with standard errors, the paper's numbers and a verdict beside them; settings of a grid."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kaffee.errors import KaffeeError
from kaffee.paper.cells import ResultStore
from kaffee.paper.recipe import CellSettings, Row
from kaffee.tables import Table

LARGER_IS_BETTER = {"g_tan"}
# Numbers of runs, which are added up over seeds.
_DIVERGED, _OF_SEEDS = ("diverged_core", "diverged_stoch"), ("returns", "at_rest", "gap")
_JSON_FIELDS = ("median", "se", "n", "diverged", "missing", "paper", "paper_se")
_CRITERION = "d_stsp_train"


def median_with_error(values: list[float]) -> tuple[float, float]:
    """Compute the median and its robust standard error 0.929 IQR / sqrt(n) (appendix C.4).

    >>> [round(x, 3) for x in median_with_error([1.0, 2.0, 3.0, 4.0, 5.0])]
    [3.0, 0.831]
    """
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float(middle), float(0.929 * (high - low) / np.sqrt(len(values)))


def judge(difference: float, errors: Iterable[float], *, larger_is_better: bool) -> str:
    """Call a difference 'better' or 'worse' if it exceeds two combined standard errors, else 'same'.

    >>> judge(0.3, (0.1, 0.1), larger_is_better=False), judge(0.2, (0.1, 0.1), larger_is_better=False)
    ('worse', 'same')
    """
    if abs(difference) <= 2.0 * math.hypot(*errors):
        return "same"
    return "better" if (difference > 0) == larger_is_better else "worse"


def find_entry(record: dict[str, Any], metric: str, *path: str) -> Any:
    """Look up a metric of a record, also among its extra ones, or an entry deeper in it; None if it has none."""
    if not path and metric not in record:
        path, metric = (metric,), "extra"
    value: Any = record.get(metric)
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


@dataclass(frozen=True)
class _Summary:
    """One number of a table, over `n` seeds.

    Attributes:
        reference_se: Standard error of the reference that the number is measured against, where that is an estimate.
        diverged: Seeds whose run diverged, so that the number does not exist.
        count: The sum over seeds, for numbers of runs.
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
        """Compare with the paper: 'agrees' within two combined standard errors, else 'better' or 'worse', or ''.

        The true entropy h is itself estimated, by us and by the paper from 1e5 steps each: for |dh| its error enters
        twice. (Where all cores have collapsed, |dh| is that estimate and nothing else.)
        """
        if self.paper is None or self.median is None:
            return ""
        errors = (self.se or 0.0, self.paper_se or 0.0, 2**0.5 * self.reference_se)
        word = judge(self.median - self.paper, errors, larger_is_better=metric in LARGER_IS_BETTER)
        return "agrees" if word == "same" else word


Summaries = dict[str, dict[str, _Summary]]


def summarise(store: ResultStore, metrics: tuple[str, ...] | None = None, system: str | None = None) -> Summaries:
    """Summarise every row and metric over the finished cells, of all systems, or of one without the paper."""
    summaries = {}
    for row in store.recipe.rows:
        records = store.read_finished(row.name, system)
        summaries[row.name] = {
            metric: _summarise_one(metric, records, row.paper.get(metric) if system is None else None)
            for metric in metrics or store.recipe.metrics
        }
    return summaries


def _summarise_one(metric: str, records: list[dict[str, Any]], paper: tuple[float, float] | None) -> _Summary:
    values = [float(value) for record in records if (value := find_entry(record, metric)) is not None]
    kind = next((kind for kind in ("stoch", "core") if metric.endswith(f"_{kind}")), None)

    def count_diverged(some: list[dict[str, Any]]) -> int:
        return 0 if kind is None else sum(bool(find_entry(record, "extra", f"diverged_at_{kind}")) for record in some)

    count = int(sum(values)) if values and metric in _DIVERGED + _OF_SEEDS else None
    diverged = 0 if metric in _OF_SEEDS else count_diverged(records)
    if metric in _DIVERGED:
        diverged = count or 0
    errors = [find_entry(record, "h_reference_error") or 0.0 for record in records] if metric.startswith("dh_") else []
    without = [record for record in records if find_entry(record, metric) is None]
    missing = len(without) - count_diverged(without) if values else 0
    median, se = median_with_error(values) if values else (None, None)
    paper_value, paper_se = paper or (None, None)
    reference_se = max(errors, default=0.0)
    return _Summary(median, se, len(values), diverged, paper_value, paper_se, reference_se, count, missing)


def to_json(summaries: Summaries) -> dict[str, Any]:
    """Convert to `{"rows": {row: {metric: fields}}}`, with "count" where there is one."""

    def fields(summary: _Summary) -> dict[str, Any]:
        names = _JSON_FIELDS if summary.count is None else (*_JSON_FIELDS, "count")
        return {name: getattr(summary, name) for name in names}

    return {"rows": {row: {m: fields(s) for m, s in metrics.items()} for row, metrics in summaries.items()}}


def to_table(store: ResultStore, summaries: Summaries, *, against_paper: bool) -> Table:
    """Set medians ± standard errors in a table; with the paper's numbers and verdicts below each row if wanted."""
    rows: list[list[Any]] = []
    for row in store.recipe.rows:
        if row.name not in summaries:
            continue
        numbers = summaries[row.name]
        count = max((s.n for s in numbers.values()), default=0)
        rows.append([row.name, count, *[_format(m, s) for m, s in numbers.items()]])
        if against_paper and row.paper:
            paper = ["–" if s.paper is None else f"{s.paper:.3f}±{s.paper_se:.3f}" for s in numbers.values()]
            rows.append(["  paper", None, *paper])
            rows.append(["  verdict", None, *[s.verdict(m) for m, s in numbers.items()]])
    note = "Median ± robust standard error of the median over seeds; (k) after a number: k seeds diverged."
    note += _note_on_missing(s for numbers in summaries.values() for s in numbers.values())
    metrics = next(iter(summaries.values()), store.recipe.metrics)
    return Table(store.recipe.title, ("row", "n", *metrics), rows, note=note)


def system_tables(
    store: ResultStore, systems: tuple[str, ...], metrics: tuple[str, ...] | None = None, rows: list[str] | None = None
) -> list[Table]:
    """Make one table for each metric: systems down, rows across."""
    names = rows or [row.name for row in store.recipe.rows]
    by_system = {system: summarise(store, metrics, system) for system in systems}
    tables = []
    for metric in metrics or store.recipe.metrics:
        numbers = {system: [summaries[row][metric] for row in names] for system, summaries in by_system.items()}
        note = "Median ± robust standard error over seeds; (k) after a number: k seeds diverged."
        note += _note_on_missing(s for line in numbers.values() for s in line)
        lines = [[system, *[_format(metric, s) for s in line]] for system, line in numbers.items()]
        tables.append(Table(f"{store.recipe.title}: {metric} by system", (metric, *names), lines, note=note))
    return tables


def _note_on_missing(summaries: Iterable[_Summary]) -> str:
    return " [k]: k cells without the number are left out." if any(s.missing for s in summaries) else ""


def _format(metric: str, summary: _Summary) -> str:
    missing = f" [{summary.missing}]" if summary.missing else ""
    if summary.count is not None:
        return (f"{summary.count} of {summary.n}" if metric in _OF_SEEDS else str(summary.count)) + missing
    if summary.median is None:
        return "–" if not summary.diverged else f"({summary.diverged})"
    mark = (f" ({summary.diverged})" if summary.diverged else "") + missing
    return f"{summary.median:.3f}±{summary.se:.3f}{mark}"


def _count_verdicts(store: ResultStore, summaries: Summaries, *, reproduces: bool = True) -> Counter[str]:
    """Count how many numbers agree, are better, are worse; over the paper's own rows, or over those beyond it."""
    rows = [metrics for row, metrics in summaries.items() if store.recipe.row(row).reproduces == reproduces]
    verdicts = (summary.verdict(metric) for metrics in rows for metric, summary in metrics.items())
    return Counter(verdict for verdict in verdicts if verdict)


def describe_verdicts(store: ResultStore, summaries: Summaries) -> list[str]:
    """Write the counts in words, for the paper's rows and for those beyond it that are shown."""
    lines = []
    for reproduces, title in ((True, "the paper's rows"), (False, "rows beyond the paper")):
        counts = _count_verdicts(store, summaries, reproduces=reproduces)
        if counts:
            words = ", ".join(f"{counts[word]} {word}" for word in ("agrees", "better", "worse"))
            lines.append(f"{words} ({title}, {counts.total()} numbers)")
    return lines


class _GridPoint(NamedTuple):
    """A candidate of a grid search: its criterion, the mean excess over the best one's with its standard error."""

    row: str
    value: float
    excess: float
    error: float
    chosen: bool


def _choose_settings(store: ResultStore) -> dict[str, list[_GridPoint]]:
    """Choose a candidate for every method: of those within one standard error of the best, the closest to the paper's.

    The error is that of the paired difference over seeds. A candidate that diverged on a seed is out.
    """
    groups: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for row in store.recipe.rows:
        records = [store.read(cell) or {} for cell in store.row_cells(row.name)]
        values = [record.get(_CRITERION) for record in records]
        groups[row.method][row.name] = [math.inf if value is None else float(value) for value in values]
    return {method: _choose_one(store, candidates) for method, candidates in groups.items()}


def _choose_one(store: ResultStore, candidates: dict[str, list[float]]) -> list[_GridPoint]:
    finite = {row: values for row, values in candidates.items() if np.isfinite(values).all()}
    if not finite:
        raise KaffeeError(f"No finished candidate among {', '.join(candidates)}. First: kaffee bench run")
    best = min(finite, key=lambda row: float(np.mean(finite[row])))
    rated = []
    for row, values in finite.items():
        difference = np.subtract(values, finite[best])
        error = float(difference.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
        rated.append(_GridPoint(row, float(np.mean(values)), float(difference.mean()), error, False))

    def preference(point: _GridPoint) -> tuple[float, float]:
        return round(_distance_from_default(store.recipe.row(point.row)), 6), point.value

    winner = min((point for point in rated if point.excess <= point.error), key=preference)
    return [point._replace(chosen=point is winner) for point in rated]


def _distance_from_default(row: Row) -> float:
    """Sum |log ratio| of the learning rates of core and shell to the paper's."""
    ours, paper = row.settings.adaptation.optimiser, CellSettings().adaptation.optimiser
    shell = ours.shell_learning_rate or ours.learning_rate
    return sum(abs(math.log(rate / paper.learning_rate)) for rate in (ours.learning_rate, shell))


def choice_table(store: ResultStore) -> Table:
    """Set all candidates with their criterion in a table, the chosen ones marked."""
    points = [point for candidates in _choose_settings(store).values() for point in candidates]
    rows = [[p.row, p.value, p.excess, p.error, "chosen" if p.chosen else ""] for p in points]
    note = "Of those within one standard error of the best, the one closest to the paper's settings is chosen."
    return Table(store.recipe.title, ("candidate", _CRITERION, "above best", "±", ""), rows, note=note)
