"""Rungs: a map in context is kept where rows are nonlinear, a linear model where they are not; and in what words."""

import numpy as np
import pytest

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.fitting import ladder
from kaffee.fitting.ladder import choose, describe_rungs, prepare
from kaffee.fitting.settings import FitSettings
from kaffee.model.kernel import KernelMap
from kaffee.model.maps import Linear
from kaffee.training.selection import hold_back


@pytest.fixture(autouse=True)
def context(monkeypatch):
    """Tests elsewhere have no map in context."""
    monkeypatch.setattr(ladder, "CONTEXT_ROWS", 5_000)


def logistic(num_rows, noise=0.0):
    x = np.empty(num_rows)
    x[0] = 0.3
    for t in range(1, num_rows):
        x[t] = 3.8 * x[t - 1] * (1.0 - x[t - 1])
    return x + noise * np.random.default_rng(0).standard_normal(num_rows)


def decay(num_rows):
    """An autoregression, of which nothing but its lag can be learned."""
    rng, x = np.random.default_rng(1), np.zeros(num_rows)
    for t in range(1, num_rows):
        x[t] = 0.7 * x[t - 1] + rng.standard_normal()
    return x


def climb(values, rung="auto"):
    series = Series.from_arrays(values)
    rows = series.standardised(Scaler.fit(series))
    return prepare(rows, hold_back(rows), FitSettings(rung=rung))


def test_a_nonlinear_map_is_read_in_context():
    climbing = climb(logistic(240))
    model, rungs = choose(climbing)
    assert rungs["chosen"] == "incontext"
    assert rungs["gain"] > 1.0
    assert rungs["incontext"]["nll"][0] < rungs["linear"]["nll"][0] - 1.0
    assert isinstance(model.core, KernelMap)
    # The model that is kept has read the held-back rows, too.
    assert model.core.centres.shape[0] > climbing.context.part.core.centres.shape[0]
    assert describe_rungs(rungs).startswith("The map in context is kept: it is ")
    assert "better on held-back rows than the linear model (order" in describe_rungs(rungs)


def test_a_linear_process_stays_linear():
    model, rungs = choose(climb(decay(240)))
    assert rungs["chosen"] == "linear"
    assert isinstance(model.core, Linear)
    assert describe_rungs(rungs).startswith("The linear model (order")


def test_a_rung_that_is_asked_for_is_kept():
    climbing = climb(decay(240), "incontext")
    assert climbing.start is None
    model, rungs = choose(climbing)
    assert rungs["chosen"] == "incontext"
    assert isinstance(model.core, KernelMap)
    assert climb(decay(100), "linear").context is None


def test_what_has_no_context_says_so():
    rows = decay(60)
    rows[1::2] = np.nan  # no row is known after another
    with pytest.raises(DataError, match="rung = incontext needs numbers without inputs"):
        climb(rows, "incontext")


@pytest.mark.parametrize(
    ("chosen", "rival", "gain", "words"),
    [
        (
            "alrnn",
            "linear",
            0.5,
            "The AL-RNN is kept: it is 0.500 ± 0.100 nats per reading better on held-back rows than",
        ),
        ("alrnn", "incontext", 0.5, "than the map in context."),
        (
            "incontext",
            "incontext",
            -0.2,
            "The map in context is kept: the AL-RNN is 0.200 ± 0.100 nats per reading worse",
        ),
        ("linear", "linear", 0.05, "The linear model (order 2) is kept: the AL-RNN is 0.050 ± 0.100"),
        ("linear", "incontext", 0.05, "better on held-back rows than the map in context."),
        ("incontext", "linear", None, "The map in context is kept; not both can forecast the held-back rows."),
    ],
)
def test_words(chosen, rival, gain, words):
    rungs = {"chosen": chosen, "rival": rival, "gain": gain, "error": 0.1, "structure": "order 2"}
    assert words in describe_rungs({**rungs, "linear": {}, "alrnn": {}, "incontext": {}})
