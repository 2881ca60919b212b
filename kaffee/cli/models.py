"""`kaffee models list`, `pull` and `show`: the weights of foundation models."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from kaffee.cli.context import warn_if_altered

app = typer.Typer(help="Pretrained foundation models: list, fetch, show.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_models(json: Json = False) -> None:
    """List the known models, where they are on this machine, and whose they are."""
    from kaffee.errors import CheckpointError
    from kaffee.foundation.hub import locate
    from kaffee.foundation.weights import KNOWN

    rows: list[dict[str, Any]] = []
    for name, release in KNOWN.items():
        try:
            found: str | None = str(locate(name).weights)
        except CheckpointError:
            found = None
        rows.append({"name": name, "path": found, "licence": release.licence, "attribution": release.attribution})
    if json:
        typer.echo(json_module.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(row["name"])
        typer.echo(f"  {row['path'] or 'not on this machine; fetch it: kaffee models pull ' + row['name']}")
        typer.echo(f"  {row['licence']}: {row['attribution']}")


@app.command()
def pull(
    name: Annotated[str | None, typer.Argument(help="A model; see kaffee models list.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Copy from this file or folder instead of the network.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace another model that is there under this name.")
    ] = False,
) -> None:
    """Bring a model to this machine: from its authors' hub (https), or from a path."""
    from kaffee.foundation.hub import pull as bring
    from kaffee.foundation.weights import DEFAULT, KNOWN

    located = bring(name or DEFAULT, source=source, force=force)
    release, weights = KNOWN[name or DEFAULT], located.read()
    warn_if_altered(located.doubt(weights))
    typer.echo(f"{located.weights}: sha256 {weights.sha256[:12]}")
    typer.echo(f"{release.licence}: {release.attribution}")


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="A model, a weight file or a folder.")] = None, json: Json = False
) -> None:
    """Show a model on this machine: sizes, gate noise, temperatures, checksum, licence."""
    from kaffee.foundation.hub import locate
    from kaffee.foundation.weights import DEFAULT, KNOWN

    located = locate(name or DEFAULT)
    weights = located.read()
    warn_if_altered(located.doubt(weights))
    facts = {**_facts(weights), "path": str(located.weights)}
    release = KNOWN.get(weights.name)
    if release is not None:
        facts.update({"licence": release.licence, "attribution": release.attribution})
    if json:
        typer.echo(json_module.dumps(facts, indent=2))
        return
    from rich.console import Console

    from kaffee.tables import Table

    shapes = facts.pop("tensors")
    path = facts.pop("path")
    rows = [[key.replace("_", " "), _text(value)] for key, value in facts.items()]
    rows += [[f"tensor {key}", _text(value)] for key, value in shapes.items()]
    Console().print(Table(weights.name, ("", "value"), rows))
    typer.echo(path)


def _facts(weights: Any) -> dict[str, Any]:
    """Numbers of a checkpoint; the experts share their shapes."""
    gate = {key.removeprefix("gating_network."): value for key, value in weights.tensors.items()}
    tensors = {}
    for key, value in sorted(weights.tensors.items()):
        if not key.startswith("experts.") or key.startswith("experts.0."):
            tensors[key.replace("experts.0.", "experts.*.")] = list(value.shape)
    sizes = weights.architecture
    return {
        "latent_dim": sizes.latent_dim,
        "num_observed": sizes.num_observed,
        "num_experts": sizes.num_experts,
        "num_gates": sizes.num_gates,
        "num_parameters": weights.num_parameters,
        "sigma": [float(s) for s in gate["sigma"]],
        "attention_temperature": float(abs(gate["softmax_temp1"][0])),
        "expert_temperature": float(abs(gate["softmax_temp2"][0])),
        "sha256": weights.sha256,
        "tensors": tensors,
    }


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return (
            " x ".join(map(str, value))
            if all(isinstance(v, int) for v in value)
            else " ".join(f"{v:.4f}" for v in value)
        )
    return value
