"""What to do about verdicts that do not pass: remedies that fit the fault.

A model that has learnt its training rows by heart fails the same checks as one that has learnt too little. The first
needs less freedom, the second more, so that this is settled before anything is advised. A linear model that a fit has
kept has its own faults: what was trained beside it says nothing about it.
"""

from typing import Any

import numpy as np

from kaffee.certification.certificate import Certificate
from kaffee.metrics.scores import NLL_UNIT

_GAP = 0.3
"""Nats per reading by which held-out rows may be worse than training windows: weather, not memory."""
_LAST = 0.1
"""The part of the updates over which the loss of training is averaged."""
_WORSE = 1.5
"""How many times as far from the data as the prior's a core is that training has spoilt."""


def suggest_remedies(certificate: Certificate) -> list[str]:
    """Say what to change in the fit, a sentence for each fault; nothing if all known checks pass."""
    failed = {verdict.name for verdict in certificate.verdicts if verdict.status in ("warn", "fail")}
    rungs = certificate.page.get("rungs") or {}
    if rungs.get("chosen") in ("linear", "incontext") and "adapted" not in rungs:
        return _mend_simple(certificate, failed, rungs)
    remedies = []
    signs = _find_overfitting(certificate) if failed else ""
    if signs:
        remedies.append(
            f"The model knows its training rows by heart ({signs}). Give it less freedom: a smaller core "
            "(core.latent_dim, core.num_gates), fewer updates (pretraining.schedule.num_updates, "
            "adaptation.schedule.num_updates), --method frozen_core, or more rows. A larger core or longer training "
            "makes it worse."
        )
    else:
        remedies += _learn_more(certificate, failed)
    return [*remedies, *_mend_free_runs(certificate, failed, overfitted=bool(signs))]


def _find_overfitting(certificate: Certificate) -> str:
    """Describe the signs that a model fits its training rows better than the system behind them; empty without any."""
    residuals, about = certificate.residuals, certificate.about
    if residuals is None:
        return ""
    signs = []
    trained = certificate.training[-1].values if certificate.training else np.zeros(0)
    end = trained[len(trained) - max(int(_LAST * len(trained)), 1) :]
    end = end[np.isfinite(end)]
    if len(end) and residuals.nll_standard - end.mean() > _GAP:
        signs.append(f"NLL {end.mean():.2f} on training windows, {residuals.nll_standard:.2f} held out, {NLL_UNIT}")
    weights, readings = about.get("weights", 0), about["train"]["steps"] * len(about["columns"])
    # Few readings alone are no fault: the verdicts may all the same be about something else.
    if weights > readings and (signs or residuals.nis > residuals.nis_band[1]):
        signs.append(f"{weights} weights for {readings} training readings")
    if signs and residuals.nis > residuals.nis_band[1]:
        signs.append("bands too narrow on held-out rows")
    return "; ".join(signs)


def _learn_more(certificate: Certificate, failed: set[str]) -> list[str]:
    """Advise on one-step predictions of a model that does not overfit."""
    remedies = []
    if "calibration" in failed and certificate.residuals is not None:
        width = "narrow" if certificate.residuals.nis > 1.0 else "wide"
        remedies.append(f"Bands are too {width}: more updates of the shell alone (adaptation.calibration).")
    if failed & {"whiteness", "skill"}:
        remedies.append(
            "Readings hold more than the model takes from them: a larger core (core.latent_dim) or more pretraining "
            "(pretraining.schedule.num_updates)."
        )
    return remedies


def _mend_simple(certificate: Certificate, failed: set[str], rungs: dict[str, Any]) -> list[str]:
    """Advise on a linear model or a map in context, whose size and noise held-back rows have chosen."""
    remedies, linear = [], rungs["chosen"] == "linear"
    other = "--rung auto tries an AL-RNN as well"
    if "alrnn" in rungs:
        other = "--rung alrnn keeps the AL-RNN, which was no better on held-back rows; more rows may make it so"
    if "calibration" in failed and certificate.residuals is not None:
        width = "narrow" if certificate.residuals.nis > 1.0 else "wide"
        remedies.append(f"Bands are too {width}: held-out rows are not like those that set the noise. Fit more rows.")
    if failed & {"whiteness", "skill"}:
        what = "linear model" if linear else "map of the rows that it has read"
        remedies.append(f"Readings hold more than this {what} takes from them: {other}.")
    if failed & {"core", "stochastic run"} and not linear:
        remedies.append(f"A map in context knows the attractor only where rows were: bring more of them; or {other}.")
    elif failed & {"core", "stochastic run"}:
        remedies.append(
            "A linear model comes to rest without noise, and is Gaussian with it: for free runs take those with noise, "
            f"as far as they pass; {other}."
        )
    return remedies


def _mend_free_runs(certificate: Certificate, failed: set[str], *, overfitted: bool) -> list[str]:
    """Advise on free runs: what training has spoilt, what the prior lacked, and what only noise breaks."""
    free = certificate.agreement
    if free is None:
        return []
    if "core" in failed:
        prior = free.prior_core
        if prior is not None and free.core.typical.d_stsp > _WORSE * prior.typical.d_stsp:
            return [
                "Probabilistic training has spoilt the core: longer windows (adaptation.scored), a lower rate "
                "(adaptation.optimiser.learning_rate), another --seed, or --method frozen_core."
            ]
        if not overfitted:
            return [
                "The core was not right before probabilistic training: more pretraining "
                "(pretraining.schedule.num_updates), or another pretraining.forcing.interval."
            ]
    elif "stochastic run" in failed:
        return ["The core runs well alone, its noise does not: kaffee run-free --no-shell leaves the noise out."]
    return []
