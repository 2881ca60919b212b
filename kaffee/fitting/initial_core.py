"""A fit that starts from an existing deterministic surrogate instead of a fresh core (`kaffee fit --core`).

Three kinds are known by their names: the folder of a kaffee model or run; `FILE.py:NAME`, a function of the user's that
builds a core; and a pretrained foundation model such as DynaMix.
"""

import runpy
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.checkpoint.pytrees import WrongCall
from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.data.gaps import longest_stretch
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import CheckpointError, ConfigError, DataError, KaffeeError
from kaffee.inference.matching import match_series
from kaffee.model.core import Core
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import as_core, check_derivatives
from kaffee.records import read_json

CONTEXT_ROWS = 2000
"""As many as the paper's contexts have."""


class StartingPoint(NamedTuple):
    """A prior without a shell, the units it lives in, and the series with the columns it knows."""

    model: StateSpaceModel
    scaler: Scaler
    series: Series


def starting_point(start: str, series: Series, test_fraction: float, *, key: Key[Array, ""]) -> StartingPoint:
    """What `core.start` names, for a series.

    Args:
        test_fraction: What is held out of the series; neither the units nor a context come from there.
        key: Draws the embedding of a core that brings none.
    """
    train, _ = series.split(1.0 - test_fraction)
    if is_own(start):
        core = own_core(start, series.num_coordinates)
        if core.latent_dim < series.num_coordinates:
            raise ConfigError(
                f"--core {start} has {core.latent_dim} latent coordinates, fewer than the "
                f"{series.num_coordinates} observed ones."
            )
        with _blaming(start):
            units = units_of(core)
        scaler = Scaler.identity(series.num_coordinates) if units == "data" else Scaler.fit(train)
        return StartingPoint(StateSpaceModel.create(core, series.num_coordinates, key=key), scaler, series)
    folder = Path(start).expanduser()
    if (folder / "model.json").exists() or (folder / "run.json").exists():
        known = _model_in(folder)
        return StartingPoint(known.model, known.scaler, match_series(known, series))
    return _in_context(start, train, series)


def is_own(start: str | None) -> bool:
    """Whether a starting point is a function of the user's, `FILE.py:NAME`."""
    return start is not None and start.rpartition(":")[0].endswith(".py")


def absolute(start: str) -> str:
    """The same starting point from any folder; the name of a foundation model stays as it is."""
    path, _, name = start.rpartition(":") if is_own(start) else (start, "", "")
    located = Path(path).expanduser()
    return f"{located.resolve()}{':' + name if name else ''}" if located.exists() else start


def own_core(start: str, num_observed: int) -> Core:
    """Run the user's file and call NAME(num_observed): an Equinox module, a function z -> z' or a kaffee core.

    Its first N latent coordinates are the observed ones. It has `num_observed` latent coordinates, or as many as its
    attribute `latent_dim` says. It works on standardised data, or on data as they are if its attribute `units` is
    "data".
    """
    path, _, name = start.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"--core {start}: there is no file {path}.")
    with _blaming(start):
        found = runpy.run_path(path, run_name="kaffee_core")
    build = found.get(name)
    if not callable(build):
        functions = [key for key, value in found.items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"--core {start}: {path} has no function '{name}'; it has: {', '.join(functions) or 'none'}.")
    with _blaming(start):
        built = build(num_observed)
        if not callable(built):
            raise ConfigError(f"{name}({num_observed}) returned {built!r:.80}; a function z -> z' is needed.")
        core = as_core(built, int(getattr(built, "latent_dim", num_observed)))
        check_derivatives(core)
        return core


@contextmanager
def _blaming(start: str) -> Iterator[None]:
    """Errors in the user's code name the code, and the line in it."""
    try:
        yield
    except KaffeeError as error:
        raise ConfigError(f"--core {start}: {error}{_line(start, error.__cause__)}") from error
    except (Exception, SystemExit) as error:
        what = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(f"--core {start}: {type(error).__name__}: {what}{_line(start, error)}") from error


def _line(start: str, error: BaseException | None) -> str:
    """Where in the user's file an error came from."""
    path = start.rpartition(":")[0]
    if isinstance(error, SyntaxError) and error.filename == path:
        return f" (line {error.lineno} of {path})"
    calls = [] if error is None else traceback.extract_tb(error.__traceback__)
    lines = [call.lineno for call in calls if call.filename == path]
    return f" (line {lines[-1]} of {path})" if lines else ""


def load_with(folder: Path, start: str | None) -> Reconstruction:
    """Load a model, with the user's own core from `FILE.py:NAME` if it has one."""
    with core_option(folder, start):
        if start is None:
            return load(folder)
        if not is_own(start):
            raise ConfigError(f"--core {start}: to load a model, FILE.py:FUNCTION is needed.")
        num_observed = read_json(folder / "model.json", "model").get("observation", {}).get("num_observed")
        if not isinstance(num_observed, int) or num_observed < 1:
            raise CheckpointError(f"{folder}/model.json does not say how many coordinates are observed.")
        return load(folder, core=own_core(start, num_observed))


@contextmanager
def core_option(folder: Path, start: str | None) -> Iterator[None]:
    """Where a model is loaded with a core that it needs and does not get, or the reverse, name the option to change."""
    try:
        yield
    except CheckpointError as error:
        if not isinstance(error.__cause__, WrongCall):
            raise
        if start is None:
            raise CheckpointError(
                f"{folder}: the core is your own code, which kaffee does not run unasked. Name it as for the fit: "
                "--core FILE.py:FUNCTION"
            ) from error
        raise CheckpointError(f"{folder}: the core is one of kaffee's own. Leave out --core {start}.") from error


def units_of(core: Core) -> str:
    """ "standard" or "data", as the user's object says."""
    units = getattr(getattr(core, "function", core), "units", "standard")
    if units not in ("standard", "data"):
        raise ConfigError(f"The units of a core are 'standard' or 'data', not {units!r}.")
    return str(units)


def _model_in(folder: Path) -> Reconstruction:
    if (folder / "model.json").exists():
        return load_with(folder, None)
    if not (folder / "prior" / "model.json").exists():
        raise CheckpointError(f"{folder} has no finished prior yet. First: kaffee resume {folder}")
    return load_with(folder / "prior", None)


def _in_context(start: str, train: Series, series: Series) -> StartingPoint:
    from kaffee.foundation.context import condition
    from kaffee.foundation.hub import from_pretrained

    try:
        model = from_pretrained(start)
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(
            f"--core {start} is neither the folder of a kaffee model, nor FILE.py:FUNCTION, nor a foundation model. "
            f"{error}"
        ) from error
    known, _ = condition(model, context_rows(train))
    return StartingPoint(known.model, known.scaler, series)


def context_rows(train: Series) -> Float[np.ndarray, "T N"]:
    """The longest stretch of complete rows, of that the last `CONTEXT_ROWS`."""
    rows = longest_stretch(train)
    if not len(rows):
        raise DataError(f"{train.label}: no row is complete, so that there is no context for a foundation model.")
    return rows[-CONTEXT_ROWS:]
