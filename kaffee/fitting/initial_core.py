"""The model that training starts from: a fresh core, or an existing deterministic surrogate (`kaffee fit --core`).

Existing ones: the folder of a kaffee model or run; `FILE.py:NAME`, which builds a core; a foundation model's name;
"incontext", which reads the training rows.
"""

import runpy
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.checkpoint.reconstruction import Reconstruction, WrongCall, load
from kaffee.data.gaps import longest_stretch
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.validation import check_observed
from kaffee.errors import CheckpointError, ConfigError, DataError, KaffeeError
from kaffee.fitting.learned_maps import Maps
from kaffee.fitting.settings import IN_CONTEXT, FitSettings, FoundationSettings
from kaffee.foundation.context import condition
from kaffee.foundation.hub import from_pretrained
from kaffee.foundation.incontext import read_context, refuse_inputs
from kaffee.inference.matching import match_series
from kaffee.model.core import Core
from kaffee.model.discrete import Discrete
from kaffee.model.inputs import drive, undriven
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import as_core, check_derivatives
from kaffee.records import read_json

_CONTEXT_ROWS = 2000  # as many as the paper's contexts have


class _Start(NamedTuple):
    """Where training begins.

    Attributes:
        series: With the columns that the model knows, in data units.
        rows: The standardised rows to train on.
        context: Standardised rows that a foundation model reads when it is adapted; None: it has read all.
    """

    model: StateSpaceModel
    scaler: Scaler
    series: Series
    rows: Series
    context: Float[np.ndarray, "T N"] | None = None


def find_start(settings: FitSettings, series: Series, maps: Maps | None = None) -> _Start:
    """Create or load what a fit of this series starts from; neither units nor a context come from held-out rows.

    Where maps are learned it is a model of their scores.
    """
    train, _ = series.split(1.0 - settings.test_fraction)
    if maps is not None:
        K, keys = maps.number, settings.keys()
        model = StateSpaceModel.create(settings.core.create(K, key=keys["core"]), K, key=keys["embedding"])
        return _Start(model, maps.scalers[0], series, maps.scores)
    if settings.foundation is not None:
        refuse_inputs(series)
        return _read_context(settings.foundation, series, train)
    start, N, keys = settings.core.start, series.num_coordinates, settings.keys()
    if start is None:
        scaler = Scaler.fit(train, settings.likelihood)
        core = drive(settings.core.create(N, key=keys["core"]), series.num_inputs)
        model = StateSpaceModel.create(core, N, key=keys["embedding"])
        if settings.readings is not None:
            offset, gain = (jnp.asarray(each, model.dtype) for each in (scaler.mean, scaler.scale))
            model = model.replace(discrete=Discrete(offset, gain, settings.readings.likelihood))
    elif start == IN_CONTEXT:
        read = read_context(train)
        model, scaler = read.model, read.scaler
    elif is_own(start):
        core = drive(_build_own_core(start, N), series.num_inputs)
        if core.latent_dim < N:
            raise ConfigError(
                f"--core {start} has {core.latent_dim} latent coordinates, fewer than the {N} observed ones."
            )
        with _blame(start):
            own = undriven(core)
            units = getattr(getattr(own, "function", own), "units", "standard")
            if units not in ("standard", "data"):
                raise ConfigError(f"The units of a core are 'standard' or 'data', not {units!r}.")
        scaler = Scaler.identity(N, series.num_inputs) if units == "data" else Scaler.fit(train)
        model = StateSpaceModel.create(core, N, key=keys["embedding"])
    else:
        known, series = _load_start(start, series, train)
        model, scaler = known.model.replace(climate=None), known.scaler  # it follows from what is trained now
        if series.inputs is not None and not model.input_dim:
            model = model.replace(core=drive(model.core, series.num_inputs, model.dtype))
            scaler = replace(scaler, inputs=Scaler.fit(train.inputs))  # type: ignore[arg-type]
        train, _ = series.split(1.0 - settings.test_fraction)
    check_observed(train.recordings, train.columns, train.label)
    return _Start(model, scaler, series, train.standardised(scaler))


def _read_context(settings: FoundationSettings, series: Series, train: Series) -> _Start:
    """Let a foundation model read the training rows, but for those that it is adapted on."""
    if train.num_recordings != 1:
        raise ConfigError(f"A context is one recording; {series.label} has {series.num_recordings}. Split the file.")
    model = from_pretrained(settings.model).with_tangent(settings.tangent, train_gate=settings.train_gate)
    [observations] = train.recordings
    known, rows = condition(model, observations, held_out=settings.held_out or 0.0)
    context = known.scaler.transform(np.asarray(observations, np.float64)) if settings.held_out else None
    return _Start(known.model, known.scaler, series, rows, context)


