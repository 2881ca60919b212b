"""`kaffee filter RUN --follow`: a sensor or a message queue piped in, JSON lines out."""

import json as json_module
import os
import sys
from pathlib import Path
from typing import Any

import typer

from kaffee.cli.options import model_at

BROKEN_LINES = 3


def follow_input(
    run: Path,
    core: str | None,
    *,
    gate: float | None,
    patience: int,
    state: Path | None,
    json: bool,
    **how: Any,
) -> None:
    """Filter standard input until it ends, nobody listens, or Ctrl-C; all three are a good end.

    Args:
        how: Options of `kaffee.inference.stream.follow`.
    """
    from kaffee.inference.online import OnlineFilter
    from kaffee.inference.stream import Interruptible, follow

    online = OnlineFilter(model_at(run, core), gate=gate, patience=patience)
    if state is not None and (state / "online.json").exists():
        online.restore(state)
        if gate is not None:
            online.set_gate(gate, patience)
    with Interruptible(sys.stdin.buffer) as source:
        found = follow(online, source, sys.stdout, _warn, **how)
    if found.closed:
        _discard_output()
    if state is not None:
        online.save(state)
    facts = found.describe()
    if json:
        _warn(json_module.dumps(facts))
    elif found.broken or found.rejected or found.restarts or found.skipped:
        _warn(", ".join(f"{name}: {facts[name]}" for name in ("lines", "broken", "skipped", "rejected", "restarts")))
    if found.broken:
        raise typer.Exit(BROKEN_LINES)


def _warn(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _discard_output() -> None:
    """Python flushes standard output once more at its end, and would complain that nobody listens."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
