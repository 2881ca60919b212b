"""What a diagnosis says: a table, sentences, four panels."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kaffee.report.style import COLOURS, figure_style
from kaffee.tables import Table, number
from kaffee.theory.attenuation import Estimate
from kaffee.theory.diagnosis import Diagnosis
from kaffee.theory.dpc import Entry, Gap, find_gaps, overall_gaps

FILTER, OPEN_LOOP, OTHER = COLOURS["kaffee"], COLOURS["core_collapse"], COLOURS["frozen_core"]
WIDTH = 17.0 / 2.54


def diagnosis_table(found: Diagnosis) -> Table:
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


def describe_diagnosis(found: Diagnosis) -> list[str]:
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


def diagnosis_figure(found: Diagnosis) -> Figure:
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


# What a gap log says: a table and a picture of the trade-off.


SCORE, GAP = COLOURS["kaffee"], COLOURS["core_collapse"]


def log_table(entries: Sequence[Entry], *, title: str = "Score and certification losses") -> Table:
    """One row per entry."""
    names = list(entries[0].losses)
    rows = [[str(e.update), e.score, *[m.value for m in e.losses.values()]] for e in entries]
    note = "S_H: the run's own objective on fixed windows. D: certification losses. Lower is better in every column."
    return Table(title, ("update", "S_H", *names), rows, note=note)


def describe_gaps(entries: Sequence[Entry], *, significance: float = 2.0) -> list[str]:
    """Sentences: what happened over the whole run, and in which steps a DPC gap opened."""
    if len(entries) < 2:
        return ["Two entries are needed to speak of a step; log more often."]
    first, last = entries[0], entries[-1]
    moved = "improved" if last.score < first.score else "did not improve"
    lines = [f"S_H {moved}: {first.score:.4f} -> {last.score:.4f} over {last.update - first.update} updates."]
    whole = overall_gaps(entries, significance=significance)
    if whole:
        losses = ", ".join(f"{g.loss} by {g.loss_change:.3f}" for g in whole)
        lines.append(f"DPC gap over the whole run: S_H fell while these rose: {losses}.")
    elif last.score < first.score:
        lines.append(
            f"No DPC gap over the whole run: no certification loss rose by more than {significance:g} standard errors."
        )
    else:
        worse = [n for n, m in last.losses.items() if m.value > first.losses[n].value]
        tail = f" although {', '.join(worse)} rose" if worse else ""
        lines.append(f"No DPC gap by definition 1: the score itself did not improve{tail}.")
    for gap in find_gaps(entries, significance=significance):
        lines.append(
            f"updates {gap.before}-{gap.after}: S_H {gap.score_change:+.4f}, {gap.loss} {gap.loss_change:+.3f} "
            f"(± {gap.loss_change_se:.3f})"
        )
    return lines


def tradeoff_figure(entries: Sequence[Entry], *, significance: float = 2.0) -> Figure:
    """Above: S_H and each D along the run, gaps shaded. Below: each D against S_H, gap steps as red arrows."""
    names = list(entries[0].losses)
    gaps = find_gaps(entries, significance=significance)
    updates = [e.update for e in entries]
    scores = [e.score for e in entries]
    with figure_style():
        figure = Figure(figsize=(2.5 * max(len(names), 2), 5.0))
        axes = figure.subplots(2, max(len(names), 2), squeeze=False)
        for column, name in enumerate(names):
            mine = [gap for gap in gaps if gap.loss == name]
            values = np.array([e.losses[name].value for e in entries])
            errors = np.array([e.losses[name].se for e in entries])
            shown = np.where(np.isfinite(values), values, np.nan)
            above, below = axes[0, column], axes[1, column]
            above.plot(updates, shown, color="black", marker="o", markersize=3, label="D")
            above.fill_between(updates, shown - errors, shown + errors, color="black", alpha=0.2, linewidth=0)
            for gap in mine:
                above.axvspan(gap.before, gap.after, color=GAP, alpha=0.2, linewidth=0)
            above.set_title(name)
            above.set_xlabel("update")
            twin = above.twinx()
            twin.plot(updates, scores, color=SCORE, linestyle="--", label="S_H")
            twin.tick_params(axis="y", colors=SCORE)
            if column == 0:
                above.set_ylabel("D (solid)")
            if column == len(names) - 1:
                twin.set_ylabel("$S_H$ (dashed)", color=SCORE)
            _tradeoff(below, scores, shown, mine, updates)
            below.set_xlabel("$S_H$")
            if column == 0:
                below.set_ylabel("D")
        for axis in axes[:, len(names) :].ravel():
            axis.axis("off")
        figure.supxlabel(
            "Orange: steps in which $S_H$ fell while D rose (definition 1). Blue dot: before the first update.",
            fontsize=9,
        )
        return figure


def _tradeoff(axis: Axes, scores: Sequence[float], values: np.ndarray, gaps: Sequence[Gap], updates: list[int]) -> None:
    opened = {(gap.before, gap.after) for gap in gaps}
    for i in range(len(scores) - 1):
        if not np.isfinite(values[i : i + 2]).all():
            continue
        colour = GAP if (updates[i], updates[i + 1]) in opened else "0.5"
        axis.annotate(
            "",
            xy=(scores[i + 1], values[i + 1]),
            xytext=(scores[i], values[i]),
            # Without shrinking: matplotlib fails on an arrow that is shorter than its shrunk ends.
            arrowprops={
                "arrowstyle": "->",
                "color": colour,
                "linewidth": 1.3 if colour == GAP else 0.8,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            annotation_clip=True,
        )
    axis.plot(scores, values, ".", color="black", markersize=3)
    axis.plot(scores[0], values[0], "o", color=SCORE, markersize=5)
