"""Autocorrelation and decorrelation time, against plain loops and known processes."""

import numpy as np
import pytest

from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.metrics.autocorrelation import autocorrelation, count_pairs, decorrelation_time


def first_order(coefficient, num_steps, seed=0):
    """x_t = a x_{t-1} + noise, whose autocorrelation is a^k."""
    noise = np.random.default_rng(seed).standard_normal(num_steps)
    x = np.zeros(num_steps)
    for t in range(1, num_steps):
        x[t] = coefficient * x[t - 1] + noise[t]
    return x


def plain_autocorrelation(recordings, lag):
    pooled = np.concatenate(recordings)
    mean = np.nanmean(pooled)
    products = [
        (a - mean) * (b - mean)
        for x in recordings
        for a, b in zip(x, x[lag:], strict=False)
        if not (np.isnan(a) or np.isnan(b))
    ]
    return np.mean(products) / np.nanmean((pooled - mean) ** 2)


def test_gaps_and_several_recordings_agree_with_a_plain_loop():
    rng = np.random.default_rng(1)
    recordings = [first_order(0.8, 90, 1), first_order(0.8, 40, 2)]
    for x in recordings:
        x[rng.random(len(x)) < 0.3] = np.nan
    found = autocorrelation([x[:, None] for x in recordings], 50)[:, 0]
    assert count_pairs([recordings[0][:, None]], 7)[7, 0] == np.isfinite(recordings[0][7:] * recordings[0][:-7]).sum()
    for lag in (0, 1, 7, 45):
        assert found[lag] == pytest.approx(plain_autocorrelation(recordings, lag), abs=1e-12)


def test_lags_without_a_pair_are_unknown():
    rho = autocorrelation([np.array([[1.0], [2.0], [4.0]])], 5)[:, 0]
    assert np.isfinite(rho[:3]).all()
    assert np.isnan(rho[3:]).all()


def test_the_biased_estimate_divides_by_the_number_of_rows():
    x = first_order(0.8, 50)
    centred = x - x.mean()
    expected = [centred[: 50 - k] @ centred[k:] / (centred @ centred) for k in range(50)]
    np.testing.assert_allclose(autocorrelation([x[:, None]], 49, biased=True)[:, 0], expected, atol=1e-12)


def test_a_first_order_process_decorrelates_as_its_coefficient_says():
    """a^k = 1/e at k = -1 / log a = 9.5; the error of rho over 40000 steps is about 0.02, of the time about half."""
    tau = Series.from_arrays(first_order(0.9, 40_000)).decorrelation_time
    assert tau == pytest.approx(-1 / np.log(0.9), abs=1.5)


def test_a_constant_coordinate_does_not_count():
    x = first_order(0.9, 4000)
    alone = Series.from_arrays(x).decorrelation_time
    beside = Series.from_arrays(np.stack([x, np.full(4000, 1e6)], axis=1)).decorrelation_time
    assert beside == alone


def test_what_never_decorrelates_is_as_long_as_can_be_known():
    assert decorrelation_time([np.arange(500.0)[:, None]], max_lag=30) == 30.0
    assert Series.from_arrays(np.full(500, 2.0)).decorrelation_time == 50.0
    assert Series.from_arrays(np.arange(4.0)).decorrelation_time <= 1.0


def test_a_negative_lag_is_an_error():
    with pytest.raises(ConfigError, match="must not be negative"):
        autocorrelation([np.ones((2, 1))], -1)
