"""Compare the certificates of several runs: one table of numbers, one page of overlaid figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kaffee.data.validation import quoted
from kaffee.errors import CheckpointError
from kaffee.metrics.scores import NLL_UNIT
from kaffee.records import read_json
from kaffee.report import figures
from kaffee.report.page import Picture, Report, Section, describe_decision
from kaffee.report.sections import arrange_spectra
from kaffee.tables import Table

Stored = Mapping[str, Any]

# (name, place in the file, what is better)
_METRICS: tuple[tuple[str, tuple[Any, ...], str | float | None], ...] = (
    ("nll, one step", ("residuals", "nll_standard"), "low"),
    ("marginal nll, longest horizon", ("scores", "methods", "surrogate", -1, "nll_standard"), "low"),
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


def _find_winner(values: Sequence[float | None], best: str | float | None) -> int | None:
    """Return which value is better than all others that are there, if one is.

    Args:
        best: "low", "high", or the value to be near to; None: none is better than another.
    """
    if best is None:
        return None

    def rate(value: float | None) -> float:
        if value is None or math.isnan(value):
            return math.inf
        return abs(value - best) if not isinstance(best, str) else value if best == "low" else -value

    ranked = sorted((rate(value), i) for i, value in enumerate(values))
    clear = len(ranked) > 1 and math.isfinite(ranked[1][0]) and ranked[1][0] > ranked[0][0]
    return ranked[0][1] if clear else None


def read_certificate(run: Path) -> Stored:
    """Read what a run stored of its certificate, also if an older version wrote it."""
    if not (run / "certificate.json").exists():
        raise CheckpointError(f"{run} has no certificate yet. First: kaffee report {run}")
    stored = read_json(run / "certificate.json", "certificate")
    if not isinstance(stored.get("verdicts"), list) or not isinstance(stored.get("about"), dict):
        raise CheckpointError(f"{run}/certificate.json is incomplete or was edited. Again: kaffee report {run}")
    return stored


def _look_up(stored: Any, *path: Any) -> Any:
    """Return a value deep inside; None where something on the way is not there."""
    for key in path:
        try:
            stored = stored[key]
        except (KeyError, IndexError, TypeError):
            return None
    return stored


def tabulate_comparison(certificates: Mapping[str, Stored]) -> Table:
    """Show all numbers side by side, with the name of the better run: a mark that every format can show."""
    rows: list[list[Any]] = []
    for name, path, best in _METRICS:
        raw = [_look_up(stored, *path) for stored in certificates.values()]
        values = [float(value) if isinstance(value, int | float) else None for value in raw]
        if any(value is not None for value in values):
            winner = _find_winner(values, best)
            rows.append([name, *values, "–" if winner is None else list(certificates)[winner]])
    columns = ("metric", *certificates, "better")
    return Table("Runs on their held-out data", columns, rows, note=_describe_differences(certificates))


def _describe_differences(certificates: Mapping[str, Stored]) -> str:
    """Say why numbers of these runs may differ although the runs do not."""
    about = {run: stored["about"] for run, stored in certificates.items()}
    notes = [f"{run}: {each['warning']}" for run, each in about.items() if each.get("warning")]
    columns = {run: each.get("columns") or [] for run, each in about.items()}
    if len(set(map(frozenset, columns.values()))) > 1:
        names = _join_names(columns)
        notes.append(f"The runs have different columns ({names}): their numbers are about different things.")
    elif len({_look_up(each, "test", "fingerprint") for each in about.values()}) > 1:
        notes.append("The held-out data differ between runs: differences may be theirs.")
    return " ".join(notes)


def _join_names(names: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{run}: {quoted(each)}" for run, each in names.items() if each)


def _tabulate_verdicts(certificates: Mapping[str, Stored], title: str, show: Callable[[Stored], str]) -> Table:
    """Show something about the verdict of every check for every run."""
    names = [str(verdict["name"]) for verdict in next(iter(certificates.values()))["verdicts"]]
    shown = [{v.get("name"): show(v) for v in stored["verdicts"]} for stored in certificates.values()]
    return Table(title, ("check", *certificates), [[name, *(each.get(name, "–") for each in shown)] for name in names])


def lay_out_comparison(certificates: Mapping[str, Stored]) -> Report:
    """Lay out the page: verdicts, numbers, and the figures that say more when they lie over each other."""
    pictures, left_out = _overlay_figures(certificates)
    verdicts = [
        _tabulate_verdicts(certificates, "Verdicts", lambda verdict: str(verdict.get("status") or "–")),
        _tabulate_verdicts(certificates, "Decided by", describe_decision),
    ]
    return Report(
        f"kaffee compare: {', '.join(certificates)}",
        [
            Section("Verdicts", tables=verdicts),
            Section("Numbers", tables=[tabulate_comparison(certificates)]),
            *([Section("Figures", left_out, pictures=pictures)] if pictures or left_out else []),
        ],
        subtitle="Each run on its own held-out data.",
        provenance={run: _look_up(stored, "about", "test", "fingerprint") for run, stored in certificates.items()},
    )


def _read_all(certificates: Mapping[str, Stored], path: Sequence[str], *keys: Sequence[str]) -> dict[str, Any]:
    """Return a part of each certificate that has it with all of these entries, if at least two do."""
    parts = {run: _look_up(stored, *path) for run, stored in certificates.items()}
    parts = {run: part for run, part in parts.items() if all(_look_up(part, *key) for key in keys)}
    return parts if len(parts) > 1 else {}


def _overlay_figures(certificates: Mapping[str, Stored]) -> tuple[list[Picture], str]:
    """Draw what at least two runs have, and say what is left out."""
    pictures, left_out = [], ""
    if parts := _read_all(certificates, ["residuals"], ["curve"], ["curve_levels"]):
        levels = next(iter(parts.values()))["curve_levels"]
        figure = figures.plot_coverage(levels, {run: part["curve"] for run, part in parts.items()})
        pictures.append(Picture("Coverage of one-step bands", "On the diagonal if bands hold what they say.", figure))
    if parts := _read_all(certificates, ["scores"], ["horizons"], ["methods", "surrogate"]):
        curves = {
            run: (part["horizons"], [score["nll_standard"] for score in part["methods"]["surrogate"]])
            for run, part in parts.items()
        }
        log_x = max(len(part["horizons"]) for part in parts.values()) > 2
        figure = figures.plot_curves({"": curves}, x="horizon (steps)", y="marginal NLL", log_x=log_x)
        pictures.append(Picture("Marginal NLL by horizon", f"In {NLL_UNIT}; lower is better.", figure))
    if parts := _read_all(certificates, ["agreement"], ["frequencies"], ["spectra"], ["shown"]):
        spectra, left_out = _overlay_spectra(parts)
        pictures += spectra
    if parts := _read_all(certificates, ["agreement", "exponents"], ["values"], ["errors"]):
        count = min(len(part["values"]) for part in parts.values())
        exponents = {
            run: (part["values"][:count], [error or 0.0 for error in part["errors"][:count]])
            for run, part in parts.items()
        }
        figure = figures.plot_exponents(exponents)
        pictures.append(Picture("Lyapunov exponents of the cores", "Bars are two standard errors.", figure))
    return pictures, left_out


def _overlay_spectra(parts: Mapping[str, Any]) -> tuple[list[Picture], str]:
    """Draw the spectra of the columns that all runs have, and name those that not all have."""
    columns = {run: part["shown"] for run, part in parts.items()}
    common = [name for name in next(iter(columns.values())) if all(name in each for each in columns.values())]
    which = _join_names({run: [name for name in each if name not in common] for run, each in columns.items()})
    if not common:
        return [], f"'Power spectra' is left out, since no column is in all runs ({which})."
    curves: dict[str, dict[str, tuple[Any, Any]]] = {name: {} for name in common}
    for run, part in parts.items():
        own = arrange_spectra(part["frequencies"], part["spectra"], part["shown"])
        for column in common:
            for name, curve in own[column].items():
                # What does not belong to a run is shown once.
                curves[column].setdefault(name if name in ("data", "truth") else f"{run}: {name}", curve)
    figure = figures.plot_curves(curves, x="frequency (per unit of time)", y="power", log_x=True, log_y=True)
    text = f"'Power spectra' shows common columns only, without {which}." if which else ""
    return [Picture("Power spectra", "Of the held-out data and of free runs.", figure)], text
