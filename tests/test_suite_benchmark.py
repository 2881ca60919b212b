"""The development suite measures a fit: forecasts at every horizon, coverage, a cold start, and what it cost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paper.chores import alive, children, until

from benchmarks.processes import call_apart
from benchmarks.suite import measure_arm
from kaffee.data.series import Series


def test_a_fit_is_measured():
    angle = 0.3 * np.arange(300)
    rows = np.stack([np.sin(angle), np.cos(angle)], axis=1) + 0.1 * np.random.default_rng(0).standard_normal((300, 2))
    found = measure_arm(Series.from_arrays(rows), 0, {"rung": "linear"})
    assert found["core"] == "Linear"
    assert found["rungs"]["chosen"] == "linear"
    for horizon in ("1", "4", "16"):
        score = found["forecasts"][horizon]
        assert 0.5 < score["coverage"] <= 1.0
        # The ensemble of the model, and the exact moments of the same model.
        np.testing.assert_allclose(score["nll"], found["linear"][horizon]["nll"], atol=0.2)
    assert 0.5 < found["cold_start"]["coverage"] <= 1.0
    assert found["seconds"] > 0.0


def test_a_call_apart_returns_and_raises_what_the_function_does():
    assert call_apart(os.getpid) != os.getpid()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        call_apart(os.stat, "nowhere")


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_call_apart_ends_with_the_process_that_waits_for_it(how):
    command = "import time; from benchmarks.processes import call_apart; call_apart(time.sleep, 600)"
    runner = subprocess.Popen([sys.executable, "-c", command], cwd=Path(__file__).parents[1])
    (worker,) = until(lambda: children(runner.pid, "spawn_main"))
    until(lambda: len(os.listdir(f"/proc/{worker}/task")) > 1)  # it watches
    runner.send_signal(how)
    runner.wait()
    until(lambda: not alive(worker), 30.0)
