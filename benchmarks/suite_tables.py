"""The tables of the development suite: forecasts and free runs by case, and how many cases pass each demand."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kaffee.records import read_json
from kaffee.tables import Table, number

OUTPUT = Path(__file__).parent.parent / "results" / "suite"
BASELINES = "baselines"
SIMPLE = ("var", "climatology")
"""What a fit must not be worse than."""
OTHERS = ("var", "climatology", "seasonal", "persistence", "local_linear", "esn")
HORIZONS, JUDGED = (1, 4, 16, 64), (1, 4, 16)
LOW, HIGH = 0.80, 0.96
ERRORS, ALWAYS_WORSE = 2.0, 1.0
"""Standard errors, and nats, by which something is worse."""
MANY_ROWS, LONG_ROWS = 1000, 5000
QUICK = {"fmri_like": 60.0, "seasonal_600": 60.0, "eeg64_like": 600.0}
"""Seconds that a fit may take."""
MOST_MEMORY = 4096.0

Record = dict[str, Any]


def result_path(case: str, seed: int, arm: str) -> Path:
    """Where a result is kept."""
    return OUTPUT / f"{case}-{seed}-{arm}.json"


def read_results() -> list[Record]:
    """Read all results."""
    return [read_json(path, "result") for path in sorted(OUTPUT.glob("*.json"))]


class Tables(NamedTuple):
    """Several tables that are shown together."""

    tables: tuple[Table, ...]

    def __rich_console__(self, *_: Any) -> Iterator[Table]:
        yield from self.tables

    def to_markdown(self) -> str:
        """Render as Markdown, each table under its title."""
        return "\n".join(f"**{table.title}**\n\n{table.to_markdown()}" for table in self.tables)


class Outcome(NamedTuple):
    """A result of an arm beside the baselines of the same case and seed."""

    arm: Record
    baselines: Record

    @property
    def worked(self) -> bool:
        """Whether there is a fit at all."""
        return "failed" not in self.arm

    def horizons(self) -> list[str]:
        """Horizons that were scored."""
        return [str(h) for h in HORIZONS if str(h) in self.baselines["methods"]["climatology"]]

    def worse_by(self, h: str, methods: Sequence[str] = SIMPLE) -> tuple[float, float]:
        """NLL less that of the best of some methods, and its standard error from blocks; infinite without a score."""
        scored = [self.baselines["methods"][name][h] for name in methods]
        best = min(scored, key=lambda one: np.inf if one["nll"] is None else one["nll"])
        own = self.arm["forecasts"][h] if self.worked else None
        if own is None or own["nll"] is None or None in own["blocks"]:
            return np.inf, 0.0
        if best["nll"] is None:
            return -np.inf, 0.0
        difference = np.array(own["blocks"]) - np.array(best["blocks"])
        return own["nll"] - best["nll"], float(difference.std(ddof=1) / len(difference) ** 0.5)

    def is_worse(self, h: str) -> bool:
        """Whether the NLL is worse than VAR's or the climate's, beyond chance.

        Bands that are much too narrow have a few huge scores, whose spread would excuse any gap: a nat is worse always.
        """
        gap, error = self.worse_by(h)
        return gap > min(ERRORS * error, ALWAYS_WORSE)

    def is_covered(self, h: str, chance: float = 0.0) -> bool:
        """Whether 90 % bands cover 0.80 to 0.96, up to so many standard errors."""
        if not self.worked:
            return False
        found = self.arm["forecasts"][h]
        slack = chance * (found["coverage_error"] or 0.0)
        return LOW - slack <= found["coverage"] <= HIGH + slack

    def beats(self, method: str) -> bool:
        """Whether the NLL, mean over horizons, is lower than that of a method."""
        return self.worked and sum(self.worse_by(h, [method])[0] for h in self.horizons()) < 0.0


class Demand(NamedTuple):
    """Something that every case it applies to must show."""

    text: str
    applies: Callable[[Outcome], bool]
    holds: Callable[[Outcome], bool]


def _runs(outcome: Outcome) -> Record:
    free = outcome.arm.get("free_runs", {})
    return free if "core" in free else {}


def _calm(outcome: Outcome) -> bool:
    """Whether noise takes the free run no farther from the data than the linear model is."""
    runs = _runs(outcome)
    noisy, linear = (np.inf if runs[name]["d_stsp"] is None else runs[name]["d_stsp"] for name in ("noisy", "linear"))
    return bool(noisy <= linear and np.isfinite(noisy))


def _everywhere(one: Outcome, check: Callable[[str], bool], horizons: Iterable[int] = HORIZONS) -> bool:
    return one.worked and all(check(h) for h in one.horizons() if int(h) in horizons)


DEMANDS = (
    Demand("a fit at all", lambda one: True, lambda one: one.worked),
    Demand("NLL at 1 step no worse than VAR and climatology", lambda one: True, lambda one: not one.is_worse("1")),
    Demand(
        "the same at 1, 4, 16 and 64 steps",
        lambda one: True,
        lambda one: _everywhere(one, lambda h: not one.is_worse(h)),
    ),
    *(
        Demand(
            f"NLL better than {name}, mean over horizons, 1000 rows or more (2/3 needed)",
            lambda one: one.arm["rows"] >= MANY_ROWS,
            lambda one, name=name: one.beats(name),  # type: ignore[misc]
        )
        for name in OTHERS
    ),
    Demand(
        "90 % bands cover 0.80 to 0.96 at 1, 4, 16 steps",
        lambda one: True,
        lambda one: _everywhere(one, one.is_covered, JUDGED),
    ),
    Demand(
        "the same up to two standard errors",
        lambda one: True,
        lambda one: _everywhere(one, lambda h: one.is_covered(h, ERRORS), JUDGED),
    ),
    Demand(
        "90 % bands cover 0.80 to 0.96 in rows 2 to 20",
        lambda one: True,
        lambda one: one.worked and LOW <= one.arm["cold_start"]["coverage"] <= HIGH,
    ),
    Demand(
        "no lost run with noise off or on, 5000 rows or more",
        lambda one: one.arm["rows"] >= LONG_ROWS and bool(_runs(one)),
        lambda one: _runs(one)["core"]["lost"] + _runs(one)["noisy"]["lost"] == 0,
    ),
    Demand("D_stsp with noise at most the linear model's", lambda one: "linear" in _runs(one), _calm),
    Demand(
        "fit in a minute (fmri_like, seasonal_600), ten (eeg64_like)",
        lambda one: one.arm["case"] in QUICK,
        lambda one: one.worked and one.arm["seconds"] <= QUICK[one.arm["case"]],
    ),
    Demand("peak memory below 4 GB", lambda one: one.worked, lambda one: one.arm["peak_mb"] <= MOST_MEMORY),
)


def suite_tables(records: list[Record], cases: Sequence[str]) -> Tables:
    """Make the tables of all results for some cases."""
    baselines = {(one["case"], one["seed"]): one for one in records if one["arm"] == BASELINES}
    arms = sorted({one["arm"] for one in records} - {BASELINES}, key=lambda name: (name != "before", name))
    outcomes = {
        (case, arm): [
            Outcome(one, baselines[case, one["seed"]])
            for one in records
            if one["case"] == case and one["arm"] == arm and (case, one["seed"]) in baselines
        ]
        for case in cases
        for arm in arms
    }
    return Tables(
        (
            _summary(outcomes, cases, arms),
            _forecast_table(outcomes, baselines, cases, arms),
            _run_table(outcomes, cases, arms),
        )
    )


def _summary(outcomes: dict[tuple[str, str], list[Outcome]], cases: Sequence[str], arms: Sequence[str]) -> Table:
    rows = []
    for demand in DEMANDS:
        cells = []
        for arm in arms:
            asked = [one for case in cases for one in outcomes[case, arm] if demand.applies(one)]
            held = [one for one in asked if demand.holds(one)]
            failed = sorted({one.arm["case"] for one in asked} - {one.arm["case"] for one in held})
            cells += [f"{len(held)} of {len(asked)}", ", ".join(failed) if len(failed) <= 8 else f"{len(failed)} cases"]
        rows.append([demand.text, *cells])
    columns = ["demand", *(name for arm in arms for name in (arm, f"{arm}: fail"))]
    note = "Counted over cases and seeds. Worse: by more than two standard errors of the paired difference, or one nat."
    return Table("The suite: how many pass", columns, rows, note=note)


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean over seeds; None (no number, as of a diverged forecast) if one is missing."""
    every = list(values)
    return None if not every or any(v is None for v in every) else statistics.fmean(every)  # type: ignore[arg-type]


