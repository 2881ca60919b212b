"""The tables of zero-shot forecasts: what was asked for, medians over systems, every system, and free runs."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.suite_tables import Tables
from kaffee.records import read_json
from kaffee.tables import Table

OUTPUT = Path(__file__).parent.parent / "results" / "zeroshot"
BASELINES, ARM = "baselines", "incontext"
DYSTS, UNIVARIATE, FREE = "dysts_zero_shot_dev", "dysts_univariate_dev", "free_runs"
HORIZONS = (1, 10, 30, 90)
JUDGED = (1, 10)
"""Steps at which no single system may be covered badly."""
SHOWN = ("lorenz63", "chua", "sprott_b")
"""Systems on which free runs must be better than those of DynaMix."""

Record = dict[str, Any]


class Condition(NamedTuple):
    """Percent of noise and rows of the context."""

    noise: int
    rows: int


class Summary(NamedTuple):
    """A method over systems: medians, and the system whose bands cover least at each of `JUDGED`."""

    systems: int
    vpt: float
    smape: float
    coverage: dict[str, float]
    least: dict[str, tuple[float, str]]
    seconds: float | None


def read_results(folder: Path) -> list[Record]:
    """Read all results of a folder."""
    return [read_json(path, "result") for path in sorted(folder.glob("*.json"))]


def summarise(records: Iterable[Record], method: str, condition: Condition, *, three: bool) -> Summary | None:
    """Summarise a method over the systems, or over those of three coordinates; None without any."""
    own = [
        (one["system"], one["methods"][method])
        for one in records
        if (one["noise"], one["rows"]) == condition
        and method in one["methods"]
        and (one["coordinates"] == 3 or not three)
    ]
    if not own:
        return None
    bands = [(name, found["coverage"]) for name, found in own if found.get("coverage")]
    known = [str(h) for h in HORIZONS if bands and all(str(h) in cover for _, cover in bands)]
    seconds = [found["seconds"] for _, found in own if found.get("seconds") is not None]
    return Summary(
        systems=len(own),
        vpt=float(np.median([found["vpt"] for _, found in own])),
        smape=float(np.median([found["smape"] for _, found in own])),
        coverage={h: float(np.median([cover[h] for _, cover in bands])) for h in known},
        least={h: min((cover[h], name) for name, cover in bands) for h in known if int(h) in JUDGED},
        seconds=float(np.median(seconds)) if seconds else None,
    )


def _arms(records: Iterable[Record]) -> list[str]:
    return sorted({one["arm"] for one in records} - {BASELINES}, key=lambda name: (name != ARM, name))


def _methods(records: list[Record]) -> list[str]:
    """Arms first, then all baselines in the order in which they were measured."""
    others = dict.fromkeys(name for one in records if one["arm"] == BASELINES for name in one["methods"])
    return [*_arms(records), *others]


def forecast_table(records: list[Record]) -> Table:
    """Medians over systems for every condition and method."""
    rows = []
    for condition in sorted({Condition(one["noise"], one["rows"]) for one in records}):
        for method in _methods(records):
            three, every = (summarise(records, method, condition, three=flag) for flag in (True, False))
            if every is None:
                continue
            found = [None] * 2 if three is None else [three.vpt, three.smape]
            bands = {} if three is None else three.coverage
            least = {} if three is None else three.least
            rows.append(
                [
                    f"{condition.noise} %, {condition.rows} rows",
                    method,
                    *found,
                    *(bands.get(str(h)) for h in HORIZONS),
                    *("{:.2f} {}".format(*least[str(h)]) if str(h) in least else None for h in JUDGED),
                    every.vpt,
                    every.smape,
                    every.systems,
                    every.seconds,
                ]
            )
    columns = ["noise, context", "method", "VPT", "sMAPE", *(f"cover {h}" for h in HORIZONS)]
    columns += [*(f"least {h}" for h in JUDGED), "VPT all", "sMAPE all", "systems", "seconds"]
    note = (
        "Medians over systems of three coordinates, and over all. VPT: Lyapunov times until the rms error exceeds 0.4 "
        "standard deviations; sMAPE over the first Lyapunov time; coverage of the clean truth by 90 % bands 1, 10, 30 "
        "and 90 steps ahead, and the system of three coordinates that is covered least. Chronos: stored scores."
    )
    return Table("Zero-shot forecasts", columns, rows, note=note, digits=2)


def system_table(records: list[Record], condition: Condition) -> Table:
    """Every system under one condition: VPT of all methods, coverage of the arms."""
    here = [one for one in records if (one["noise"], one["rows"]) == condition]
    methods, arms = _methods(here), _arms(here)
    rows = []
    for name in sorted({one["system"] for one in here}):
        found = {m: one["methods"][m] for one in here if one["system"] == name for m in one["methods"]}
        size = next(one["coordinates"] for one in here if one["system"] == name)
        cover = [((found.get(arm) or {}).get("coverage") or {}).get(str(h)) for arm in arms for h in HORIZONS]
        each = [found[m][key] if m in found else None for key in ("vpt", "smape") for m in methods]
        rows.append([f"{name} ({size})", *each, *cover])
    columns = ["system", *(f"{key} {m}" for key in ("VPT", "sMAPE") for m in methods)]
    columns += [f"{arm} cover {h}" for arm in arms for h in HORIZONS]
    title = f"Every system, {condition.noise} % noise, contexts of {condition.rows} rows"
    return Table(title, columns, rows, digits=2)


class Univariate(NamedTuple):
    """A method over scalar series; `ahead` is the share on which it is better than the best published model."""

    series: int
    smape: float
    ahead: float | None
    seconds: float | None
    longest: float | None


def summarise_series(records: list[Record], method: str) -> Univariate | None:
    """Summarise over the series that both the method and the published models have."""
    best = {one["system"]: min(one["published"].values()) for one in records if one.get("published")}
    own = {one["system"]: one["methods"][method] for one in records if method in one["methods"]}
    if not own:
        return None
    ahead = [found["smape"] < best[name] for name, found in own.items() if name in best]
    seconds = [found["seconds"] for found in own.values()]
    errors = [found["smape"] for found in own.values()]
    return Univariate(
        len(own),
        float(np.median(errors)),
        float(np.mean(ahead)) if ahead else None,
        float(np.median(seconds)),
        max(seconds),
    )


def univariate_table(records: list[Record]) -> Table:
    """All methods over scalar series, and the published models."""
    rows: list[list[Any]] = []
    for method in _methods(records):
        found = summarise_series(records, method)
        rows += [[method, *found[1:], found.series]] if found else []
    published = [one["published"] for one in records if one.get("published")]
    models = list(dict.fromkeys(name for one in published for name in one))
    medians = {name: float(np.median([one[name] for one in published if name in one])) for name in models}
    rows += [
        [name, medians[name], None, None, None, len(published)] for name in sorted(medians, key=medians.__getitem__)
    ]
    if published:
        rows.append(
            ["best of them", float(np.median([min(one.values()) for one in published])), *[None] * 3, len(published)]
        )
    columns = ["method", "sMAPE", "ahead of the best", "seconds", "longest", "series"]
    note = (
        "Medians over series; ahead: share of series with a lower sMAPE than the best of the published, tuned models."
    )
    return Table(
        "Scalar series: 1000 values known, 199 forecast", columns, rows, note=f"{note} Seconds with compilation."
    )


def free_table(records: list[Record]) -> Table:
    """Lost runs and distances by system."""
    arms, rows = _arms(records), []
    others = list(dict.fromkeys(m for one in records if one["arm"] == BASELINES for m in one["methods"]))
    for name in sorted({one["system"] for one in records}):
        found = {m: one["methods"][m] for one in records if one["system"] == name for m in one["methods"]}
        lost = [
            f"{found[arm]['lost']} + {found[arm]['noisy']['lost']} of {found[arm]['runs']}" if arm in found else None
            for arm in arms
        ]
        lost += [f"{found['DynaMix']['lost']} of {found['DynaMix']['runs']}" if "DynaMix" in found else None]
        each = [found[m][key] if m in found else None for key in ("d_stsp", "d_h") for m in (*arms, *others)]
        rows.append([name, *lost, *each])
    columns = ["system", *(f"lost {m}" for m in (*arms, "DynaMix"))]
    columns += [f"{key} {m}" for key in ("D_stsp", "D_H") for m in (*arms, *others)]
    first = records[0] if records else {"starts": 0, "steps": 0, "kept": 0}
    note = (
        f"{first['starts']} runs of {first['steps']} steps from a context of 2000 rows with 10 % noise; the last "
        f"{first['kept']} against as many rows of the true trajectory, medians over runs that did not diverge. Lost: "
        "diverged, trapped in a part of the attractor, or at the wall of the data's region; without noise + with it. "
        "truth: other stretches of the true trajectory."
    )
    return Table("Long free runs", columns, rows, note=note)


class Demand(NamedTuple):
    """What was asked for, the number that was found, and whether it suffices."""

    text: str
    value: float | str | None
    holds: bool


def _forecast_demands(records: list[Record], arm: str) -> list[Demand]:
    def of(noise: int, rows: int) -> Summary | None:
        return summarise(records, arm, Condition(noise, rows), three=True)

    def demand(text: str, found: Summary | None, key: str, good: Callable[[float], bool]) -> Demand:
        value = None if found is None else getattr(found, key)
        return Demand(text, value, value is not None and good(value))

    demands = [
        demand("VPT, clean, 512 rows: >= 1.5", of(0, 512), "vpt", lambda v: v >= 1.5),
        demand("sMAPE, clean, 512 rows: <= 10", of(0, 512), "smape", lambda v: v <= 10),
        demand("VPT, 10 % noise, 512 rows: >= 1.0", of(10, 512), "vpt", lambda v: v >= 1.0),
        demand("VPT, 10 % noise, 128 rows: >= 0.5", of(10, 128), "vpt", lambda v: v >= 0.5),
    ]
    for condition in sorted({Condition(one["noise"], one["rows"]) for one in records if one["arm"] == arm}):
        found = of(*condition)
        if found is None or not found.coverage:
            continue
        where = f"{condition.noise} %, {condition.rows} rows"
        low, high = min(found.coverage.values()), max(found.coverage.values())
        text = f"{low:.2f} to {high:.2f}"
        demands.append(Demand(f"90 % bands, {where}: 0.85 to 0.95", text, low >= 0.85 and high <= 0.95))
        share, name = min(found.least.values())
        demands.append(Demand(f"least covered system, {where}: >= 0.75", f"{share:.2f} {name}", share >= 0.75))
    return demands


def _series_demands(records: list[Record], arm: str) -> list[Demand]:
    found = summarise_series(records, arm)
    if found is None or found.ahead is None or found.longest is None:
        return []
    return [
        Demand("scalar series, sMAPE: < 40", found.smape, found.smape < 40),
        Demand("scalar series, share ahead of the best published: >= 0.7", found.ahead, found.ahead >= 0.7),
        Demand("scalar series, longest in seconds: <= 10", found.longest, found.longest <= 10),
    ]


def _free_demands(records: list[Record], arm: str) -> list[Demand]:
    own = {one["system"]: one["methods"][arm] for one in records if arm in one["methods"]}
    other = {one["system"]: one["methods"]["DynaMix"] for one in records if "DynaMix" in one["methods"]}
    if not own:
        return []
    lost = sum(found["lost"] + found["noisy"]["lost"] for found in own.values())
    demands = [Demand("free runs lost, all systems, with noise and without: 0", float(lost), lost == 0)]
    for name in (name for name in SHOWN if name in own and name in other):
        pairs = [(own[name][key], other[name][key]) for key in ("d_stsp", "d_h")]
        better = all(a is not None and (b is None or a < b) for a, b in pairs)
        text = ", ".join(f"{a if a is None else round(a, 3)} ({b if b is None else round(b, 3)})" for a, b in pairs)
        demands.append(Demand(f"D_stsp and D_H on {name}, below DynaMix'", text, better))
    return demands


def demand_table(dysts: list[Record], series: list[Record], free: list[Record]) -> Table:
    """What was asked for, and whether every arm has it."""
    rows = [
        [demand.text, arm, demand.value, "met" if demand.holds else "missed"]
        for arm in _arms([*dysts, *series, *free])
        for demand in (*_forecast_demands(dysts, arm), *_series_demands(series, arm), *_free_demands(free, arm))
    ]
    return Table("Zero-shot: what was asked for", ["demand", "arm", "found", ""], rows, digits=2)


def zeroshot_tables(
    folder: Path = OUTPUT, *, dysts: str = DYSTS, univariate: str = UNIVARIATE, by_system: bool = False
) -> Tables:
    """Make the tables of all results in a folder; `dysts` and `univariate` are names of data files."""
    forecasts, series, free = (read_results(folder / name) for name in (dysts, univariate, FREE))
    tables = [demand_table(forecasts, series, free)] if forecasts or series or free else []
    tables += [forecast_table(forecasts)] if forecasts else []
    if by_system:
        conditions = sorted({Condition(one["noise"], one["rows"]) for one in forecasts})
        tables += [system_table(forecasts, condition) for condition in conditions]
    tables += [univariate_table(series)] if series else []
    tables += [free_table(free)] if free else []
    return Tables(tuple(tables))
