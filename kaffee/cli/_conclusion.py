"""Conclude a run: certify it on held-out data, keep the certificate, and draw its report."""

import hashlib
import json as json_module
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from kaffee.certification.certificate import Certificate, Losses
    from kaffee.certification.groups import GroupedCertificate
    from kaffee.certification.stability import Candidate
    from kaffee.fitting.run import Loaded, Run
    from kaffee.fitting.settings import FitSettings
    from kaffee.fitting.stages import Fit, Stage

# An absolute path, as it is or behind an option.
_PATH = re.compile(r"(-\w|[-\w.]+=)??((?:[A-Za-z]:)?[/\\].*)?|.*", re.DOTALL)
_MAX_LOSSES = 500
"""Points of a loss curve."""


class Conclusion(NamedTuple):
    """A certificate, the folder with its page, and the stages it is about if they were loaded."""

    certificate: "Certificate"
    output: Path
    stages: "tuple[Stage, ...]" = ()


def conclude(
    output: Path,
    result: "Fit",
    loaded: "Loaded",
    *,
    title: str,
    quiet: bool,
    doubt: str = "",
    refits: "list[Candidate] | None" = None,
) -> Conclusion:
    """Certify a fit, draw its report and store the certificate.

    Args:
        doubt: Warning if test rows also occur in the training data; empty otherwise.
        refits: The fits with other seeds, if there are any, and this one among them.
    """
    from rich.console import Console

    from kaffee.certification.certificate import Certificate, certify
    from kaffee.fitting.config import to_toml
    from kaffee.fitting.ladder import describe_rungs
    from kaffee.report.sections import tabulate_results, tabulate_verdicts

    console = Console(stderr=True)

    def watch(stage: str) -> None:
        if not quiet:
            console.print(f"Certifying: {stage} ...", markup=False)

    if doubt:
        console.print(f"warning: {doubt}", style="yellow", markup=False, soft_wrap=True)
    prior, fitted = result.prior.reconstruction, result.fitted.reconstruction
    linear = None if result.linear is None else result.linear.reconstruction
    # The linear model was not made of the prior, and what was kept as it was is the prior.
    made_of = None if fitted.provenance.get("rungs", {}).get("chosen") in ("linear", "incontext") else prior
    known: dict[str, Any] = {"prior": made_of, "linear": linear, "truth": loaded.truth, "refits": refits or ()}
    certificate = certify(fitted, result.train, result.test, watch=watch, **known)
    origin, rungs = fitted.provenance, fitted.provenance.get("rungs")
    certificate = replace(
        certificate,
        about={**certificate.about, **({"warning": doubt} if doubt else {})},
        training=(
            _thin_losses("Pretraining", "squared error", result.prior),
            _thin_losses(f"Adaptation ({result.settings.method})", "NLL on training windows", result.fitted),
        ),
        page={
            "title": title,
            "summary": f"Pretraining: {result.prior.report}. Adaptation: {result.fitted.report}.",
            **({} if rungs is None else {"rungs": {**rungs, "sentence": describe_rungs(rungs)}}),
            "settings": to_toml(_without_places(result.settings)),
            "true_lambda_1": None if loaded.truth is None else loaded.truth.lambda_1,
            "provenance": {
                "command": shlex.join(["kaffee", *map(_without_place, sys.argv[1:])]),
                "seed": origin["seed"],
                "data": origin["fingerprint"],
                "held-out data": certificate.about["test"]["fingerprint"],
                **origin["versions"],
            },
        },
    )
    # As a reader of the stored certificate sees it, so that drawing it again gives the same page.
    certificate = Certificate.from_dict(certificate.to_dict(), certificate.arrays())
    draw(output, certificate)
    tables = [table.to_record() for table in (tabulate_results(certificate), tabulate_verdicts(certificate))]
    # Written last: whoever finds it may take everything else for done.
    certificate.save(output, {"made_of": _trace_origin(output), "tables": tables})
    return Conclusion(certificate, output, (result.prior, result.fitted))