def _forecast_table(
    outcomes: dict[tuple[str, str], list[Outcome]],
    baselines: dict[tuple[str, int], Record],
    cases: Sequence[str],
    arms: Sequence[str],
) -> Table:
    rows = []
    for case in cases:
        known = [one for (name, _), one in sorted(baselines.items()) if name == case]
        label = f"{case} ({known[0]['rows']} x {known[0]['coordinates']})" if known else case
        for h in (str(h) for h in HORIZONS if known and str(h) in known[0]["methods"]["climatology"]):
            nll, cover = [], []
            for arm in arms:
                found = [one for one in outcomes[case, arm] if one.worked]
                value = number(_mean(one.arm["forecasts"][h]["nll"] for one in found), 2)
                nll.append(value + "*" * any(one.is_worse(h) for one in found))
                value = number(_mean(one.arm["forecasts"][h]["coverage"] for one in found), 2)
                outside = any(not one.is_covered(h) for one in found) and int(h) in JUDGED
                cover.append(value + "*" * outside)
            linear = [one.arm["linear"] for arm in arms[-1:] for one in outcomes[case, arm] if one.arm.get("linear")]
            nll.append(number(_mean(one[h]["nll"] for one in linear), 2))
            nll += [number(_mean(one["methods"][name][h]["nll"] for one in known), 2) for name in OTHERS]
            rows.append([label, h, *nll, *cover])
    columns = ["case", "steps", *arms, "linear", *OTHERS, *(f"cover {arm}" for arm in arms)]
    note = (
        "NLL, means over seeds, in units of the training part's spread, held-out rows, and coverage of 90 % bands. *: "
        "worse than the better of var and climatology by more than two standard errors or one nat, or coverage outside "
        "0.80 to 0.96 (1, 4, 16 steps), for at least one seed. linear: the certificate's, of the last arm."
    )
    return Table("Forecasts 1, 4, 16 and 64 steps ahead", columns, rows, note=note)


