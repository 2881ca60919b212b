"""`kaffee doctor` and `kaffee cite`."""

import json as json_module

import typer

_PAPER = """@article{herz2026dpc,
  title  = {The Dynamic-Probabilistic Consistency Gap in Chaotic Surrogate Modeling},
  author = {Herz, Andre and Pals, Matthijs and Durstewitz, Daniel and Koppe, Georgia},
  year   = {2026}
}"""

_SOFTWARE = """@software{kaffee,
  title   = {kaffee: probabilistic dynamical systems reconstruction},
  author  = {{The kaffee developers}},
  version = {VERSION},
  license = {Apache-2.0}
}"""

_FOUNDATION_MODEL = """@inproceedings{hemmer2025dynamix,
  title     = {True Zero-Shot Inference of Dynamical Systems Preserving Long-Term Statistics},
  author    = {Hemmer, Christoph and Durstewitz, Daniel},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2025},
  note      = {DynaMix; the published weights are under CC-BY-4.0}
}"""


def cite() -> None:
    """Print BibTeX entries for the paper, the software and DynaMix, for those who use its weights."""
    from kaffee import __version__

    typer.echo("\n\n".join([_PAPER, _SOFTWARE.replace("VERSION", __version__), _FOUNDATION_MODEL]))


def doctor(json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Check the installation: versions, devices, and that the gradient is right and how fast it is."""
    from kaffee.filtering.likelihood import examine_installation

    facts, problems = examine_installation()
    if json:
        typer.echo(json_module.dumps({**facts, "problems": problems}, indent=2))
    else:
        from rich.console import Console

        from kaffee.tables import Table

        Console().print(Table("kaffee doctor", ("check", "result"), [list(fact) for fact in facts.items()]))
        typer.echo("Everything works." if not problems else "Problems: " + "; ".join(problems))
    if problems:
        raise typer.Exit(1)
