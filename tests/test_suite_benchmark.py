"""The development suite measures a fit: forecasts at every horizon, coverage, a cold start, and what it cost."""

import numpy as np

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
