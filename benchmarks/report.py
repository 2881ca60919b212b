"""The measurements as tables for people."""

from typing import Any

from rich.console import Console
from rich.table import Table

ZEROSHOT = {
    "zeroshot_filter": "One filter step with a context in the model",
    "zeroshot_forecast": "An ensemble forecast with a context in the model",
    "zeroshot_first": "Context to first forecast, warm",
}


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


def _table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _timed(title: str, detail: dict[str, dict[str, Any]]) -> Table:
    keys = ("median", "min", "q25", "q75", "first_call")
    rows = [
        [name, *(_number(entry.get(key)) for key in keys)]
        for name, entry in sorted(detail.items(), key=lambda item: item[1]["median"])
    ]
    return _table(title, ["seconds", "median", "least", "25 %", "75 %", "first call"], rows)


def _ratios(ratios: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for section, entries in ratios.items():
        for name, entry in entries.items():
            if entry is None:
                rows.append([f"{section}: {name}", "not installed", "-", "-", "-"])
                continue
            sign = "<=" if name == "matmul" or entry.get("at_most") else ">="
            target = f"{sign} {entry['target']}" if "target" in entry else "-"
            met = {True: "met", False: "missed", None: "-"}[entry.get("met")]
            rows.append([f"{section}: {name}", _number(entry["ratio"]), _number(entry.get("paired")), target, met])
    return _table("Ratios (matmul: kaffee over it)", ["to kaffee", "ratio", "paired", "target", ""], rows)


def print_report(results: dict[str, Any], console: Console | None = None) -> None:
    """Print all sections that were measured."""
    console = console or Console()
    if "ekf_gradient" in results:
        console.print(_timed("Value and gradient of the innovation NLL", results["ekf_gradient_detail"]))
    if "teacher_forcing" in results:
        console.print(_timed("One teacher-forcing update", results["teacher_forcing_detail"]))
    if "rollouts" in results:
        cases = {name: entry for name, entry in results["rollouts"].items() if isinstance(entry, dict)}
        rows = [[name, *(_number(value) for value in entry.values())] for name, entry in cases.items()]
        title = f"Free runs of {results['rollouts']['num_steps']} steps, seconds"
        console.print(_table(title, ["", "kaffee", "torch (extrapolated)"], rows))
    if "dynamix_rollout" in results:
        console.print(_timed("One step of DynaMix's free run", results["dynamix_rollout_detail"]))
    if "dynamix_update" in results:
        console.print(_timed("One in-context update of DynaMix", results["dynamix_update_detail"]))
    for name, title in ZEROSHOT.items():
        if name in results:
            console.print(_timed(title, results[f"{name}_detail"]))
    if "zeroshot_first" in results:
        rows = [
            [f"{rows}, {how}", *(_number(found[how][name]) for name in found[how])]
            for rows, found in results["zeroshot_first"].items()
            for how in ("warm", "cold")
            if how in found
        ]
        columns = ["rows", *next(iter(results["zeroshot_first"].values()))["warm"]]
        console.print(_table("Context to first forecast, seconds", columns, rows))
    if "scaling" in results:
        rows = [
            [M, *(_number(results["scaling_detail"][M].get(key)) for key in ("median", "added_mb", "xla_temporary_mb"))]
            for M in results["scaling"]
        ]
        title = f"Growth with M, exponent {results['scaling_detail']['exponent']}"
        console.print(_table(title, ["M", "seconds", "MB added", "MB planned by XLA"], rows))
    if "memory" in results:
        rows = [[name, _number(value)] for name, value in results["memory"].items()]
        console.print(_table("Peak memory of one value and gradient", ["", "MB added"], rows))
    for name in ("ensemble_gradient", "wide_gradient"):
        if name in results:
            keys = ("processor", "clock", "planned_mb", "added_mb")
            rows = [[spec, *(_number(row.get(key)) for key in keys)] for spec, row in results[name].items()]
            title = "Value and gradient through filters" + ", 1000 latents" * (name == "wide_gradient")
            console.print(_table(title, ["", "processor s", "clock s", "MB planned", "MB added"], rows))
    if "wide_growth" in results:
        grown = results["wide_growth"]
        rows = [[M, *(_number(grown[kind][M]["processor"]) for kind in grown["exponents"])] for M in grown["dense"]]
        console.print(_table("Low-rank gradient over M, processor s", ["M", *grown["exponents"]], rows))
    if results.get("ratios"):
        console.print(_ratios(results["ratios"]))
