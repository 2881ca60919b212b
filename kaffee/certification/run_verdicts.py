"""Axes 2 and 3, free runs with the shell on and off: verdicts on divergence, state space and spectrum."""

import numpy as np

from kaffee.certification.agreement import Agreement
from kaffee.certification.free_runs import Distance
from kaffee.certification.verdicts import Status, Verdict, graded, worst

# (pass, warn): a check passes up to the first limit and warns up to the second.
# Excess of D_stsp over that of data against data, in units of the excess of the linear model's run.
OCCUPATION = (0.5, 1.0)
# Where that excess is smaller the recording is as good as Gaussian, and this, in nats, is the unit.
LEAST_EXCESS = 0.1
# Excess of D_H over that of data against data; a run at rest has 1.
SPECTRUM = (0.1, 0.25)
# Share of long free runs that may leave before "warn" turns into "fail".
DIVERGED = 0.1


def _unit(found: Agreement) -> float:
    """What the linear model's run exceeds data against data by, in nats."""
    excess = float("nan") if found.linear is None else found.linear.d_stsp - found.floor.d_stsp
    return max(LEAST_EXCESS, excess) if np.isfinite(excess) else LEAST_EXCESS


def _run_verdict(axis: int, name: str, found: Agreement, run: Distance, left: int, first: int, trapped: int) -> Verdict:
    rule = (
        "passes if no long free run diverges or gets trapped, D_stsp exceeds that of data against data by at most "
        f"{OCCUPATION[0]:g} of what the linear model's run exceeds it by, and D_H by at most {SPECTRUM[0]:g}; warns up "
        f"to {OCCUPATION[1]:g}, {SPECTRUM[1]:g} and {100 * DIVERGED:g} % diverged or trapped"
    )
    runs = found.divergence
    share = (left + trapped) / runs.runs
    status: Status = "pass" if share == 0 else "warn" if share <= DIVERGED else "fail"
    if left:
        words = f"{left} of {runs.runs} free runs of {runs.steps} steps left the attractor, the first at step {first}"
    else:
        words = f"none of {runs.runs} free runs of {runs.steps} steps left the attractor"
    if trapped:
        words += f"; {trapped} of {runs.runs} are trapped in a small part of it"
    if np.isnan(run.d_stsp):
        sentence = f"{words[0].upper()}{words[1:]}; so did the one that is compared with the held-out data."
        return Verdict(axis, name, "fail", None, rule, sentence)
    if found.linear is None or not found.num_pieces or not np.isfinite(found.linear.d_stsp):
        why = "there is no linear model" if found.num_pieces else "no training piece is as long as the held-out data"
        known: Status = status if status != "pass" else "unknown"
        return Verdict(axis, name, known, None, rule, f"{words[0].upper()}{words[1:]}; {why} to compare with.")
    unit = _unit(found)
    excess = (run.d_stsp - found.floor.d_stsp) / unit
    chance = (found.floor_highest.d_stsp - found.floor.d_stsp) / unit
    parts = [status, graded(excess, OCCUPATION, chance)]
    if found.spectra:
        spectral, spectral_chance = run.d_h - found.floor.d_h, found.floor_highest.d_h - found.floor.d_h
        parts.append(graded(spectral, SPECTRUM, spectral_chance))
        rhythm = f"D_H {run.d_h:.2f} (data against data {found.floor.d_h:.2f})"
    else:
        rhythm = "no spectrum, since the data have too many gaps for one"
    sentence = (
        f"D_stsp {run.d_stsp:.2f} (data against data {found.floor.d_stsp:.2f}, linear model "
        f"{found.linear.d_stsp:.2f}), {rhythm}; {words}."
    )
    return Verdict(axis, name, worst(parts), excess, rule, sentence)


def stochastic_verdict(found: Agreement) -> Verdict:
    """The shell-on free run."""
    runs = found.divergence
    watched = runs.stochastic, runs.first_stochastic, runs.trapped_stochastic
    return _run_verdict(2, "stochastic run", found, found.stochastic, *watched)


def core_verdict(found: Agreement) -> Verdict:
    """The shell-off free run, beside its prior's."""
    runs, prior = found.divergence, found.prior_core
    verdict = _run_verdict(3, "core", found, found.core, runs.core, runs.first_core, runs.trapped_core)
    status, words = verdict.status, [verdict.sentence]
    if found.exponents is not None:
        lambda_1, error = float(found.exponents.values[0]), float(found.exponents.errors[0])
        words.append(f"Its largest Lyapunov exponent is {lambda_1:.3g} ± {error:.2g} per unit of time.")
    if prior is not None and np.isfinite(prior.d_stsp):
        rhythm = f", D_H {prior.d_h:.2f}" if found.spectra else ""
        words.append(f"The prior's core: D_stsp {prior.d_stsp:.2f}{rhythm}.")
        if found.core.d_stsp - prior.d_stsp > OCCUPATION[0] * _unit(found):
            # A better likelihood bought with worse dynamics, the gap that the paper is about.
            status = worst([status, "warn"])
            words.append("Probabilistic training has made it worse.")
    return Verdict(3, "core", status, verdict.value, verdict.rule, " ".join(words))