def _run_table(outcomes: dict[tuple[str, str], list[Outcome]], cases: Sequence[str], arms: Sequence[str]) -> Table:
    rows = []
    for case, arm in ((case, arm) for case in cases for arm in arms):
        found = [one for one in outcomes[case, arm] if one.worked]
        if not found:
            failed = outcomes[case, arm][0].arm["failed"] if outcomes[case, arm] else None
            rows += [[case, arm, *[None] * 12, failed]] if failed else []
            continue
        runs = [_runs(one) for one in found if _runs(one)]

        def of(model: str, key: str, runs: list[Record] = runs) -> float | None:
            return _mean(run[model][key] for run in runs if model in run)

        lost = [
            f"{sum(run[m]['lost'] for run in runs)} of {sum(run['runs'] for run in runs)}" for m in ("core", "noisy")
        ]
        rows.append(
            [
                case,
                arm,
                *(number(of(*each), 2) for each in (("core", "d_stsp"), ("noisy", "d_stsp"), ("linear", "d_stsp"))),
                *(number(of(*each), 2) for each in (("core", "d_h"), ("noisy", "d_h"), ("linear", "d_h"))),
                number(of("floor", "d_stsp"), 2),
                *(lost if runs else ["–", "–"]),
                number(_mean(one.arm["cold_start"]["coverage"] for one in found), 2)
                + "*" * any(not LOW <= one.arm["cold_start"]["coverage"] <= HIGH for one in found),
                *(f"{statistics.fmean(one.arm[key] for one in found):.0f}" for key in ("seconds", "peak_mb")),
                found[0].arm["core"] + f" {found[0].arm['latent_dim']}",
            ]
        )
    columns = ["case", "arm", "D_stsp core", "noisy", "linear", "D_H core", "noisy", "linear", "D_stsp data"]
    columns += ["lost core", "lost noisy", "rows 2-20", "seconds", "MB", "model"]
    note = (
        "20 free runs of 20 000 steps per seed against held-out rows; lost: diverged, or trapped in a part of the "
        "attractor. D_stsp data: training pieces. rows 2-20: coverage of 90 % bands after a cold start. "
        "Seconds and memory of the fit alone. –: fewer than 200 held-out rows without gaps, or all runs diverged."
    )
    return Table("Free runs and time", columns, rows, note=note)
