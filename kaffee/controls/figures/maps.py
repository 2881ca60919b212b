"""Figure nochaos_exp2_var20: where a reference covariance grows or shrinks."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from kaffee.controls.figures.panels import COMPARED, LOOKS, Cell, with_curves
from kaffee.report.style import WIDTH, page_style


def nochaos_exp2_var20(truth: Cell, cells: Mapping[str, Cell]) -> Figure:
    """Trace of a transported isotropic covariance over a cloud of states: truth, noisy state, KAFFEE.

    One row for each horizon, on common colours that span what the truth does; darker is more contraction.

    Args:
        truth: Of `van_der_pol_truth`.
        cells: By objective, of one seed, with curves.
    """
    rows = [(LOOKS["truth"], truth), *with_curves(cells, COMPARED)]
    states = np.array(truth["cloud"], float)
    horizons = list(truth["curves"]["gains"])
    with page_style():
        figure = Figure(figsize=(WIDTH, 2.1 * len(horizons) + 0.3))
        grid = figure.subplots(len(horizons), len(rows), sharex=True, sharey=True, squeeze=False)
        for axes, horizon in zip(grid, horizons, strict=True):
            reference = _log_gain(truth, horizon)
            low, high = np.quantile(reference, [0.01, 0.99])
            for axis, (look, cell) in zip(axes, rows, strict=True):
                gain = _log_gain(cell, horizon)
                dots = axis.scatter(*states.T, c=gain, s=5, linewidths=0, cmap="viridis", vmin=low, vmax=high)
                median = np.nanmedian(gain)
                axis.set_title(f"{look.title}\nmedian × {10**median:.2g}")
            axes[0].set_ylabel(f"after {horizon} step{'s' if int(horizon) > 1 else ''}\nv (data units)")
            label = f"log$_{{10}}$ tr Σ$_{{{horizon}}}$ / tr Σ$_0$"
            figure.colorbar(dots, ax=list(axes), label=label, extend="both", pad=0.01, fraction=0.03)
        for axis in grid[-1]:
            axis.set_xlabel("x (data units)")
        return figure


def _log_gain(cell: Cell, horizon: str) -> np.ndarray:
    return np.log10(np.array(cell["curves"]["gains"][horizon], float))
