"""What a model is good for, in plain words, from its verdicts and scores; and what it is not."""

from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

from kaffee.certification.forecasts import NUM_BLOCKS, SURROGATE, Scores
from kaffee.certification.verdicts import Status, Verdict
from kaffee.metrics.calibration import coverage_limits
from kaffee.records import read_json

COVERED, LEAST_GAIN = (0.8, 0.96), 0.01
"""Share of readings that 90 % bands may cover and still be of use, and nats below which a gain is none."""


@dataclass(frozen=True)
class Purpose:
    """What a model is good for.

    Attributes:
        filtering: Whether one-step bands mean what they say and nothing predictable is left, by the worse verdict.
        horizon, time: Steps, and units of time, up to which forecasts beat climatology and bands cover; 0 for none.
        longest: The longest horizon that was scored.
        with_noise, without_noise: Verdicts on free runs.
        sentence: All of it in words.
    """

    filtering: Status
    horizon: int
    time: float
    longest: int
    with_noise: Status
    without_noise: Status
    sentence: str


def find_horizon(scores: Scores) -> int:
    """Find the horizon up to which forecasts beat climatology and 90 % bands cover 80 to 96 % of readings.

    A gain is one beyond its standard error. Bands over few independent readings may cover what chance gives.
    """
    own, reached = scores.methods[SURROGATE], 0
    beside = scores.over_climatology or scores.skill
    for horizon, score, gain in zip(scores.horizons, own, beside, strict=True):
        if not score.num_entries:
            break
        few = 0 < gain.num_blocks < NUM_BLOCKS
        low, high = coverage_limits(0.9, gain.num_blocks, len(own)) if few else COVERED
        covers = min(COVERED[0], low) <= score.coverage_90 <= max(COVERED[1], high)
        least = LEAST_GAIN if isnan(gain.error) else max(LEAST_GAIN, gain.error)
        if not (gain.gain > least and covers):
            break
        reached = horizon
    return reached


def state_purpose(verdicts: tuple[Verdict, ...], scores: Scores | None, dt: float) -> Purpose:
    """State what a model is good for."""
    status = {verdict.name: verdict.status for verdict in verdicts}
    local = [status["calibration"], status["whiteness"]]
    filtering: Status = next((s for s in ("fail", "unknown", "warn") if s in local), "pass")
    horizon = 0 if scores is None else find_horizon(scores)
    longest = 0 if scores is None else max(scores.horizons)
    uses: dict[str, list[str]] = {"pass": [], "warn": [], "fail": [], "unknown": []}
    uses[filtering].append("filtering and smoothing")
    if horizon:
        at_least = "at least " if horizon == longest else ""
        uses["pass"].append(f"forecasts up to {at_least}{_count_steps(horizon)} ({horizon * dt:.3g} units of time)")
        if horizon < longest:
            uses["fail"].append("forecasts beyond that")
    else:
        uses["unknown" if scores is None else "fail"].append("forecasts")
    uses[status["stochastic run"]].append("free runs with noise")
    uses[status["core"]].append("free runs without noise")
    openings = {"pass": "Good for", "warn": "With care", "fail": "Not for", "unknown": "Not known"}
    parts = [f"{openings[s]}: {', '.join(some)}." for s, some in uses.items() if some]
    return Purpose(
        filtering, horizon, horizon * dt, longest, status["stochastic run"], status["core"], sentence=" ".join(parts)
    )


def _count_steps(count: int) -> str:
    return f"{count} step{'s' * (count > 1)}"


def read_purpose(run: str | Path) -> dict[str, Any] | None:
    """Read what the certificate of a run, or of the run that a model's folder is in, says it is good for.

    None if there is no certificate, or one of a version that did not say so.
    """
    folder = Path(run)
    for place in (folder, folder.parent) if (folder.parent / "run.json").exists() else (folder,):
        if (place / "certificate.json").exists():
            purpose: dict[str, Any] | None = read_json(place / "certificate.json", "certificate").get("purpose")
            return purpose
    return None


def remark_forecast(purpose: dict[str, Any], steps: int) -> str:
    """Say what the certificate says about a forecast of so many steps; empty if it is covered."""
    horizon, longest = purpose["horizon"], purpose["longest"]
    if steps <= horizon:
        return ""
    if not horizon:
        return "warning: by its certificate this model's forecasts are no better than climatology, or its bands fail"
    reach = f"up to {_count_steps(horizon)} ({purpose['time']:.3g} units of time)"
    if horizon == longest:
        return f"note: the certificate has checked forecasts {reach}; {_count_steps(steps)} are beyond that"
    return (
        f"warning: by its certificate this model is good for forecasts {reach}; {_count_steps(steps)} are beyond that"
    )


def remark_run(purpose: dict[str, Any], *, noise: bool) -> str:
    """Say what the certificate says about free runs with or without noise; empty if they pass."""
    found = purpose["with_noise" if noise else "without_noise"]
    if found == "pass":
        return ""
    words = {"warn": "with care only", "fail": "not good for them", "unknown": "not known to be good for them"}
    return f"warning: free runs {'with' if noise else 'without'} noise: by its certificate this model is {words[found]}"
