"""What a user's type checker sees of kaffee: `make types` checks this file, and nothing runs it.

Lines that are wrong say so; mypy complains of an ignored error that is none.
"""

import numpy as np

import kaffee
from kaffee.inference import forecast


def use(path: str) -> None:
    """Use names of every layer."""
    series: kaffee.Series = kaffee.read_series(path)
    surrogate: kaffee.Surrogate = kaffee.Surrogate(seed=1, settings={"core.latent_dim": 9}).fit(series)
    score: float = surrogate.score(np.zeros((9, 2)))
    model: kaffee.Reconstruction = kaffee.load(path)
    quantile: np.ndarray = forecast(model, series, 5)[0].quantile(0.5)
    mean: np.ndarray = kaffee.OnlineFilter(model).step([1.0, 2.0]).mean
    settings = kaffee.FitSettings(rung="linear")
    print(score, quantile, mean, settings)


def misuse(surrogate: kaffee.Surrogate) -> None:
    """Use them wrongly."""
    kaffee.FitSettings(rung="ladder")  # type: ignore[arg-type]
    kaffee.Surrogate(seed="one")  # type: ignore[arg-type]
    kaffee.no_such_name  # type: ignore[attr-defined]  # noqa: B018
    text: str = surrogate.score(np.zeros((9, 2)))  # type: ignore[assignment]
    print(text)