def conclude_groups(run: "Run", result: "Fit", *, quiet: bool) -> "GroupedCertificate":
    """Conclude every group in its own folder group-NAME of the run, and write what they say together to groups.json."""
    from kaffee.certification.groups import GroupedCertificate
    from kaffee.records import write_json

    model, certificates, entries = result.fitted.reconstruction, {}, {}
    for name in model.groups:
        if name not in result.test.group_names:
            continue
        own = result.group(name)
        place = run.path / f"group-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
        done = conclude(place, own, run.loaded, title=f"{run.title}: {name}", quiet=quiet)
        certificates[name] = done.certificate
        entries[name] = int(sum(mask.sum() for mask in own.test.mask))
    missing = tuple(name for name in model.groups if name not in certificates)
    made = GroupedCertificate(certificates, model.method, entries, missing)
    write_json(run.path / "groups.json", made.to_dict())
    return made


def show_groups(made: "GroupedCertificate", *, json: bool) -> None:
    """Print a row for each group and one for all, or JSON."""
    from rich.console import Console

    from kaffee.certification.certificate import AXES
    from kaffee.tables import Table

    if json:
        typer.echo(json_module.dumps(made.to_dict(), indent=2))
        return
    whole = made.to_dict()
    names = ("nll", "coverage_90", "d_stsp_core", "d_h_core")
    rows = [
        [name, *(values[key] for key in names), *values["axes"].values()]
        for name, values in (*whole["groups"].items(), ("all", whole["overall"]))
    ]
    Console().print(Table("Groups", ["group", "nll", "coverage 90 %", "d_stsp", "d_h", *AXES.values()], rows))
    if made.missing:
        typer.echo(f"Without held-out rows, and not judged: {', '.join(made.missing)}")
    typer.echo("Reports: report.html in the folder group-NAME of each group")


def _without_place(argument: str) -> str:
    """Cut an absolute path down to the name of the file: a page tells nothing about the machine.

    >>> _without_place("/home/me/data.csv"), _without_place("--config=/home/me/my.toml"), _without_place("--seed")
    ('data.csv', '--config=my.toml', '--seed')
    """
    option, path = _PATH.fullmatch(argument).groups()  # type: ignore[union-attr]
    return argument if not path else (option or "") + (PureWindowsPath(path).name or path)


def _without_places(settings: "FitSettings") -> "FitSettings":
    core, foundation = settings.core, settings.foundation
    if core.start is not None:
        settings = replace(settings, core=replace(core, start=_without_place(core.start)))
    if foundation is not None:
        settings = replace(settings, foundation=replace(foundation, model=_without_place(foundation.model)))
    return settings


def _thin_losses(stage: str, loss: str, done: "Stage") -> "Losses":
    """Average the losses of neighbouring updates so that at most `_MAX_LOSSES` remain."""
    import numpy as np

    from kaffee.certification.certificate import Losses

    blocks = np.array_split(np.asarray(done.losses, np.float64), min(_MAX_LOSSES, max(len(done.losses), 1)))
    ends = np.cumsum([len(block) for block in blocks])
    finite = [block[np.isfinite(block)] for block in blocks]
    values = np.array([block.mean() if len(block) else np.nan for block in finite])
    return Losses(stage, loss, ends, values)


def draw(output: Path, certificate: "Certificate") -> None:
    """Write the page, its still figures and the checks to a folder."""
    from kaffee.records import jsonable, write_atomically, write_json
    from kaffee.report.sections import lay_out_certificate
    from kaffee.report.stills import draw_stills
    from kaffee.report.style import encode_png

    write_json(output / "checks.json", jsonable(certificate.checks))
    for name, figure in draw_stills(certificate).items():
        write_atomically(output / f"{name}.png", encode_png(figure))
    write_atomically(output / "report.html", lay_out_certificate(certificate).to_html().encode())