def _load_start(start: str, series: Series, train: Series) -> tuple[Reconstruction, Series]:
    """Load a model, or the prior of a run, with its columns of the series; or condition a foundation model."""
    folder = Path(start).expanduser()
    if (folder / "model.json").exists() or (folder / "run.json").exists():
        place = folder if (folder / "model.json").exists() else folder / "prior"
        if not (place / "model.json").exists():
            raise CheckpointError(f"{folder} has no finished prior yet. First: kaffee resume {folder}")
        known = load_with_core(place, None)
        return known, match_series(known, series)
    try:
        model = from_pretrained(start)
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(
            f"--core {start} is neither the folder of a kaffee model, nor FILE.py:FUNCTION, nor a foundation model. "
            f"{error}"
        ) from error
    refuse_inputs(series)
    return condition(model, _context_rows(train))[0], series


def _context_rows(train: Series) -> Float[np.ndarray, "T N"]:
    """Take the longest stretch of complete rows, of that the last `_CONTEXT_ROWS`."""
    rows = longest_stretch(train)
    if not len(rows):
        raise DataError(f"{train.label}: no row is complete, so that there is no context for a foundation model.")
    return rows[-_CONTEXT_ROWS:]


def is_own(start: str | None) -> bool:
    """Tell whether a starting point is `FILE.py:NAME`, a function of the user's."""
    return start is not None and start.rpartition(":")[0].endswith(".py")


def absolute(start: str) -> str:
    """Make paths in a starting point absolute; the name of a foundation model stays as it is."""
    path, _, name = start.rpartition(":") if is_own(start) else (start, "", "")
    located = Path(path).expanduser()
    return f"{located.resolve()}{':' + name if name else ''}" if located.exists() else start


def _build_own_core(start: str, num_observed: int) -> Core:
    """Run the user's file and call NAME(num_observed): an Equinox module, a function z -> z' or a kaffee core.

    Its first N latent coordinates are the observed ones; an attribute `latent_dim` says that there are more. It works
    on standardised data, or on data as they are if its attribute `units` is "data". One with an attribute `input_dim`
    is a function (z, u) -> z'; to any other, inputs are added: F(z) + C u.
    """
    path, _, name = start.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"--core {start}: there is no file {path}.")
    with _blame(start):
        names = runpy.run_path(path, run_name="kaffee_core")
    build = names.get(name)
    if not callable(build):
        functions = [key for key, value in names.items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"--core {start}: {path} has no function '{name}'; it has: {', '.join(functions) or 'none'}.")
    with _blame(start):
        built = build(num_observed)
        if not callable(built):
            raise ConfigError(f"{name}({num_observed}) returned {built!r:.80}; a function z -> z' is needed.")
        sizes = getattr(built, "latent_dim", num_observed), getattr(built, "input_dim", 0)
        core = as_core(built, *map(int, sizes))
        check_derivatives(core)
        return core


@contextmanager
def _blame(start: str) -> Iterator[None]:
    """Name the user's code, and the line in it, in errors that it raises."""
    try:
        yield
    except KaffeeError as error:
        raise ConfigError(f"--core {start}: {error}{_line(start, error.__cause__)}") from error
    except (Exception, SystemExit) as error:
        what = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(f"--core {start}: {type(error).__name__}: {what}{_line(start, error)}") from error


def _line(start: str, error: BaseException | None) -> str:
    """Tell where in the user's file an error came from."""
    path = start.rpartition(":")[0]
    calls = [] if error is None else traceback.extract_tb(error.__traceback__)
    lines = [call.lineno for call in calls if call.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    return f" (line {lines[-1]} of {path})" if lines else ""


def load_with_core(folder: Path, core: Any) -> Reconstruction:
    """Load a model from its folder.

    Args:
        core: For a model with a core of the user's own: an object of its class, or `FILE.py:NAME`, which builds it.
    """
    if core is not None and not isinstance(core, str):
        return load(folder, core=core)
    try:
        if core is None:
            return load(folder)
        if not is_own(core):
            raise ConfigError(f"--core {core}: to load a model, FILE.py:FUNCTION is needed.")
        num_observed = read_json(folder / "model.json", "model").get("observation", {}).get("num_observed")
        if not isinstance(num_observed, int) or num_observed < 1:
            raise CheckpointError(f"{folder}/model.json does not say how many coordinates are observed.")
        return load(folder, core=_build_own_core(core, num_observed))
    except CheckpointError as error:
        if not isinstance(error.__cause__, WrongCall):
            raise
        if core is None:
            raise CheckpointError(
                f"{folder}: the core is your own code, which kaffee does not run unasked. Name it as for the fit: "
                "--core FILE.py:FUNCTION"
            ) from error
        raise CheckpointError(f"{folder}: the core is one of kaffee's own. Leave out --core {core}.") from error
