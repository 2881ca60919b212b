"""A fit as a folder: settings, data fingerprint, stages; running the same command again continues it.

run.json          settings, where the data came from and their fingerprint, versions
prior/, kaffee/   model.json + weights (when the stage is finished), training.json + state and losses
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaffee.checkpoint import load, load_state, save, save_state
from kaffee.config import differences, to_dict, update
from kaffee.errors import CheckpointError, ConfigError
from kaffee.provenance import machine, versions
from kaffee.settings import FitSettings
from kaffee.stages import Stage
from kaffee.store import read_json, read_record, write_json
from kaffee.training.update import TrainState

FORMAT = "kaffee-run"
FORMAT_VERSION = 1


class RunFolder:
    """The `StageStore` of the command line.

    Args:
        core: An object of the user's own class of core, for runs that have one.
    """

    def __init__(self, path: str | Path, *, core: Any = None) -> None:
        self.path, self._core = Path(path), core

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").exists()

    @property
    def started(self) -> bool:
        """Whether there is anything to continue: a run that was refused at its start is no run."""
        return self.exists and any(self.path.glob("*/training.json"))

    def open(self, settings: FitSettings, data: Mapping[str, Any]) -> None:
        """Start a run here, or check that the one that is here is the same.

        Args:
            data: Source and fingerprint of the series; JSON values.
        """
        record = {"settings": to_dict(settings), "data": dict(data)}
        if self.exists:
            earlier = self.record()
            changes = differences(record, {key: earlier.get(key) for key in record})
            if changes and self.started:
                raise CheckpointError(
                    f"{self.path} holds another run ({'; '.join(changes)}). Choose another folder, or delete it."
                )
            if not changes:
                return
        # A process that was killed may leave a hidden file of its first write.
        elif self.path.exists() and (not self.path.is_dir() or list(self.path.glob("[!.]*"))):
            raise CheckpointError(f"{self.path} exists and is not a run of kaffee. Choose another folder.")
        write_json(
            self.path / "run.json",
            {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                **record,
                "versions": versions(),
                "machine": machine(),
            },
        )

    def record(self) -> dict[str, Any]:
        """What `run.json` says."""
        record = read_json(self.path / "run.json", "run")
        if record.get("format") != FORMAT:
            raise CheckpointError(f"{self.path}/run.json is not a run of kaffee. Check the path.")
        if record.get("format_version") != FORMAT_VERSION:
            raise CheckpointError(
                f"{self.path}/run.json is in format {record.get('format_version')!r}; this version of kaffee reads "
                f"{FORMAT_VERSION}. Upgrade: pip install -U kaffee"
            )
        data = record.get("data")
        if not isinstance(record.get("settings"), dict) or not isinstance(data, dict) or "fingerprint" not in data:
            raise CheckpointError(f"{self.path}/run.json is incomplete or was edited. Start a new run.")
        return record

    def settings(self) -> FitSettings:
        """The settings that the run was started with."""
        try:
            return update(FitSettings(), self.record()["settings"])
        except ConfigError as error:
            raise CheckpointError(
                f"{self.path}/run.json is damaged, was edited or is of another version. {error} Start a new run."
            ) from error

    def finished(self, name: str) -> Stage | None:
        folder = self.path / name
        if not (folder / "model.json").exists():
            return None
        reconstruction = load(folder, core=self._core)
        arrays, _ = read_record(folder, "training", "training state")
        try:
            end = reconstruction.provenance["training"]
            return Stage(reconstruction, arrays["losses"], end["skipped"], end["completed"], end["report"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{folder} is not a stage of a run: it has no {error}. Start a new run.") from error

    def interrupted(self, name: str, template: TrainState) -> tuple[TrainState, np.ndarray] | None:
        folder = self.path / name
        if not (folder / "training.json").exists():
            return None
        _, meta = read_record(folder, "training", "training state")
        number = meta.get("num_losses")
        if type(number) is not int or number < 0:
            raise CheckpointError(f"{folder}/training.json does not say how many losses there are. Start a new run.")
        losses = jax.ShapeDtypeStruct((number,), jnp.float32)
        tree, _ = load_state(folder, "training", {"state": template, "losses": losses})
        return tree["state"], np.asarray(tree["losses"])

    def save_progress(self, name: str, state: TrainState, losses: np.ndarray) -> None:
        tree = {"state": state, "losses": np.asarray(losses, np.float32)}
        save_state(self.path / name, "training", tree, {"num_losses": len(losses)})

    def save_stage(self, name: str, stage: Stage) -> None:
        save(stage.reconstruction, self.path / name)