def load_conclusion(run: "Run") -> Conclusion | None:
    """Return what a finished run concluded, if this version did so from the models and data that are there."""
    from kaffee.certification.certificate import Certificate

    if not (run.path / "report.html").exists() or explain_staleness(run.path):
        return None
    prior, fitted = (run.finished(name) for name in ("prior", run.settings.method))
    if prior is None or fitted is None:
        return None
    return Conclusion(Certificate.load(run.path)[0], run.path, (prior, fitted))


def explain_staleness(run: Path) -> str:
    """Say why the stored certificate of a run cannot be drawn; empty if it can."""
    from kaffee.certification.certificate import Certificate
    from kaffee.errors import CheckpointError

    if not (run / "certificate.json").exists():
        return "there is no certificate yet"
    try:
        origin = Certificate.load(run)[1].get("made_of", {})
        changed = [key for key, value in _trace_origin(run).items() if value != origin.get(key)]
    except CheckpointError:
        return "the stored certificate is damaged or another version wrote it"
    return f"the stored certificate is about other {' and '.join(changed)}" if changed else ""


def _trace_origin(run: Path) -> dict[str, Any]:
    """Return what decides a certificate: version, models, data and the user's code; from files, nothing is loaded."""
    from kaffee import __version__
    from kaffee.fitting.initial_core import is_own
    from kaffee.fitting.run import Run
    from kaffee.records import read_json

    if not (run / "run.json").exists():
        run = run.parent  # the folder on-NAME of a run
    folder = Run(run)
    start = folder.settings.core.start
    own = Path(start.rpartition(":")[0]).read_bytes() if start is not None and is_own(start) else b""
    stages = ("prior", folder.settings.method)
    refits = sorted(run.glob(f"refits/seed-*/{stages[1]}/model.json"))
    return {
        "kaffee": __version__,
        "models": [read_json(run / name / "model.json", "model").get("sha256") for name in stages],
        "data": folder.record["data"]["fingerprint"],
        "core": hashlib.sha256(own).hexdigest(),
        **({"refits": [read_json(path, "model").get("sha256") for path in refits]} if refits else {}),
    }


def show(conclusion: Conclusion, *, json: bool) -> None:
    """Print the tables, why checks did not pass and the name of the page, or JSON."""
    from rich.console import Console

    from kaffee.certification.remedies import suggest_remedies
    from kaffee.records import jsonable
    from kaffee.report.page import list_reasons
    from kaffee.report.sections import tabulate_refits, tabulate_results, tabulate_rungs, tabulate_verdicts

    certificate = conclusion.certificate
    rungs, refits = certificate.page.get("rungs"), certificate.refits
    if json:
        whole = certificate.to_dict()
        values = {**jsonable(certificate.checks), **{name: whole[name] for name in ("axes", "purpose", "drift")}}
        values |= {"rungs": rungs} if rungs else {}
        values |= {"refits": whole["refits"]} if refits is not None else {}
        values |= {"inputs": whole["inputs"]} if certificate.inputs is not None else {}
        typer.echo(json_module.dumps(values, indent=2))
        return
    if rungs:
        typer.echo(rungs["sentence"])
        Console().print(tabulate_rungs(rungs))
    if refits is not None:
        Console().print(tabulate_refits(refits))
    for table in (tabulate_results(certificate), tabulate_verdicts(certificate)):
        Console().print(table)
    for line in list_reasons(vars(verdict) for verdict in certificate.verdicts):
        typer.echo(line)
    for remedy in suggest_remedies(certificate):
        typer.echo(f"What to do: {remedy}")
    if certificate.drift is not None and certificate.drift.drifts:
        typer.echo(certificate.drift.sentence)
    if certificate.inputs is not None:
        typer.echo(certificate.inputs.describe())
    if certificate.purpose is not None:
        typer.echo(certificate.purpose.sentence)
    typer.echo(f"Report: {conclusion.output / 'report.html'}")
