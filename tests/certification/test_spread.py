"""Sizes of errors that could have been known, and the verdict on a spread that does not vary."""

import numpy as np
import pytest

from certification.oscillator import simulated, true_model
from certification.problems import passed
from kaffee.certification.innovations import Starts, choose_starts, filter_pass
from kaffee.certification.spread import SpreadGrowth, _predict_error_size, spread_growth
from kaffee.certification.spread import _ErrorSizePrediction as ErrorSizePrediction
from kaffee.certification.verdicts import _judge_spread
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.metrics.scores import spearman

HORIZON = 12


def starts_of(num):
    return Starts(np.zeros(num, int), np.arange(num))


def moving_average(num, width, rng):
    """Errors of overlapping forecasts: correlated in time, all of one size."""
    noise = rng.standard_normal((num + width, 2))
    return np.stack([noise[t : t + width].mean(axis=0) for t in range(num)])


def test_sizes_that_follow_the_state_are_foretold():
    rng = np.random.default_rng(0)
    state, mask = rng.standard_normal((500, 2)), rng.uniform(size=(500, 2)) < 0.8
    error = np.exp(0.4 * state[:, :1] * state[:, 1:]) * rng.standard_normal((500, 2))
    found = _predict_error_size(error, mask, starts_of(500), 1, 20, state, None)
    assert found.by == "the state at the start"
    assert found.rank > 0.15 > 3 * found.error


@pytest.mark.parametrize("seed", range(5))
def test_errors_of_one_size_are_not_foretold_even_if_forecasts_overlap(seed):
    rng = np.random.default_rng(seed)
    error = moving_average(500, 10, rng)
    state = moving_average(500, 30, rng)
    found = _predict_error_size(error, np.ones(error.shape, bool), starts_of(500), 10, 20, state, None)
    assert found.rank < max(0.05, 3 * found.error)


def test_variances_that_were_not_used_may_foretell():
    rng = np.random.default_rng(1)
    std = np.exp(0.5 * rng.standard_normal((500, 12)))
    error = std * rng.standard_normal(std.shape)
    found = _predict_error_size(
        error, np.ones(std.shape, bool), starts_of(500), 1, 20, rng.standard_normal(std.shape), std**2
    )
    assert found.by == "the core's own tangents"
    assert found.rank == pytest.approx(np.mean([spearman(std[:, j], np.abs(error[:, j])) for j in range(12)]), abs=1e-3)


@pytest.fixture(scope="module")
def withheld():
    """Spread of the true model of an oscillator, by a filter with transport and by one without."""
    series = Series.from_arrays(simulated(2500)[1])
    model = true_model()
    starts = choose_starts(series, 500)
    return {
        method: spread_growth(
            filter_pass(Reconstruction(model, Scaler.identity(2), method=method), series, starts), (HORIZON,), seed=0
        )
        for method in ("kaffee", "blind")
    }


def test_a_filter_without_transport_fails_where_its_tangents_matter(withheld):
    assert _judge_spread(withheld["kaffee"], HORIZON).status == "pass"
    verdict = _judge_spread(withheld["blind"], HORIZON)
    assert verdict.status == "fail"
    assert verdict.value > 0.1
    assert verdict.quantity.startswith("rank correlation of |error| and ")
    assert "hardly varies in time, but the size of errors does" in verdict.sentence
    assert ", limit 0." in verdict.sentence


def test_a_constant_spread_of_constant_errors_is_neither_good_nor_bad():
    verdict = _judge_spread(spread_growth(passed(), (1, 4), seed=0), 4)
    assert verdict.status == "unknown"
    assert "nothing shows that the size of errors does" in verdict.sentence


@pytest.mark.parametrize(
    ("rank", "error", "status"),
    [(0.04, 0.001, "unknown"), (0.08, 0.01, "warn"), (0.2, 0.01, "fail"), (0.2, 0.1, "unknown")],
)
def test_how_much_must_be_foretold(withheld, rank, error, status):
    at = withheld["blind"].horizons[0]._replace(foretold=ErrorSizePrediction("x", rank, error))
    assert _judge_spread(SpreadGrowth([at]), HORIZON).status == status


def test_too_few_forecasts_to_tell(withheld):
    at = withheld["blind"].horizons[0]._replace(foretold=ErrorSizePrediction("x", np.nan, np.nan))
    verdict = _judge_spread(SpreadGrowth([at]), HORIZON)
    assert verdict.status == "unknown"
    assert "too few forecasts" in verdict.sentence
