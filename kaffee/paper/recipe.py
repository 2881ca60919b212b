"""Read a recipe from TOML: the settings of one published table and the numbers of the paper."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import product
from typing import Any

from kaffee.certification.fidelity import Protocol
from kaffee.errors import ConfigError, unknown
from kaffee.fitting.config import merge, nested, to_dict, update
from kaffee.fitting.settings import CoreSettings, FoundationSettings, ShellSettings
from kaffee.paper.controls import SpiralSettings, VanDerPolSettings
from kaffee.training.adaptation import Adaptation
from kaffee.training.pretraining import Pretraining


@dataclass(frozen=True)
class DataSettings:
    """The simulated data that all cells share."""

    system: str = "lorenz96"
    num_train_steps: int = 80_000
    process_noise: float = 0.1
    observation_noise: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class CellSettings:
    """Everything that decides the numbers of a cell, but for its row and seed."""

    data: DataSettings = DataSettings()
    core: CoreSettings = CoreSettings(latent_dim=100, num_gates=50)
    pretraining: Pretraining = Pretraining()
    shell: ShellSettings = ShellSettings()
    adaptation: Adaptation = Adaptation()
    protocol: Protocol = Protocol()
    foundation: FoundationSettings | None = None
    spiral: SpiralSettings | None = None
    van_der_pol: VanDerPolSettings | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table: a method, changes to the common settings, and the paper's (value, standard error) by metric.

    Attributes:
        reproduces: Whether the row is the paper's; others are only compared with one of its rows.
    """

    name: str
    title: str
    method: str
    settings: CellSettings
    paper: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    reproduces: bool = True

    @property
    def training_hash(self) -> str:
        """Fingerprint of the settings that decide the trained model, without those of its evaluation."""
        settings = replace(self.settings, protocol=CellSettings().protocol)
        if self.method == "prior":
            settings = replace(settings, adaptation=CellSettings().adaptation)
        return settings_hash(settings, self.method)


@dataclass(frozen=True)
class Recipe:
    """A table: rows, seeds and the columns that are shown.

    Attributes:
        kind: What is measured in a cell, a name in `kaffee.paper.measurements.KINDS`.
        priors: The recipe whose priors the rows start from; None: this one's own.
        systems: The systems of a table over several; empty: the one of the settings.
        settings: What the rows have in common; a recipe with other priors begins with theirs, and with their systems.
    """

    name: str
    title: str
    num_seeds: int
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    kind: str = "table"
    priors: "Recipe | None" = None
    systems: tuple[str, ...] = ()
    settings: CellSettings = CellSettings()

    def row(self, name: str) -> Row:
        """Return the row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ConfigError(unknown("row", name, [row.name for row in self.rows]))


def recipe_names() -> list[str]:
    """List the recipes that come with kaffee."""
    folder = files("kaffee.paper").joinpath("recipes")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str, preset: str | None = None) -> Recipe:
    """Load a recipe by name, under a preset such as "smoke"."""
    if name not in recipe_names():
        raise ConfigError(unknown("recipe", name, recipe_names()))
    values = tomllib.loads(files("kaffee.paper").joinpath("recipes", f"{name}.toml").read_text(encoding="utf-8"))
    presets = values.get("presets", {})
    if preset is not None and preset not in presets:
        raise ConfigError(unknown("preset", preset, presets))
    changes: dict[str, Any] = {} if preset is None else presets[preset]
    priors = load_recipe(values["priors"], preset) if "priors" in values else None
    common = update(priors.settings if priors else CellSettings(), values.get("settings", {}))
    rows = []
    for key, row in _combinations(values["rows"], values.get("grid", {})):
        if key not in changes.get("rows", [key]):
            continue
        settings = update(update(common, row.get("settings", {})), changes.get("settings", {}))
        given = row.get("paper", {})
        other = isinstance(given, str)  # the name of the row to compare with
        paper = {m: (float(v[0]), float(v[1])) for m, v in (values["rows"][given]["paper"] if other else given).items()}
        rows.append(Row(key, row["title"], row["method"], settings, paper, reproduces=not other))
    return Recipe(
        name=name if preset is None else f"{name}-{preset}",
        title=values["title"],
        num_seeds=changes.get("num_seeds", values["num_seeds"]),
        metrics=tuple(values["metrics"]),
        rows=tuple(rows),
        kind=values.get("kind", "table"),
        priors=priors,
        systems=tuple(changes.get("systems", values.get("systems", priors.systems if priors else ()))),
        settings=common,
    )


def _combinations(rows: Mapping[str, Any], grid: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Repeat every row for each combination of the grid's values; a grid entry has a dotted key and its values."""
    expanded = []
    for (name, row), values in product(rows.items(), product(*[axis["values"] for axis in grid.values()])):
        settings = dict(row.get("settings", {}))
        for axis, value in zip(grid.values(), values, strict=True):
            settings = merge(settings, nested(axis["key"], value))
        suffix = "".join(f"-{label}={value:g}" for label, value in zip(grid, values, strict=True))
        expanded.append((name + suffix, {**row, "settings": settings}))
    return expanded


def settings_hash(settings: CellSettings, method: str | None = None) -> str:
    """Compute a short fingerprint of settings, so that a cell made under others is not taken for this one.

    Options that are None do not enter: a later version may add some without making finished results worthless.
    """
    given = _given({"method": method, **to_dict(settings)})
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]


def _given(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list | tuple) else value
