"""Windows over several devices: the same run as on one."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from kaffee.training.sharding import window_mesh

ROOT = Path(__file__).resolve().parents[2]

RUN = """
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from kaffee.data.series import Series
from kaffee.data.windows import training_windows
from kaffee.filtering.likelihood import KAFFEE
from kaffee.model.alrnn import ALRNN
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.adaptation import Adaptation, nll_objective
from kaffee.training.loop import Schedule, train
from kaffee.training.optimiser import Optimiser

keys = jax.random.split(jax.random.key(0), 2)
core = ALRNN.create(5, 2, key=keys[0], dtype=np.float64).surrogate()
model = StateSpaceModel.create(core, 2, key=keys[1], dtype=np.float64)
series = Series.from_arrays(np.random.default_rng(0).standard_normal((60, 2)))
settings, parts = Adaptation(scored=4, burn_in=1), ("core", "shell")
windows, optimiser = training_windows(series, 6, np.float64), Optimiser("adam", learning_rate=1e-2)
found = []
for spec in ("ekf", "lowrank:3"):
    objective = nll_objective(model, series, replace(KAFFEE, filter_name=spec), settings, parts)
    schedule = Schedule(3, batch_size=4, report_every=2)
    run = train(model, objective, windows, parts=parts, optimiser=optimiser, schedule=schedule, seed=0)
    arrays = eqx.filter(run.model, eqx.is_inexact_array)
    # What comes after training runs on one device.
    assert all(len(leaf.devices()) == 1 for leaf in jax.tree.leaves(arrays))
    found += [*run.losses, *np.asarray(ravel_pytree(arrays)[0])]
"""


def test_two_devices_train_as_one_does(x64):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", RUN + "print(len(jax.devices()), *(repr(float(value)) for value in found))"],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_ENABLE_X64": "1"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    count, *values = (float(value) for value in done.stdout.split())
    assert count == 2
    here: dict = {}
    exec(RUN, here)
    # Adam divides by the size of the gradient, which enlarges rounding where it is small.
    np.testing.assert_allclose(values, np.array(here["found"], float), rtol=1e-7, atol=1e-9)


def test_batches_are_divided_equally_or_not_at_all(monkeypatch):
    assert window_mesh(16) is None or len(jax.devices()) > 1
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda: [device] * 3)
    assert window_mesh(7) is None
    assert window_mesh(6).size == 3
    assert window_mesh(4).size == 2
