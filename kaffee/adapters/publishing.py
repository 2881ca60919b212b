"""Fitted models for a model hub: a folder that its upload takes, with a card; and back from there.

    README.md                 card: front matter for the hub, what the model is, its certificate, how to use it
    config.json               sizes, columns, step, for people and for the hub's index
    model.json, *.safetensors the model as `kaffee.save` writes it, so that `kaffee.load(FOLDER)` reads it

Nothing here touches the network: `hf upload OWNER/NAME FOLDER` and `hf download OWNER/NAME` do.
"""

import re
from pathlib import Path
from typing import Any

from kaffee import __version__
from kaffee.certification.certificate import Certificate
from kaffee.checkpoint.reconstruction import Reconstruction, named_arrays, save
from kaffee.errors import CheckpointError, ConfigError
from kaffee.fitting.run import Run
from kaffee.foundation.hub import list_snapshots
from kaffee.inference.matching import model_columns
from kaffee.model.inputs import Driven
from kaffee.model.wrappers import CORE_TYPES, Confined
from kaffee.records import read_json, write_atomically, write_json

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_AXES = {1: "probabilistic, step by step", 2: "stochastic free run", 3: "deterministic core"}
# Cores that hold rows of the recording they were made of.
_IN_CONTEXT = ("kernel", "dynamix")
_LICENCE = "other"
_MEASURED = ("nll", "coverage_90", "d_stsp_core", "d_h_core")
_HELD_OUT = "On data that were held out from training."
_NO_CERTIFICATE = "None: the model was published without one (`kaffee report RUN` makes it before `kaffee publish`)."


def publish(
    path: str | Path,
    folder: str | Path,
    *,
    name: str | None = None,
    licence: str | None = None,
    core: Any = None,
) -> Path:
    """Write the model of a run, or of a model's folder, as a folder for a model hub; returns it.

    The certificate of the run goes to the card, of a run of groups that of each group and of all; without one the card
    says that there is none.

    Args:
        name: Title of the card; by default that of the folder.
        licence: Of the model, in the hub's words ("cc-by-4.0", "apache-2.0"); by default that of the foundation model
            it was adapted from, else "other".
        core: For a core of one's own class; see `kaffee.load`.
    """
    folder, run = Path(folder), Run.open(path, core=core)
    if folder.exists() and any(folder.iterdir()) and not (folder / "config.json").exists():
        raise ConfigError(f"{folder} is not empty and holds no published model. Choose another folder with -o.")
    model = run.model
    stored = model.provenance.get("licence")
    terms = licence or (str(stored).lower() if stored else _LICENCE)
    config = _describe(model)
    save(model, folder)
    write_json(folder / "config.json", config)
    certificate = _show_groups(run.path) if model.groups else _show_certificate(run.path)
    card = _write_card(name or folder.resolve().name, terms, model, config, certificate)
    write_atomically(folder / "README.md", card.encode())
    return folder


def pull(source: str | Path, *, core: Any = None) -> Reconstruction:
    """Load a published model from a folder, or, by OWNER/NAME, from the hub's cache on this machine.

    Args:
        core: For a core of one's own class; see `kaffee.load`.
    """
    places = [Path(source)]
    if not places[0].exists() and _REPOSITORY.fullmatch(str(source)):
        places = list_snapshots(str(source))
    for place in places:
        if (place / "model.json").exists():
            return Run.open(place, core=core).model
    raise CheckpointError(
        f"There is no published model of kaffee in {' or '.join(map(str, places))}. Fetch it first, as in: hf download "
        "OWNER/NAME, or hf download OWNER/NAME --local-dir FOLDER."
    )


def _describe(model: Reconstruction) -> dict[str, Any]:
    """Collect what the hub's index and people look for."""
    core = model.model.core
    confined = False
    while isinstance(core, Confined | Driven):
        confined |= isinstance(core, Confined)
        core = core.inner
    kind = next((name for name, known in CORE_TYPES.items() if type(core) is known), "custom")
    return {
        "library_name": "kaffee",
        "kaffee_version": __version__,
        "model_type": kind,
        "confined": confined,
        "latent_dim": model.model.latent_dim,
        "num_observed": model.model.num_observed,
        "num_parameters": sum(array.size for array in named_arrays(model.model).values()),
        "columns": list(model_columns(model)),
        "inputs": list(model.inputs),
        "groups": list(model.groups),
        "dt": model.dt,
        "method": model.method,
        "filter": model.filter_name,
    }


