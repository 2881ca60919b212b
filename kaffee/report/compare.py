"""Runs beside each other: their numbers in one table, their curves in one plot."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kaffee.data.validation import quoted
from kaffee.errors import CheckpointError, ConfigError
from kaffee.records import read_json
from kaffee.report.deciding import decided_by
from kaffee.report.interactive.calibration import coverage, estimates
from kaffee.report.interactive.marks import Band, Bars, Curve, Mark, Points
from kaffee.report.interactive.plot import Axis, Panel, Plot
from kaffee.report.interactive.styles import CYCLE
from kaffee.report.page import Report, Section
from kaffee.tables import Table

SHARED = ("truth", "data", "history", "ideal", "expected", "observation")
"""Names of what does not belong to a run: shown once."""


@dataclass(frozen=True)
class Metric:
    """A number of every run.

    Attributes:
        values: One for each run; None where there is none.
        best: "low", "high", or the value to be near to; None: none is better than another.
        error: Standard error of a difference. Runs whose difference is below two of them are alike.
    """

    name: str
    values: Sequence[float | None]
    best: str | float | None = "low"
    error: float = 0.0

    def winner(self) -> int | None:
        """Which run is better than all others that have the number, if one is.

        >>> Metric("nll", [0.5, 0.4]).winner(), Metric("cover 90", [0.89, 0.8], best=0.9).winner()
        (1, 0)
        >>> Metric("nll", [0.5, 0.4], error=0.1).winner() is None
        True
        """
        if self.best is None:
            return None
        ranked = sorted((self._badness(value), i) for i, value in enumerate(self.values))
        if len(ranked) < 2 or not math.isfinite(ranked[1][0]):
            return None
        return ranked[0][1] if ranked[1][0] - ranked[0][0] > 2 * self.error else None

    def _badness(self, value: float | None) -> float:
        if value is None or math.isnan(value):
            return math.inf
        if self.best in ("low", "high"):
            return value if self.best == "low" else -value
        if isinstance(self.best, str):
            raise ConfigError(f"The best of '{self.name}' is '{self.best}'. Allowed: low, high or a number.")
        return abs(value - float(self.best or 0.0))


def side_by_side(title: str, runs: Sequence[str], metrics: Sequence[Metric], *, note: str = "") -> Table:
    """Runs as columns, metrics as rows, and the better run of each by name: a mark that every format can show."""
    rows: list[list[Any]] = []
    for metric in metrics:
        if len(metric.values) != len(runs):
            raise ConfigError(
                f"'{metric.name}' has {len(metric.values)} values for {len(runs)} runs; give one for each."
            )
        winner = metric.winner()
        rows.append([metric.name, *metric.values, "–" if winner is None else runs[winner]])
    return Table(title, ("metric", *runs, "better"), rows, note=note)


def overlay(plots: Mapping[str, Plot], *, title: str | None = None, shared: Sequence[str] = SHARED) -> Plot:
    """The same plot of several runs in one: a colour for each run, and what all of them share drawn once.

    Args:
        plots: By name of the run; panels that not all of them have are left out.
        title: None: that of the first.
        shared: Names of marks that are the same in all runs.
    """
    if not plots:
        raise ConfigError("There is no plot to lay over another. Give the plots of two runs.")
    first = next(iter(plots.values()))
    panels = {run: panels_of(plot) for run, plot in plots.items()}
    keys = common_panels(plots)
    if not keys:
        raise ConfigError(f"The plots '{first.title}' of {', '.join(plots)} have no panel in common.")
    merged = {key: _merged({run: found[key] for run, found in panels.items()}, shared) for key in keys}
    if isinstance(first.panels, Mapping):
        return replace(first, title=title or first.title, panels=merged)
    return replace(first, title=title or first.title, panels=merged[""].marks)


def common_panels(plots: Mapping[str, Plot]) -> list[Any]:
    """The names of the panels that all plots have, in the order of the first."""
    first, *others = map(panels_of, plots.values())
    return [key for key in first if all(key in found for found in others)]


def panels_of(plot: Plot) -> dict[Any, Panel]:
    """The panels of a plot by name; one that has no name is called ""."""
    found = plot.panels if isinstance(plot.panels, Mapping) else {"": plot.panels}
    return {key: panel if isinstance(panel, Panel) else Panel(panel) for key, panel in found.items()}


def _merged(panels: Mapping[str, Panel], shared: Sequence[str]) -> Panel:
    marks: list[Mark] = []
    for i, (run, panel) in enumerate(panels.items()):
        for mark in panel.marks:
            if mark.name in shared or not isinstance(mark, Curve | Band | Points | Bars):
                if mark.name not in [other.name for other in marks]:
                    marks.append(mark)
                continue
            changes: dict[str, Any] = {"name": f"{run}: {mark.name}", "colour": CYCLE[i % len(CYCLE)]}
            if isinstance(mark, Curve):
                # Runs must also differ without their colours.
                changes["dash"] = None
            marks.append(replace(mark, **changes))
    return replace(next(iter(panels.values())), marks=marks)


# Certificates of several runs beside each other, from the files that `kaffee fit` and `kaffee report` leave.


Stored = Mapping[str, Any]

# (name, where it stands in the file, what is better)
METRICS: tuple[tuple[str, tuple[Any, ...], str | float | None], ...] = (
    ("nll, one step", ("scores", "methods", "surrogate", 0, "nll_standard"), "low"),
    ("nll, longest horizon", ("scores", "methods", "surrogate", -1, "nll_standard"), "low"),
    ("crps, longest horizon", ("scores", "methods", "surrogate", -1, "crps_standard"), "low"),
    ("rmse, longest horizon", ("scores", "methods", "surrogate", -1, "rmse_standard"), "low"),
    ("gain over baseline, one step", ("scores", "skill", 0, "gain"), "high"),
    ("nis", ("residuals", "nis"), 1.0),
    ("coverage of 90 % bands", ("residuals", "coverage", "0.9"), 0.9),
    ("largest autocorrelation", ("residuals", "whiteness", "largest"), "low"),
    ("tangent proxy, within", ("tangents", "within"), "high"),
    ("d_stsp of the core", ("agreement", "core", "typical", "d_stsp"), "low"),
    ("d_h of the core", ("agreement", "core", "typical", "d_h"), "low"),
    ("d_stsp with noise", ("agreement", "stochastic", "typical", "d_stsp"), "low"),
    ("d_h with noise", ("agreement", "stochastic", "typical", "d_h"), "low"),
    ("lambda_1", ("agreement", "exponents", "values", 0), None),
    ("diverged runs of the core", ("agreement", "core", "diverged"), "low"),
    ("trapped runs of the core", ("agreement", "core", "trapped"), "low"),
)


def read_certificate(run: Path) -> Stored:
    """What a run stored of its certificate."""
    if not (run / "certificate.json").exists():
        raise CheckpointError(f"{run} has no certificate yet. First: kaffee report {run}")
    found = read_json(run / "certificate.json", "certificate")
    if not isinstance(found.get("verdicts"), list) or not isinstance(found.get("about"), dict):
        raise CheckpointError(f"{run}/certificate.json is incomplete or was edited. Again: kaffee report {run}")
    return found


def _at(stored: Any, path: tuple[Any, ...]) -> Any:
    """A value deep inside; None where something on the way is not there."""
    for key in path:
        try:
            stored = stored[key]
        except (KeyError, IndexError, TypeError):
            return None
    return stored


def _number(stored: Stored, path: tuple[Any, ...]) -> float | None:
    value = _at(stored, path)
    return float(value) if isinstance(value, int | float) else None


def comparison_table(certificates: Mapping[str, Stored]) -> Table:
    """All numbers side by side, with the name of the better run."""
    metrics = [
        Metric(name, [_number(stored, path) for stored in certificates.values()], best) for name, path, best in METRICS
    ]
    known = [metric for metric in metrics if any(value is not None for value in metric.values)]
    return side_by_side("Runs on their held-out data", list(certificates), known, note=_caution(certificates))


def _caution(certificates: Mapping[str, Stored]) -> str:
    """Why numbers of these runs may differ although the runs do not."""
    notes = [f"{run}: {text}" for run, stored in certificates.items() if (text := _at(stored, ("about", "warning")))]
    columns = {run: _at(stored, ("about", "columns")) or [] for run, stored in certificates.items()}
    if len(set(map(frozenset, columns.values()))) > 1:
        notes.append(f"The runs have different columns ({_by_run(columns)}): their numbers are about different things.")
    elif len({_at(stored, ("about", "test", "fingerprint")) for stored in certificates.values()}) > 1:
        notes.append("The held-out data differ between runs: differences may be theirs.")
    return " ".join(notes)


def verdicts_table(certificates: Mapping[str, Stored]) -> Table:
    """The verdict of every check for every run."""
    names = [str(verdict["name"]) for verdict in next(iter(certificates.values()))["verdicts"]]
    found = {run: {v.get("name"): v.get("status") for v in stored["verdicts"]} for run, stored in certificates.items()}
    rows = [[name, *(statuses.get(name) or "–" for statuses in found.values())] for name in names]
    return Table("Verdicts", ("check", *certificates), rows)


def decided_table(certificates: Mapping[str, Stored]) -> Table:
    """What decided the verdict of every check for every run."""
    names = [str(verdict["name"]) for verdict in next(iter(certificates.values()))["verdicts"]]
    found = {run: {v.get("name"): decided_by(v) for v in stored["verdicts"]} for run, stored in certificates.items()}
    rows = [[name, *(decided.get(name, "–") for decided in found.values())] for name in names]
    return Table("Decided by", ("check", *certificates), rows)


def compared_page(certificates: Mapping[str, Stored]) -> Report:
    """The page: verdicts, numbers, and the figures that say more when they lie over each other."""
    figures, left_out = [], ""
    for figure in (_coverage, _scores, _spectra):
        plots = {run: plot for run, stored in certificates.items() if (plot := figure(stored)) is not None}
        if len(plots) > 1:
            figures += [overlay(plots)] if common_panels(plots) else []
            left_out = f"{left_out} {_left_out(plots)}".strip()
    figures += _exponents(certificates)
    return Report(
        f"kaffee compare: {', '.join(certificates)}",
        [
            Section("Verdicts", tables=[verdicts_table(certificates), decided_table(certificates)]),
            Section("Numbers", tables=[comparison_table(certificates)]),
            *([Section("Figures", left_out, interactive=figures)] if figures or left_out else []),
        ],
        subtitle="Each run on its own held-out data.",
        provenance={run: _at(stored, ("about", "test", "fingerprint")) for run, stored in certificates.items()},
    )


def _left_out(plots: Mapping[str, Plot]) -> str:
    """Which panels of a plot not all runs have, as a sentence; empty if all have all."""
    shown = common_panels(plots)
    missing = {run: [str(key) for key in panels_of(plot) if key not in shown] for run, plot in plots.items()}
    if not any(missing.values()):
        return ""
    title = next(iter(plots.values())).title
    which = _by_run({run: names for run, names in missing.items() if names})
    if shown:
        return f"'{title}' shows common columns only, without {which}."
    return f"'{title}' is left out, since no column is in all runs ({which})."


def _by_run(names: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{run}: {quoted(found)}" for run, found in names.items())


def _coverage(stored: Stored) -> Plot | None:
    levels, curve = _at(stored, ("residuals", "curve_levels")), _at(stored, ("residuals", "curve"))
    if not levels or not curve:
        return None
    title, caption = "Coverage of one-step bands", "On the diagonal if bands hold what they say."
    return coverage(title, caption, levels, {"all coordinates": {"readings": curve}}, choice="coordinates")


def _scores(stored: Stored) -> Plot | None:
    horizons, found = _at(stored, ("scores", "horizons")), _at(stored, ("scores", "methods", "surrogate"))
    if not horizons or not found:
        return None
    marks = [Curve("surrogate", horizons, [score["nll_standard"] for score in found])]
    x = Axis("horizon", "steps", log=len(horizons) > 2)
    return Plot("NLL by horizon", "Standardised units, lower is better.", {"NLL": marks}, x, Axis("NLL"), ("score",))


def _spectra(stored: Stored) -> Plot | None:
    frequencies, spectra = _at(stored, ("agreement", "frequencies")), _at(stored, ("agreement", "spectra"))
    columns = _at(stored, ("agreement", "shown"))
    if not frequencies or not spectra or not columns:
        return None
    panels = {
        name: [Curve(run, frequencies[1:], [row[j] for row in power[1:]]) for run, power in spectra.items()]
        for j, name in enumerate(columns)
    }
    x, y = Axis("frequency", "per unit of time", log=True), Axis("power", log=True)
    return Plot("Power spectra", "Of the held-out data and of free runs.", panels, x, y, ("coordinate",))


def _exponents(certificates: Mapping[str, Stored]) -> list[Plot]:
    read: Callable[[str], dict[str, Any]] = lambda name: {  # noqa: E731
        run: found for run, stored in certificates.items() if (found := _at(stored, ("agreement", "exponents", name)))
    }
    values, errors = read("values"), read("errors")
    if len(values) < 2 or set(values) != set(errors):
        return []
    count = min(map(len, values.values()))
    ranks = [str(i) for i in range(1, count + 1)]
    return [
        estimates(
            "Lyapunov exponents of the cores",
            "Two standard errors.",
            ranks,
            {run: found[:count] for run, found in values.items()},
            {run: [2.0 * (e or 0.0) for e in found[:count]] for run, found in errors.items()},
            x="rank",
            y=Axis("exponent", "per unit of time"),
        )
    ]
