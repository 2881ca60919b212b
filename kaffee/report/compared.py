"""Certificates of several runs beside each other, from the files that `kaffee fit` and `kaffee report` leave."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kaffee.data.validate import quoted
from kaffee.errors import CheckpointError
from kaffee.report.comparison import Metric, common_panels, overlay, panels_of, side_by_side
from kaffee.report.deciding import decided_by
from kaffee.report.html import Report, Section
from kaffee.report.interactive import Axis, Curve, Plot, coverage, estimates
from kaffee.store import read_json
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
