"""Compare the certificates of several runs: one table of numbers, one page of overlaid figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kaffee.data.validation import quoted
from kaffee.errors import CheckpointError
from kaffee.records import read_json
from kaffee.report import figures
from kaffee.report.page import Picture, Report, Section, decided_by
from kaffee.report.sections import spectra_curves
from kaffee.tables import Table

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


def _find_winner(values: Sequence[float | None], best: str | float | None) -> int | None:
    """Return which value is better than all others that are there, if one is.

    Args:
        best: "low", "high", or the value to be near to; None: none is better than another.

    >>> _find_winner([0.5, 0.4], "low"), _find_winner([0.89, 0.8], 0.9), _find_winner([None, 1.0], "low")
    (1, 0, None)
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


def _at(stored: Any, path: tuple[Any, ...]) -> Any:
    """Return a value deep inside; None where something on the way is not there."""
    for key in path:
        try:
            stored = stored[key]
        except (KeyError, IndexError, TypeError):
            return None
    return stored


def comparison_table(certificates: Mapping[str, Stored]) -> Table:
    """Show all numbers side by side, with the name of the better run: a mark that every format can show."""
    rows: list[list[Any]] = []
    for name, path, best in METRICS:
        raw = [_at(stored, path) for stored in certificates.values()]
        values = [float(value) if isinstance(value, int | float) else None for value in raw]
        if any(value is not None for value in values):
            winner = _find_winner(values, best)
            rows.append([name, *values, "–" if winner is None else list(certificates)[winner]])
    columns = ("metric", *certificates, "better")
    return Table("Runs on their held-out data", columns, rows, note=_caution(certificates))


def _caution(certificates: Mapping[str, Stored]) -> str:
    """Say why numbers of these runs may differ although the runs do not."""
    notes = [f"{run}: {text}" for run, stored in certificates.items() if (text := _at(stored, ("about", "warning")))]
    columns = {run: _at(stored, ("about", "columns")) or [] for run, stored in certificates.items()}
    if len(set(map(frozenset, columns.values()))) > 1:
        notes.append(f"The runs have different columns ({_by_run(columns)}): their numbers are about different things.")
    elif len({_at(stored, ("about", "test", "fingerprint")) for stored in certificates.values()}) > 1:
        notes.append("The held-out data differ between runs: differences may be theirs.")
    return " ".join(notes)


def _by_run(names: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{run}: {quoted(each)}" for run, each in names.items())


def _verdicts_table(
    certificates: Mapping[str, Stored], title: str = "Verdicts", show: Callable[[Stored], str] | None = None
) -> Table:
    """Show the verdict of every check for every run, or something else about it."""
    show = show or (lambda verdict: str(verdict.get("status") or "–"))
    names = [str(verdict["name"]) for verdict in next(iter(certificates.values()))["verdicts"]]
    found = {run: {v.get("name"): show(v) for v in stored["verdicts"]} for run, stored in certificates.items()}
    return Table(
        title, ("check", *certificates), [[name, *(v.get(name, "–") for v in found.values())] for name in names]
    )


def _decided_table(certificates: Mapping[str, Stored]) -> Table:
    """Show what decided the verdict of every check for every run."""
    return _verdicts_table(certificates, "Decided by", decided_by)


def compared_page(certificates: Mapping[str, Stored]) -> Report:
    """Lay out the page: verdicts, numbers, and the figures that say more when they lie over each other."""
    spectra, left_out = _spectra(certificates)
    pictures = [*_coverage(certificates), *_scores(certificates), *spectra, *_exponents(certificates)]
    return Report(
        f"kaffee compare: {', '.join(certificates)}",
        [
            Section("Verdicts", tables=[_verdicts_table(certificates), _decided_table(certificates)]),
            Section("Numbers", tables=[comparison_table(certificates)]),
            *([Section("Figures", left_out, pictures=pictures)] if pictures or left_out else []),
        ],
        subtitle="Each run on its own held-out data.",
        provenance={run: _at(stored, ("about", "test", "fingerprint")) for run, stored in certificates.items()},
    )


def _read_all(certificates: Mapping[str, Stored], *path: Any) -> dict[str, Any]:
    """Return a part of each certificate that has it, if at least two do."""
    parts = {run: part for run, stored in certificates.items() if (part := _at(stored, path))}
    return parts if len(parts) > 1 else {}


def _coverage(certificates: Mapping[str, Stored]) -> list[Picture]:
    parts = _read_all(certificates, "residuals")
    curves = {run: part["curve"] for run, part in parts.items() if part.get("curve") and part.get("curve_levels")}
    if len(curves) < 2:
        return []
    figure = figures.plot_coverage(parts[next(iter(curves))]["curve_levels"], curves)
    return [Picture("Coverage of one-step bands", "On the diagonal if bands hold what they say.", figure)]


def _scores(certificates: Mapping[str, Stored]) -> list[Picture]:
    curves = {}
    for run, part in _read_all(certificates, "scores").items():
        own = _at(part, ("methods", "surrogate"))
        if own and part.get("horizons"):
            curves[run] = (part["horizons"], [score["nll_standard"] for score in own])
    if len(curves) < 2:
        return []
    log_x = max(len(horizons) for horizons, _ in curves.values()) > 2
    figure = figures.plot_curves({"": curves}, x="horizon (steps)", y="NLL", log_x=log_x)
    return [Picture("NLL by horizon", "Standardised units, lower is better.", figure)]


def _spectra(certificates: Mapping[str, Stored]) -> tuple[list[Picture], str]:
    """Overlay the spectra of the columns that all runs have, and name those that not all have."""
    parts = {
        run: part
        for run, part in _read_all(certificates, "agreement").items()
        if all(part.get(key) for key in ("frequencies", "spectra", "shown"))
    }
    if len(parts) < 2:
        return [], ""
    columns = {run: part["shown"] for run, part in parts.items()}
    common = [name for name in next(iter(columns.values())) if all(name in each for each in columns.values())]
    others = {run: [name for name in each if name not in common] for run, each in columns.items()}
    which = _by_run({run: names for run, names in others.items() if names})
    text = f"'Power spectra' shows common columns only, without {which}." if which else ""
    if not common:
        return [], f"'Power spectra' is left out, since no column is in all runs ({which})."
    curves: dict[str, dict[str, tuple[Any, Any]]] = {name: {} for name in common}
    for run, part in parts.items():
        for column, each in spectra_curves(part["frequencies"], part["spectra"], part["shown"]).items():
            for name, curve in each.items() if column in common else ():
                # What does not belong to a run is shown once.
                shared = name in ("data", "truth")
                if not shared or name not in curves[column]:
                    curves[column][name if shared else f"{run}: {name}"] = curve
    figure = figures.plot_curves(curves, x="frequency (per unit of time)", y="power", log_x=True, log_y=True)
    return [Picture("Power spectra", "Of the held-out data and of free runs.", figure)], text


def _exponents(certificates: Mapping[str, Stored]) -> list[Picture]:
    found = {
        run: (part["values"], [error or 0.0 for error in part["errors"]])
        for run, part in _read_all(certificates, "agreement", "exponents").items()
        if part.get("values") and part.get("errors")
    }
    if len(found) < 2:
        return []
    count = min(len(values) for values, _ in found.values())
    figure = figures.plot_exponents({run: (values[:count], errors[:count]) for run, (values, errors) in found.items()})
    return [Picture("Lyapunov exponents of the cores", "Bars are two standard errors.", figure)]
