"""What a diagnosis says: a table, sentences, four panels."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kaffee.diagnostics.attenuation import Estimate
from kaffee.diagnostics.diagnosis import Diagnosis
from kaffee.report.style import COLOURS, figure_style
from kaffee.tables import Table, number

FILTER, OPEN_LOOP, OTHER = COLOURS["kaffee"], COLOURS["core_collapse"], COLOURS["frozen_core"]
WIDTH = 17.0 / 2.54


def table(found: Diagnosis) -> Table:
    """The open loop beside the filter, with the place in the paper."""
    H = found.horizon
    rows = [
        ("volume pressure, 1 step", found.pressure_open_loop[0], found.pressure_filter[0], "prop. 1"),
        (f"volume pressure, {H} steps", found.pressure_open_loop[-1], found.pressure_filter[-1], "prop. 1"),
        ("nats that an update removes", None, -0.5 * found.log_volume, "prop. 1"),
        ("trace left by an update", None, found.trace_ratio, "prop. 1"),
        ("signal in the data, least coordinate", min(found.kappa), None, "A.2"),
        ("signal in the data, least direction", found.kappa_worst, None, "A.2"),
        ("innovations, least direction", None, found.directions[0], "lemma 1"),
        ("innovations, largest direction", None, found.directions[1], "lemma 1"),
        ("dNLL/ds, belief held fixed", None, found.lemma.value, "lemma 1"),
        ("dNLL/ds, through the recursion", None, found.full.value, "beyond"),
        ("forcing strength alpha", 0.0, found.strengths[1], "prop. 3"),
        ("largest singular value, 1 step", found.singular_jacobian, found.singular_factor, "prop. 3"),
        (f"gradient norm, {H} steps", found.gradient_open_loop[-1], found.gradient_filter[-1], "prop. 3"),
    ]
    note = f"{found.num_windows} windows, {H} steps each after {found.burn_in} steps of filtering; standardised units."
    return Table("The theory on this model", ("diagnostic", "open loop", "filter", "paper"), rows, note=note)


def describe(found: Diagnosis) -> list[str]:
    """Sentences for someone who has not read the paper."""
    lines = [*_volume(found), *_attenuation(found), *_dispersion(found), *_forcing(found)]
    if found.faulty:
        lines.append(
            f"In {found.faulty} of {found.num_windows} windows the free run or the filter became non-finite; the means "
            "above are over what was finite."
        )
    return lines


def _volume(found: Diagnosis) -> list[str]:
    told, left = -0.5 * found.log_volume, _percent(found.trace_ratio)
    update = f"An observation removes {told:.2f} nats of uncertainty and leaves {left} of the variance."
    if not found.transport:
        return [
            "Volume: this method does not move covariances by the Jacobian, so no likelihood is gained by contracting "
            "the core, and the forecast's uncertainty does not know about it either.",
            update,
        ]
    free, here = found.pressure_open_loop[-1], found.pressure_filter[-1]
    times = f", {free / here:.1f} times less" if free > here > 0 else ""
    return [
        f"Volume: {found.horizon} steps ahead without data, contracting the core by 1 % would save an open-loop "
        f"likelihood {0.01 * free:.3f} nats, whatever the data say; in the filter {0.01 * here:.3f}{times}.",
        update,
    ]


def _attenuation(found: Diagnosis) -> list[str]:
    impossible = [c for c, k in zip(found.columns, found.kappa, strict=True) if k <= 0]
    if impossible:
        return [
            "Attenuation: the model claims more observation noise than the data have variance in "
            f"{_names(impossible)}: its noise hides the signal."
        ]
    least = int(np.argmin(found.kappa))
    worst = found.kappa_worst
    more = f", and by {worst:.2f} in the direction with the least signal" if worst == worst else ""
    return [
        f"Attenuation: by this model's observation noise, {_percent(found.kappa[least])} of the variance of "
        f"{found.columns[least]} is signal. A model that takes noisy rows for states shrinks its multiplier by the "
        f"factor {found.kappa[least]:.2f}{more}."
    ]


def _dispersion(found: Diagnosis) -> list[str]:
    def where(sign: float) -> list[str]:
        pairs = zip(found.columns, found.dispersion, found.dispersion_se, strict=True)
        return [c for c, value, se in pairs if sign * (value - 1.0) > 2.0 * np.nan_to_num(se)]

    too_sure, too_modest = where(1.0), where(-1.0)
    lines = []
    if too_sure:
        lines.append(f"Dispersion: errors are larger than predicted (underdispersed) in {_names(too_sure)}.")
    if too_modest:
        lines.append(f"Dispersion: errors are smaller than predicted (overdispersed) in {_names(too_modest)}.")
    if not lines:
        lines.append("Dispersion: errors are as large as predicted in every coordinate, within two standard errors.")
    low, high = found.directions
    state = "holds" if low >= 1.0 else "does not hold"
    lines.append(
        f"Lemma 1 assumes errors larger than predicted in every direction; here the ratio runs from {low:.2f} to "
        f"{high:.2f}, so it {state}. The likelihood {_wish(found.lemma)} (slope {_pm(found.lemma)} per step); through "
        f"the whole recursion it {_wish(found.full)} ({_pm(found.full)})."
    )
    return lines


def _wish(slope: Estimate) -> str:
    if not abs(slope.value) > 2.0 * np.nan_to_num(slope.se):
        return "asks for neither more nor less growth of uncertainty"
    return f"asks for {'more' if slope.value < 0 else 'less'} growth of uncertainty"


def _forcing(found: Diagnosis) -> list[str]:
    low, mean, high = found.strengths
    free, here = found.gradient_open_loop[-1], found.gradient_filter[-1]
    lines = [
        f"Forcing: the filter pulls the state to the data like teacher forcing of strength {mean:.2f} (from {low:.2f} "
        f"to {high:.2f}, depending on the direction). Over {found.horizon} steps a perturbation is multiplied by "
        f"{number(free)} in the free run and by {number(here)} in the filter."
    ]
    if found.gain_share > 0.01:
        lines.append(
            f"The gain itself depends on the state: that is {_percent(found.gain_share)} of a step's factor. "
            "Multiplying the factors of single steps, without the path through the covariance, gives "
            f"{number(found.gradient_chain[-1])}."
        )
    return lines


def _names(columns: Sequence[str], most: int = 6) -> str:
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return ", ".join(columns[:most]) + more


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _pm(estimate: Estimate) -> str:
    return f"{number(estimate.value)} ± {number(estimate.se)}"


def figure(found: Diagnosis) -> Figure:
    """Pressure by horizon, signal and dispersion by coordinate, gradient norms by horizon; 17 cm wide."""
    with figure_style():
        drawing = Figure(figsize=(WIDTH, 0.78 * WIDTH), dpi=200)
        (volume, signal), (spread, gradient) = drawing.subplots(2, 2)
        _by_step(volume, found.pressure_open_loop, OPEN_LOOP, "--", "open loop")
        _by_step(volume, found.pressure_filter, FILTER, "-", "filter")
        _by_step(volume, found.pressure_one_step, FILTER, ":", "filter, one step alone")
        volume.set(title="(a) Volume pressure", xlabel="steps ahead", ylabel="d/ds ½ log det Ω  (nats)")
        volume.set_ylim(bottom=0.0)
        volume.legend()

        _by_coordinate(signal, found.columns, found.kappa, OTHER)
        if np.isfinite(found.kappa_worst):
            signal.axhline(found.kappa_worst, color="black", linestyle=":", label="direction with least signal")
            signal.legend(loc="lower left")
        signal.set(title="(b) Signal in the data", ylabel="κ = 1 − Λ / Var(x)")
        signal.set_ylim(min(0.0, 1.1 * np.nanmin([*found.kappa, found.kappa_worst])), 1.05)

        _by_coordinate(spread, found.columns, found.dispersion, FILTER, found.dispersion_se)
        spread.axhline(1.0, color="black", linestyle="--", label="as predicted")
        spread.set(title="(c) Squared innovations", ylabel="v² / Ω  (above 1: too sure)")
        spread.set_ylim(bottom=0.0)
        spread.legend(loc="lower left")

        _by_step(gradient, found.gradient_open_loop, OPEN_LOOP, "--", "open loop")
        _by_step(gradient, found.gradient_filter, FILTER, "-", "filter")
        _by_step(gradient, found.gradient_chain, "black", ":", "product of factors")
        gradient.set_yscale("log")
        gradient.set(title="(d) Gradients through time", xlabel="steps", ylabel="‖∂z(t) / ∂z(0)‖")
        gradient.legend()
        return drawing


def _by_step(axis: Axes, values: Sequence[float], colour: str, style: str, label: str) -> None:
    few = "." if len(values) < 4 else None  # a line of one point is invisible
    axis.plot(np.arange(1, len(values) + 1), values, color=colour, linestyle=style, marker=few, label=label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _by_coordinate(
    axis: Axes, columns: Sequence[str], values: Sequence[float], colour: str, errors: Sequence[float] | None = None
) -> None:
    """Points with 2 standard errors; names below while there is room for them."""
    where = np.arange(1, len(columns) + 1)
    bars = None if errors is None else 2.0 * np.nan_to_num(np.asarray(errors))
    axis.errorbar(where, values, bars, fmt="o", color=colour, markersize=4, capsize=2)
    if len(columns) <= 8 and max(map(len, columns)) <= 8:
        axis.set_xticks(where, columns, parse_math=False)
        axis.set_xlim(0.5, len(columns) + 0.5)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("coordinate")
