"""What known inputs bring: forecasts of a driven model against the same ones without them, on the same readings.

Two comparisons. The model itself, with every input at its mean in the training data: what it would lose if the inputs
were unknown. And the linear model against one that was fitted without inputs: what they bring to a model that has had
the chance to do without. No verdict depends on either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from kaffee.certification.forecasts import block_mean, count_blocks, forecast_at
from kaffee.certification.innovations import FilterPass, filter_pass
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.metrics.scores import STD_FLOOR, gaussian_nll
from kaffee.model.inputs import undriven
from kaffee.model.maps import Linear


class Benefit(NamedTuple):
    """Forecasts at one horizon with and without inputs: NLL in nats per entry, RMSE in units of the data's spread.

    `gain` is the mean of NLL(without) - NLL(with), `error` its standard error from blocks of time; NaN with too few.
    """

    horizon: int
    nll_with: float
    nll_without: float
    gain: float
    error: float
    rmse_with: float
    rmse_without: float


@dataclass(frozen=True)
class InputGain:
    """What inputs bring at every horizon.

    Attributes:
        names: Of the inputs.
        model: The surrogate against itself with inputs at their mean.
        linear: The linear model against one that was fitted without inputs; empty if there is none.
    """

    names: tuple[str, ...]
    model: list[Benefit]
    linear: list[Benefit]

    def describe(self) -> str:
        """Say it in one line."""
        rows = self.model[:1] + self.model[-1:] if len(self.model) > 1 else self.model
        parts = [f"{_show(row)} at {row.horizon} step{'s' * (row.horizon > 1)}" for row in rows]
        line = f"The inputs {', '.join(self.names)} bring {', '.join(parts)}, against the same model at mean inputs."
        if self.linear:
            row = self.linear[0]
            line += f" The linear model gains {_show(row)} at {row.horizon} step over one fitted without inputs."
        return line


def _show(row: Benefit) -> str:
    error = "" if np.isnan(row.error) else f" ± {row.error:.3f}"
    return f"{row.gain:.3f}{error} nats per reading"


def input_gain(
    run: FilterPass,
    linear: FilterPass | None,
    bare: Reconstruction | None,
    horizons: Sequence[int],
    *,
    members: int,
    seed: int,
) -> InputGain:
    """Compare forecasts with and without inputs.

    Args:
        run, linear: Filter passes of the surrogate and of the linear model, both with inputs.
        bare: The linear model that was fitted without inputs.
    """
    horizons = sorted({1, *horizons})
    how: dict[str, Any] = {"members": members, "seed": seed}
    without = filter_pass(run.reconstruction, _at_mean(run), run.starts)
    return InputGain(
        run.reconstruction.inputs,
        _compare(run, without, horizons, **how),
        []
        if linear is None or bare is None
        else _compare(linear, filter_pass(bare, run.series.driven_by(None), run.starts), horizons, **how),
    )


def _at_mean(run: FilterPass) -> Series:
    """Put every input at its mean in the training data."""
    inputs, scaler = run.series.inputs, run.reconstruction.scaler.inputs
    assert inputs is not None
    assert scaler is not None
    constant = tuple(np.broadcast_to(scaler.mean, values.shape) for values in inputs.recordings)
    return run.series.driven_by(replace(inputs, recordings=constant))


def _compare(run: FilterPass, other: FilterPass, horizons: Sequence[int], *, members: int, seed: int) -> list[Benefit]:
    """Score both passes on the same readings; moments of a linear model are exact, others those of ensembles."""
    exact = isinstance(undriven(run.reconstruction.model.core), Linear)
    (mean, std), (mean_0, std_0) = (forecast_at(each, horizons, members, seed, exact=exact) for each in (run, other))
    rows = []
    for i, h in enumerate(horizons):
        y = run.starts.ahead(run.standard, h)
        mask = ~np.isnan(y)
        nll, nll_0 = (
            gaussian_nll(np.where(mask, y, 0.0), m[:, i], np.maximum(s[:, i], STD_FLOOR))
            for m, s in ((mean, std), (mean_0, std_0))
        )
        gain, error, _ = block_mean(nll_0 - nll, mask, count_blocks(run, h))
        errors = (_root_mean_square((m[:, i] - y)[mask]) for m in (mean, mean_0))
        rows.append(Benefit(h, float(np.mean(nll[mask])), float(np.mean(nll_0[mask])), gain, error, *errors))
    return rows


def _root_mean_square(errors: Float[np.ndarray, " K"]) -> float:
    return float(np.sqrt(np.mean(errors**2))) if errors.size else float("nan")
