"""Show a diagnosis and a gap log: tables, sentences for readers who do not know the paper, figures."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kaffee.report.style import COLOURS, WIDTH, figure_style
from kaffee.tables import Table, number
from kaffee.theory.attenuation import Measured
from kaffee.theory.diagnosis import Diagnosis
from kaffee.theory.dpc import Entry, find_gaps, overall_gaps

_BLUE, _ORANGE, _OTHER = COLOURS["kaffee"], COLOURS["core_collapse"], COLOURS["frozen_core"]


def diagnosis_table(d: Diagnosis) -> Table:
    """Set the open loop beside the filter, with the place in the paper."""
    H = d.horizon
    rows = [
        ("volume pressure, 1 step", d.pressure_open_loop[0], d.pressure_filter[0], "prop. 1"),
        (f"volume pressure, {H} steps", d.pressure_open_loop[-1], d.pressure_filter[-1], "prop. 1"),
        ("nats that an update removes", None, -0.5 * d.log_volume, "prop. 1"),
        ("trace left by an update", None, d.trace_ratio, "prop. 1"),
        ("signal in the data, least coordinate", min(d.kappa), None, "A.2"),
        ("signal in the data, least direction", d.kappa_worst, None, "A.2"),
        ("innovations, least direction", None, d.directions[0], "lemma 1"),
        ("innovations, largest direction", None, d.directions[1], "lemma 1"),
        ("dNLL/ds, belief held fixed", None, d.lemma.value, "lemma 1"),
        ("dNLL/ds, through the recursion", None, d.full.value, "beyond"),
        ("forcing strength alpha", 0.0, d.strengths[1], "prop. 3"),
        ("largest singular value, 1 step", d.singular_jacobian, d.singular_factor, "prop. 3"),
        (f"gradient norm, {H} steps", d.gradient_open_loop[-1], d.gradient_filter[-1], "prop. 3"),
    ]
    note = f"{d.num_windows} windows, {H} steps each after {d.burn_in} steps of filtering; standardised units."
    return Table("The theory on this model", ("diagnostic", "open loop", "filter", "paper"), rows, note=note)


def describe_diagnosis(d: Diagnosis) -> list[str]:
    """Write sentences about volume, attenuation, dispersion and forcing."""
    lines = [*_describe_volume(d), _describe_attenuation(d), *_describe_dispersion(d), *_describe_forcing(d)]
    if d.faulty:
        where = f"In {d.faulty} of {d.num_windows} windows the free run or the filter became non-finite"
        lines.append(f"{where}; the means above are over what was finite.")
    return lines


def _describe_volume(d: Diagnosis) -> tuple[str, str]:
    nats, left = -0.5 * d.log_volume, 100.0 * d.trace_ratio
    update = f"An observation removes {nats:.2f} nats of uncertainty and leaves {left:.0f} % of the variance."
    if not d.transport:
        volume = (
            "Volume: this method does not move covariances by the Jacobian, so no likelihood is gained by contracting "
            "the core, and the forecast's uncertainty does not know about it either."
        )
        return volume, update
    free, here = d.pressure_open_loop[-1], d.pressure_filter[-1]
    times = f", {free / here:.1f} times less" if free > here > 0 else ""
    volume = (
        f"Volume: {d.horizon} steps ahead without data, contracting the core by 1 % would save an open-loop "
        f"likelihood {0.01 * free:.3f} nats, whatever the data say; in the filter {0.01 * here:.3f}{times}."
    )
    return volume, update


def _describe_attenuation(d: Diagnosis) -> str:
    impossible = [c for c, k in zip(d.columns, d.kappa, strict=True) if k <= 0]
    if impossible:
        claim = "Attenuation: the model claims more observation noise than the data have variance in"
        return f"{claim} {_names(impossible)}: its noise hides the signal."
    least, worst = int(np.argmin(d.kappa)), d.kappa_worst
    more = f", and by {worst:.2f} in the direction with the least signal" if worst == worst else ""
    return (
        f"Attenuation: by this model's observation noise, {100.0 * d.kappa[least]:.0f} % of the variance of "
        f"{d.columns[least]} is signal. A model that takes noisy rows for states shrinks its multiplier by the "
        f"factor {d.kappa[least]:.2f}{more}."
    )


def _describe_dispersion(d: Diagnosis) -> list[str]:
    lines = []
    excess, limit = np.array(d.dispersion) - 1.0, 2.0 * np.nan_to_num(d.dispersion_se)
    for beyond, size, word in ((excess > limit, "larger", "under"), (-excess > limit, "smaller", "over")):
        if beyond.any():
            where = _names(np.array(d.columns)[beyond].tolist())
            lines.append(f"Dispersion: errors are {size} than predicted ({word}dispersed) in {where}.")
    if not lines:
        lines.append("Dispersion: errors are as large as predicted in every coordinate, within two standard errors.")
    low, high = d.directions
    state = "holds" if low >= 1.0 else "does not hold"
    return [
        *lines,
        f"Lemma 1 assumes errors larger than predicted in every direction; here the ratio runs from {low:.2f} to "
        f"{high:.2f}, so it {state}. The likelihood {_demand(d.lemma)} (slope {_pm(d.lemma)} per step); through "
        f"the whole recursion it {_demand(d.full)} ({_pm(d.full)}).",
    ]


def _demand(slope: Measured) -> str:
    clear = abs(slope.value) > 2.0 * np.nan_to_num(slope.se)
    word = ("more" if slope.value < 0 else "less") if clear else "neither more nor less"
    return f"asks for {word} growth of uncertainty"


def _describe_forcing(d: Diagnosis) -> list[str]:
    low, mean, high = d.strengths
    lines = [
        f"Forcing: the filter pulls the state to the data like teacher forcing of strength {mean:.2f} (from {low:.2f} "
        f"to {high:.2f}, depending on the direction). Over {d.horizon} steps a perturbation is multiplied by "
        f"{number(d.gradient_open_loop[-1])} in the free run and by {number(d.gradient_filter[-1])} in the filter."
    ]
    if d.gain_share > 0.01:
        lines.append(
            f"The gain itself depends on the state: that is {100.0 * d.gain_share:.0f} % of a step's factor. "
            "Multiplying the factors of single steps, without the path through the covariance, gives "
            f"{number(d.gradient_chain[-1])}."
        )
    return lines


def _names(columns: Sequence[str], most: int = 6) -> str:
    return ", ".join(columns[:most]) + (f" and {len(columns) - most} more" if len(columns) > most else "")


def _pm(estimate: Measured) -> str:
    return f"{number(estimate.value)} ± {number(estimate.se)}"


@figure_style()
def diagnosis_figure(d: Diagnosis) -> Figure:
    """Draw pressure by horizon, signal and dispersion by coordinate, gradient norms by horizon; 17 cm wide."""
    figure = Figure(figsize=(WIDTH, 0.78 * WIDTH), dpi=200)
    (volume, signal), (spread, gradient) = figure.subplots(2, 2)
    _by_step(volume, d.pressure_open_loop, _ORANGE, "--", "open loop")
    _by_step(volume, d.pressure_filter, _BLUE, "-", "filter")
    _by_step(volume, d.pressure_one_step, _BLUE, ":", "filter, one step alone")
    volume.set(title="(a) Volume pressure", xlabel="steps ahead", ylabel="d/ds ½ log det Ω  (nats)")

    _by_coordinate(signal, d.columns, d.kappa, _OTHER)
    if np.isfinite(d.kappa_worst):
        signal.axhline(d.kappa_worst, color="black", linestyle=":", label="direction with least signal")
        signal.legend(loc="lower left")
    signal.set(title="(b) Signal in the data", ylabel="κ = 1 − Λ / Var(x)")
    signal.set_ylim(min(0.0, 1.1 * np.nanmin([*d.kappa, d.kappa_worst])), 1.05)

    _by_coordinate(spread, d.columns, d.dispersion, _BLUE, d.dispersion_se)
    spread.axhline(1.0, color="black", linestyle="--", label="as predicted")
    spread.set(title="(c) Squared innovations", ylabel="v² / Ω  (above 1: too sure)")
    spread.legend(loc="lower left")

    _by_step(gradient, d.gradient_open_loop, _ORANGE, "--", "open loop")
    _by_step(gradient, d.gradient_filter, _BLUE, "-", "filter")
    _by_step(gradient, d.gradient_chain, "black", ":", "product of factors")
    gradient.set(title="(d) Gradients through time", xlabel="steps", ylabel="‖∂z(t) / ∂z(0)‖", yscale="log")
    for axis in (volume, spread):
        axis.set_ylim(bottom=0.0)
    for axis in (volume, gradient):
        axis.legend()
    return figure


def _by_step(axis: Axes, values: Sequence[float], colour: str, style: str, label: str) -> None:
    few = "." if len(values) < 4 else None  # a line of one point is invisible
    axis.plot(np.arange(1, len(values) + 1), values, color=colour, linestyle=style, marker=few, label=label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _by_coordinate(
    axis: Axes, columns: Sequence[str], values: Sequence[float], colour: str, errors: Sequence[float] | None = None
) -> None:
    """Draw points with two standard errors; names below while there is room for them."""
    where = np.arange(1, len(columns) + 1)
    bars = None if errors is None else 2.0 * np.nan_to_num(np.asarray(errors))
    axis.errorbar(where, values, bars, fmt="o", color=colour, markersize=4, capsize=2)
    if len(columns) <= 8 and max(map(len, columns)) <= 8:
        axis.set_xticks(where, columns, parse_math=False)
        axis.set_xlim(0.5, len(columns) + 0.5)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("coordinate")


def log_table(entries: Sequence[Entry]) -> Table:
    """Set score and losses in columns, one row per entry."""
    rows = [[str(e.update), e.score, *[m.value for m in e.losses.values()]] for e in entries]
    note = (
        "S_H: the run's own objective on fixed windows. D: certification losses. Lower is better in every column. "
        "D_stsp is the paper's, by histograms up to three coordinates and by mixtures beyond; certificates of a fit "
        "have kernel densities."
    )
    return Table("Score and certification losses", ("update", "S_H", *entries[0].losses), rows, note=note)


def describe_gaps(entries: Sequence[Entry], *, significance: float = 2.0) -> list[str]:
    """Write what happened over the whole run, and in which steps a DPC gap opened."""
    if len(entries) < 2:
        return ["Two entries are needed to speak of a step; log more often."]
    first, last = entries[0], entries[-1]
    improved = last.score < first.score
    moved = "improved" if improved else "did not improve"
    lines = [f"S_H {moved}: {first.score:.4f} -> {last.score:.4f} over {last.update - first.update} updates."]
    if whole := overall_gaps(entries, significance=significance):
        losses = ", ".join(f"{g.loss} by {g.loss_change:.3f}" for g in whole)
        lines.append(f"DPC gap over the whole run: S_H fell while these rose: {losses}.")
    elif improved:
        rise = f"no certification loss rose by more than {significance:g} standard errors"
        lines.append(f"No DPC gap over the whole run: {rise}.")
    else:
        worse = [n for n, m in last.losses.items() if m.value > first.losses[n].value]
        tail = f" although {', '.join(worse)} rose" if worse else ""
        lines.append(f"No DPC gap by definition 1: the score itself did not improve{tail}.")
    return lines + [
        f"updates {gap.before}-{gap.after}: S_H {gap.score_change:+.4f}, {gap.loss} {gap.loss_change:+.3f} "
        f"(± {gap.loss_change_se:.3f})"
        for gap in find_gaps(entries, significance=significance)
    ]


@figure_style()
def tradeoff_figure(entries: Sequence[Entry], *, significance: float = 2.0) -> Figure:
    """Draw S_H and each D along the run with gaps shaded, and below each D against S_H with gap steps in orange."""
    names = list(entries[0].losses)
    gaps = find_gaps(entries, significance=significance)
    updates, scores = [e.update for e in entries], [e.score for e in entries]
    figure = Figure(figsize=(2.5 * max(len(names), 2), 5.0))
    axes = figure.subplots(2, max(len(names), 2), squeeze=False)
    for column, name in enumerate(names):
        opened = {(gap.before, gap.after) for gap in gaps if gap.loss == name}
        values, errors = np.array([e.losses[name] for e in entries]).T
        shown = np.where(np.isfinite(values), values, np.nan)
        above, below = axes[:, column]
        above.plot(updates, shown, color="black", marker="o", markersize=3, label="D")
        above.fill_between(updates, shown - errors, shown + errors, color="black", alpha=0.2, linewidth=0)
        for step in sorted(opened):
            above.axvspan(*step, color=_ORANGE, alpha=0.2, linewidth=0)
        above.set(title=name, xlabel="update", ylabel="" if column else "D (solid)")
        twin = above.twinx()
        twin.plot(updates, scores, color=_BLUE, linestyle="--", label="S_H")
        twin.tick_params(axis="y", colors=_BLUE)
        if column == len(names) - 1:
            twin.set_ylabel("$S_H$ (dashed)", color=_BLUE)
        _draw_steps(below, list(zip(scores, shown, strict=True)), [step in opened for step in pairwise(updates)])
        below.set(xlabel="$S_H$", ylabel="" if column else "D")
    for axis in axes[:, len(names) :].ravel():
        axis.axis("off")
    legend = "Orange: steps in which $S_H$ fell while D rose (definition 1). Blue dot: before the first update."
    figure.supxlabel(legend, fontsize=9)
    return figure


def _draw_steps(axis: Axes, points: list[tuple[float, float]], are_gaps: list[bool]) -> None:
    """Draw an arrow from each entry to the next."""
    for (start, end), is_gap in zip(pairwise(points), are_gaps, strict=True):
        if np.isfinite([start[1], end[1]]).all():
            # Without shrinking: matplotlib fails on an arrow that is shorter than its shrunk ends.
            look = {"color": _ORANGE, "linewidth": 1.3} if is_gap else {"color": "0.5", "linewidth": 0.8}
            arrow = {"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0, **look}
            axis.annotate("", end, start, arrowprops=arrow, annotation_clip=True)
    axis.plot(*zip(*points, strict=True), ".", color="black", markersize=3)
    axis.plot(*points[0], "o", color=_BLUE, markersize=5)
