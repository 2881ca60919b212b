"""A surrogate without training, of a model that reads the recording as its context."""

from dataclasses import replace
from typing import Any, overload

from kaffee.errors import ConfigError
from kaffee.foundation import continuation
from kaffee.foundation.incontext import ContextSettings, read_context
from kaffee.model.dynamix import DynaMix
from kaffee.records import versions
from kaffee.surrogate.estimator import ZERO_SHOT, Surrogate, read_all, with_calendar


@overload
def zero_shot(X: DynaMix, context: Any, num_steps: int, /, **options: Any) -> continuation.ZeroShot: ...


@overload
def zero_shot(X: Any, num_steps: int | None = None, **options: Any) -> Any: ...


def zero_shot(*arguments: Any, **options: Any) -> Any:
    """Make a surrogate of a recording without training, in seconds; with `num_steps` return its forecast.

        surrogate = kaffee.zero_shot(X)          # filter, smooth, impute, forecast, simulate, online, save
        forecast = kaffee.zero_shot(X, 200)      # as Surrogate.forecast(200) returns it

    The model is a kernel map over the rows of X that its own smoother has denoised (`kaffee.foundation.incontext`);
    nothing is downloaded. A `DynaMix` as the first argument continues a context instead, as
    `kaffee.foundation.zero_shot(model, context, num_steps)` does.

    Args:
        X, times, dt: As for `Surrogate.fit`: arrays, tables, labelled arrays, lists of recordings, a `kaffee.Series`.
        num_steps: Steps after the last row of every recording.
        held_out: Share of every recording, its last rows, that the model does not read, so that `Surrogate.certify`
            can judge it; forecasts still go on from the last row. Nothing by default: every row makes a better model.
        settings: How the rows are read.
        options: Of `Surrogate.forecast`: members, quantiles, seed, observation_noise, point.
    """
    model = arguments[0] if arguments else options.get("model")
    if isinstance(model, DynaMix) or "model" in options or len(arguments) > 2:
        return continuation.zero_shot(*arguments, **options)
    return _read_zero_shot(*arguments, **options)


def _read_zero_shot(
    X: Any,
    num_steps: int | None = None,
    *,
    times: Any = None,
    dt: float | None = None,
    held_out: float = 0.0,
    settings: ContextSettings | None = None,
    **options: Any,
) -> Any:
    if options and num_steps is None:
        raise ConfigError(f"{', '.join(options)}: of a forecast; give num_steps as well, or forecast() afterwards.")
    if not 0.0 <= held_out < 1.0:
        raise ConfigError(f"held_out = {held_out}: a share of the rows between 0 and 1 is needed.")
    data = read_all(X, times, dt)
    read, rest = data.series.split(1.0 - held_out) if held_out else (data.series, None)
    model = read_context(read, settings or ContextSettings())
    origin = {"fingerprint": data.series.fingerprint, "train_fingerprint": read.fingerprint, "versions": versions()}
    model = replace(model, provenance={**model.provenance, **origin}, dt=model.dt if dt is None else float(dt))
    surrogate = Surrogate()
    surrogate._data, surrogate._parts = data, (read, rest)
    surrogate.reconstruction_ = with_calendar(model.with_model(model.model, ZERO_SHOT), data)
    surrogate.prior_ = surrogate.settings_ = surrogate.fit_ = None
    return surrogate if num_steps is None else surrogate.forecast(num_steps, **options)