def _write_card(title: str, licence: str, model: Reconstruction, config: dict[str, Any], certificate: str) -> str:
    """Write the card: front matter in YAML, then Markdown."""
    columns = _listed(config["columns"])
    origin = model.provenance
    facts = [
        ("observed", f"{config['num_observed']} ({columns})"),
        *((kind, f"{len(config[kind])} ({_listed(config[kind])})") for kind in ("inputs", "groups") if config[kind]),
        ("latent coordinates", config["latent_dim"]),
        (
            "core",
            config["model_type"] + (", confined to the region of its training data" if config["confined"] else ""),
        ),
        ("numbers stored", config["num_parameters"]),
        ("time between steps", f"{config['dt']:.6g}"),
        ("method", config["method"]),
        ("filter", config["filter"]),
        ("seed", origin.get("seed", "-")),
        ("fingerprint of the data", str(origin.get("fingerprint", "-"))[:12]),
    ]
    notes = []
    if config["model_type"] in _IN_CONTEXT:
        notes.append("**This model contains rows of the recording it was made of.** Whoever has it can read them.")
    if origin.get("attribution"):
        notes.append(f"Adapted from a foundation model: {_plain(origin['attribution'])}")
    front = ["---", "library_name: kaffee", f"license: {licence}", "pipeline_tag: time-series-forecasting", "tags:"]
    front += [
        f"- {tag}" for tag in ("kaffee", "time-series", "dynamical-systems", "state-space-model", "kalman-filter")
    ]
    own = "" if config["model_type"] != "custom" else ", core=YOUR_CORE"
    one = f".group({config['groups'][0]!r})" if config["groups"] else ""
    also, future = (", inputs=U", ", inputs=V") if config["inputs"] else ("", "")
    driven = f"\n# U: {_listed(config['inputs'])}, with the rows of X; V: U, then the 100 rows to come" if also else ""
    runs = "" if also else ", surrogate.simulate(1000)"
    body = f"""---

# {_plain(title)}

A probabilistic surrogate of a dynamical system, fitted by kaffee {config["kaffee_version"]}: it filters, smooths, fills
gaps, forecasts with bands, and runs on its own.

| | |
| --- | --- |
{_rows(facts)}

{chr(10).join(notes)}

## Certificate

{certificate}

## Use

```python
import kaffee

surrogate = kaffee.Surrogate.load("FOLDER"{own}){one}   # this folder, after: hf download OWNER/NAME --local-dir FOLDER
surrogate.forecast(100, X{future})                  # X: rows of {columns}, in data units, NaN for missing{driven}
surrogate.filter(X{also}), surrogate.smooth(X{also}), surrogate.impute(X{also}){runs}
```

## Limits

It knows the system where and as its training data saw it: another regime, another time step or another sensor is
another system. Bands are those of the model; the certificate says how they did on held-out data.

## Citation

Herz, Pals, Durstewitz and Koppe (2026): *The Dynamic-Probabilistic Consistency Gap in Chaotic Surrogate Modeling*;
`kaffee cite` prints BibTeX.
"""
    return "\n".join(front) + "\n" + re.sub(r"\n{3,}", "\n\n", body)


def _listed(names: list[str]) -> str:
    return ", ".join(_plain(name) for name in names[:12]) + (" ..." if len(names) > 12 else "")


def _rows(pairs: list[tuple[str, Any]]) -> str:
    return "\n".join(f"| {name} | {value} |" for name, value in pairs)


def _show_certificate(folder: Path) -> str:
    """Show every verdict of a run, by axis."""
    if not (folder / "certificate.json").exists():
        return _NO_CERTIFICATE
    read_json(folder / "certificate.json", "certificate")
    lines = [_HELD_OUT, "", "| axis | check | verdict | what was measured |", "| --- | --- | --- | --- |"]
    for verdict in Certificate.load(folder)[0].verdicts:
        axis = _AXES.get(verdict.axis, str(verdict.axis))
        lines.append(f"| {axis} | {_plain(verdict.name)} | {verdict.status} | {_plain(verdict.sentence)} |")
    return "\n".join(lines)


def _show_groups(folder: Path) -> str:
    """Show what the certificates of a run's groups say, a row for each group and one for all."""
    path = folder / "groups.json"
    if not path.exists():
        return _NO_CERTIFICATE
    record = read_json(path, "certificate of groups")
    lines = [
        f"{_HELD_OUT} Each group on its own rows; of all groups, NLL and coverage are means over readings, distances "
        "of free runs are medians, and verdicts are the worst of any.",
        "",
        f"| group | NLL | coverage of 90 % bands | D_stsp | D_H | {' | '.join(_AXES.values())} |",
        "| --- |" + " ---: |" * len(_MEASURED) + " --- |" * len(_AXES),
    ]
    try:
        groups = [(_plain(name), own) for name, own in record["groups"].items()]
        for name, own in [*groups, ("**all**", record["overall"])]:
            cells = [*(_number(own[key]) for key in _MEASURED), *(own["axes"][str(axis)] for axis in _AXES)]
            lines.append(f"| {' | '.join([name, *cells])} |")
        if record["not_judged"]:
            lines += ["", f"Without held-out rows, and not judged: {', '.join(map(_plain, record['not_judged']))}."]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged or was edited: {error!r}. Write it again: kaffee report {folder} --again"
        ) from error
    return "\n".join(lines)


def _number(value: float | None) -> str:
    """Write three digits; what could not be measured is stored as nothing."""
    return "–" if value is None else f"{value:.3g}"


def _plain(text: Any) -> str:
    """Keep a text from being read as Markdown or a table's cell."""
    return re.sub(r"([\\`*_<>|\[\]#])", r"\\\1", " ".join(str(text).split()))
