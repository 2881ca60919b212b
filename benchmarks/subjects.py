"""Subjects that share a core, beside separate fits: `python -m benchmarks.subjects`.

Eight simulated subjects show one Lorenz-63, each by 12 channels with a matrix, gains and noise (10 to 30 %) of its own,
500 training rows each. One fit shares the core among all; separate fits have one each; a ninth subject, of 500 rows as
well, gets the shared core by transfer, and a separate fit. Writes held-out NLL, the error of the filtered signal, and
the distance of free runs of the core from the true attractor in its own coordinates (a linear regression of true states
on filtered signals of the training rows). The file is written after every fit.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.observation_maps import judge, lorenz, observe
from kaffee.checkpoint.reconstruction import Reconstruction, save
from kaffee.data.series import Series
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.pipeline import fit
from kaffee.fitting.stages import Fit
from kaffee.records import machine, versions
from kaffee.systems.catalogue import get_system
from kaffee.training.components import subspace_angle

OUTPUT = Path(__file__).parent.parent / "results" / "subjects"
SUBJECTS, CHANNELS, TRAIN, TEST_FRACTION = 8, 12, 500, 0.2
DT = get_system("lorenz63").dt


class Subject:
    """A recording of Lorenz-63 by channels of its own."""

    def __init__(self, number: int) -> None:
        rows = round(TRAIN / (1.0 - TEST_FRACTION))
        self.name, self.cut = f"s{number}", TRAIN
        self.states = lorenz(rows, 3000 * number)
        noise = 0.1 + 0.2 * np.random.default_rng(number).random()
        self.B, self.signal, self.rows = observe(self.states, CHANNELS, noise, 100 + number)

    def judge(self, model: Reconstruction) -> dict[str, float]:
        """Score a model of this subject."""
        own = judge(model, self.cut, self.rows, self.signal, self.states)
        B = model.scaler.scale[:, None] * np.asarray(model.model.observation.B)  # type: ignore[attr-defined]
        return {**own, "angle": subspace_angle(B, self.B)}


def run(series: Series, given: dict[str, Any]) -> tuple[Fit, float]:
    """Fit with the settings that the data suggest; return also processor seconds."""
    began = time.process_time()
    settings = settings_for(series, {"test_fraction": TEST_FRACTION, **given})
    return fit(series, settings, dt=DT), time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=SUBJECTS)
    given = parser.parse_args()
    subjects = [Subject(number) for number in range(given.subjects)]
    ninth = Subject(SUBJECTS)
    learned: dict[str, Any] = {"observation": {"components": 3}, "rung": "alrnn"}
    result: dict[str, Any] = {"channels": CHANNELS, "train_rows": TRAIN, "seconds": {}, "shared": {}, "separate": {}}
    OUTPUT.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        text = json.dumps({**result, "versions": versions(), "machine": machine()}, indent=1)
        (OUTPUT / "lorenz63.json").write_text(text + "\n", encoding="utf-8")

    names = tuple(each.name for each in subjects)
    together = Series(tuple(each.rows for each in subjects), groups=names)
    found, result["seconds"]["shared"] = run(together, learned)
    shared = found.fitted.reconstruction
    for each in subjects:
        result["shared"][each.name] = each.judge(shared.group(each.name))
        print("shared", each.name, json.dumps(result["shared"][each.name]), flush=True)
    keep()
    with tempfile.TemporaryDirectory() as folder:
        save(shared, folder)
        values = {"core": {"start": folder}, "method": "frozen_core", "observation": {"type": "learned"}}
        moved, result["seconds"]["transfer"] = run(Series.from_arrays(ninth.rows), values)
    result["transfer"] = ninth.judge(moved.fitted.reconstruction)
    print("transfer", json.dumps(result["transfer"]), flush=True)
    keep()
    for each in (ninth, *subjects):
        alone, seconds = run(Series.from_arrays(each.rows), learned)
        own = each.judge(alone.fitted.reconstruction)
        result["seconds"][f"separate_{each.name}"] = seconds
        if each is ninth:
            result["ninth_alone"] = own
        else:
            result["separate"][each.name] = own
        print("separate", each.name, json.dumps(own), flush=True)
        both = [name for name in names if name in result["separate"]]
        if both:
            result["medians"] = {
                key: {
                    kind: float(np.median([result[kind][name][key] for name in both]))
                    for kind in ("shared", "separate")
                }
                for key in own
            }
        keep()
    print(json.dumps(result["medians"], indent=1))


if __name__ == "__main__":
    main()
