"""Cells with invented numbers, written as the bench writes them."""

import numpy as np

from kaffee.paper.cells import Cell

HORIZONS = (2, 4, 9, 15)
LAMBDAS = np.array([1.54, 1.21, 0.94, 0.67, 0.40, 0.15, -0.0005, -0.1])


def record(row, seed, **changes):
    """A finished cell near the paper's numbers of its row; `changes` replace entries, "extra__h_core" deeper ones."""
    rng = np.random.default_rng([seed, *row.name.encode()])

    def near(metric, default=0.0):
        value, error = row.paper.get(metric, (default, 0.05))
        return float(value + (error + 0.01) * rng.standard_normal())

    share = {"kaffee": 0.8, "blind": 0.92, "frozen_core": 0.45, "prior": 0.45}.get(row.method, 0.02)
    exponents = share * LAMBDAS - 0.05 * (1 - share) * np.arange(len(LAMBDAS)) + 0.01 * rng.standard_normal()
    extra = {
        "h_core": float(exponents[exponents > 0].sum()),
        "exponents_core": exponents.tolist(),
        "diverged_at_core": 0,
        "h_reference": 4.91,
    }
    metrics = {"d_stsp_core": near("d_stsp_core"), "dh_core": near("dh_core"), "d_h_core": near("d_h_core")}
    local = dict.fromkeys(("nll", "crps", "g_tan", "d_stsp_stoch", "dh_stoch"))
    if row.method != "prior":
        local = {metric: near(metric) for metric in local}
        extra["spectrum"] = {
            str(h): {
                start: {"nll": local["nll"] - shift + 0.1 * h, "crps": local["crps"] - shift + 0.15 * h}
                for start, shift in (("embedding", 0.0), ("filtered", 0.2))
            }
            | {"g_tan": local["g_tan"] - 0.005 * h}
            for h in HORIZONS
        }
        extra["diverged_at_stoch"] = 0
    made = {"error": None, **local, **metrics, "diverged_core": 0, "diverged_stoch": 0, "extra": extra}
    for name, value in changes.items():
        if name.startswith("extra__"):
            extra[name.removeprefix("extra__")] = value
        else:
            made[name] = value
    return made


def diverged_core():
    """What a record holds when the free run of its core diverged."""
    nothing = {"d_stsp_core": None, "dh_core": None, "d_h_core": None, "extra__h_core": None}
    return nothing | {"extra__exponents_core": [], "extra__diverged_at_core": 17}


def fill(store, *, rows=None, seeds=None, changes=None):
    """Write the cells of rows and seeds (all by default); `changes` by (row, seed)."""
    for cell in store.cells():
        wanted = (rows is None or cell.row in rows) and (seeds is None or cell.seed in seeds)
        if wanted:
            store.write(cell, record(store.row(cell), cell.seed, **(changes or {}).get((cell.row, cell.seed), {})))


def values(store, row, *path):
    """An entry of the records of a row, by seed, read without the code under test."""
    found = []
    for seed in range(store.recipe.num_seeds):
        value = store.read(Cell(row, seed))
        for key in path:
            value = value[key]
        found.append(value)
    return found
