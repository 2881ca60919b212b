"""Axes 2 and 3, free runs with the shell on and off: verdicts on divergence, state space and spectrum."""

from dataclasses import replace

import numpy as np

from kaffee.certification.agreement import Agreement
from kaffee.certification.free_runs import Watched
from kaffee.certification.verdicts import SEVERITY, Finding, Status, Verdict, decisive, graded

# (pass, warn): a check passes up to the first limit and warns up to the second.
# Excess of D_stsp over that of data against data, in units of the excess of the linear model's run.
OCCUPATION = (0.5, 1.0)
# Where that excess is smaller the recording is as good as Gaussian, and this, in nats, is the unit.
LEAST_EXCESS = 0.1
# Excess of D_H over that of data against data; a run at rest has 1.
SPECTRUM = (0.1, 0.25)
# Share of long free runs that may diverge or stay in a part of the attractor before "warn" turns into "fail".
LOST = 0.1


def _unit(found: Agreement) -> float:
    """What the linear model's runs exceed data against data by, in nats."""
    excess = float("nan") if found.linear is None else found.linear.typical.d_stsp - found.floor.d_stsp
    return max(LEAST_EXCESS, excess) if np.isfinite(excess) else LEAST_EXCESS


def _in_units(quantity: str, unit: float) -> str:
    return f"{quantity}, {'linear model' if unit > LEAST_EXCESS else f'{LEAST_EXCESS:g} nats'} = 1"


def _fate(found: Agreement, run: Watched) -> tuple[Finding, str]:
    """What became of the runs, as a number and in words."""
    lost = run.diverged + run.trapped
    share = lost / found.runs
    status: Status = "pass" if share == 0 else "warn" if share <= LOST else "fail"
    # No lost run is no number to show where another one is there.
    used = share / LOST if lost else -np.inf
    finding = Finding(f"free runs of {found.runs} that diverge or are trapped", lost, status, used)
    runs = f"of {found.runs} free runs of {found.steps} steps"
    words = f"{run.diverged} {runs} left the attractor, the first at step {run.first}"
    if not run.diverged:
        words = f"none {runs} left the attractor"
    return finding, f"{words}; {run.trapped} stay in a part of it" if run.trapped else words


def _run_verdict(axis: int, name: str, found: Agreement, run: Watched) -> Verdict:
    rule = (
        "passes if no long free run diverges or stays in a part of the attractor, the median D_stsp exceeds that of "
        f"data against data by at most {OCCUPATION[0]:g} of what the linear model's runs exceed it by, and D_H by at "
        f"most {SPECTRUM[0]:g}, or by what pieces of the data do; warns up to {OCCUPATION[1]:g}, {SPECTRUM[1]:g} and "
        f"{100 * LOST:g} % of the runs"
    )
    fate, words = _fate(found, run)
    if np.isnan(run.typical.d_stsp):
        return Verdict(axis, name, "fail", fate.value, rule, f"{words[0].upper()}{words[1:]}.", fate.quantity)
    if found.linear is None or not found.num_pieces or not np.isfinite(found.linear.typical.d_stsp):
        why = "there is no linear model" if found.num_pieces else "no training piece is as long as the held-out data"
        sentence = f"{words[0].upper()}{words[1:]}; {why} to compare with."
        if fate.status == "pass":
            return Verdict(axis, name, "unknown", None, rule, sentence)
        return Verdict(axis, name, fate.status, fate.value, rule, sentence, fate.quantity)
    unit, floor = _unit(found), found.floor
    excess = (run.typical.d_stsp - floor.d_stsp) / unit
    # Pieces of a recording that drifts differ by anything; that excuses no more than the linear model.
    chance = min((found.floor_highest.d_stsp - floor.d_stsp) / unit, OCCUPATION[1])
    allowed = max(OCCUPATION[0], chance)
    limit = floor.d_stsp + unit * allowed
    what = _in_units("excess of D_stsp", unit)
    parts = [fate, Finding(what, excess, graded(excess, OCCUPATION, chance), excess / allowed)]
    rhythm = "no spectrum, since the data have too many gaps for one"
    if found.spectra:
        spectral_chance = min(found.floor_highest.d_h - floor.d_h, SPECTRUM[1])
        other, allowed = run.typical.d_h - floor.d_h, max(SPECTRUM[0], spectral_chance)
        status = graded(other, SPECTRUM, spectral_chance)
        parts.append(Finding("excess of D_H over data against data", other, status, other / allowed))
        most = floor.d_h + allowed
        rhythm = f"D_H {run.typical.d_h:.2f} (data against data {floor.d_h:.2f}, limit {most:.2f})"
    sentence = (
        f"D_stsp {run.typical.d_stsp:.2f}, over runs {run.lowest:.2f} to {run.highest:.2f} (data against data "
        f"{floor.d_stsp:.2f}, linear model {found.linear.typical.d_stsp:.2f}, limit {limit:.2f}), {rhythm}; {words}."
    )
    decided = decisive(parts)
    return Verdict(axis, name, decided.status, decided.value, rule, sentence, decided.quantity)


def stochastic_verdict(found: Agreement) -> Verdict:
    """Free runs with the shell on."""
    return _run_verdict(2, "stochastic run", found, found.stochastic)


def core_verdict(found: Agreement) -> Verdict:
    """Free runs with the shell off, beside the prior's."""
    prior = found.prior_core
    verdict = _run_verdict(3, "core", found, found.core)
    words = [verdict.sentence]
    if found.exponents is not None:
        lambda_1, error = float(found.exponents.values[0]), float(found.exponents.errors[0])
        words.append(f"Its largest Lyapunov exponent is {lambda_1:.3g} ± {error:.2g} per unit of time.")
    if prior is not None and np.isfinite(prior.typical.d_stsp):
        rhythm = f", D_H {prior.typical.d_h:.2f}" if found.spectra else ""
        words.append(f"The prior's core: D_stsp {prior.typical.d_stsp:.2f}{rhythm}.")
        above = (found.core.typical.d_stsp - prior.typical.d_stsp) / _unit(found)
        if above > OCCUPATION[0]:
            # A better likelihood bought with worse dynamics, the gap that the paper is about.
            words.append("Probabilistic training has made it worse.")
            if SEVERITY[verdict.status] < SEVERITY["warn"]:
                what = _in_units("D_stsp above the prior's", _unit(found))
                verdict = replace(verdict, status="warn", value=above, quantity=what)
    return replace(verdict, sentence=" ".join(words))
