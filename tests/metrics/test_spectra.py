"""D_H and autocorrelations: known answers, plain loops, diverged runs, references without a spectrum."""

import numpy as np
import pytest

from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.metrics.spectra import autocorrelation, count_pairs, d_hellinger, decorrelation_time, power_spectrum

T = np.arange(2000.0)


def wave(frequency, phase=0.0):
    return np.sin(2 * np.pi * frequency * T + phase)[:, None]


def test_a_spectrum_has_unit_mass_at_its_frequency():
    spectrum = power_spectrum(3.0 + 10.0 * wave(0.1), smoothing=2.0)
    assert spectrum.shape == (1001, 1)
    assert spectrum.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.argmax(spectrum) == 200  # 0.1 cycles per step of 1/2000 each


def test_identical_series_have_no_distance():
    x = np.random.default_rng(0).standard_normal((500, 3))
    assert d_hellinger(x, x) == pytest.approx(0.0, abs=1e-7)


def test_scale_shift_and_phase_do_not_matter():
    assert d_hellinger(wave(0.1), 5.0 + 100.0 * wave(0.1)) == pytest.approx(0.0, abs=1e-7)
    assert d_hellinger(wave(0.1), wave(0.1, phase=1.0)) < 1e-3


def test_disjoint_spectra_are_one_apart():
    assert d_hellinger(wave(0.05), wave(0.4), smoothing=2.0) > 0.99


def test_it_agrees_with_the_definition():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((64, 2)), rng.standard_normal((64, 2)).cumsum(axis=0)
    distances = []
    for j in range(2):
        p, q = power_spectrum(a, smoothing=3.0)[:, j], power_spectrum(b, smoothing=3.0)[:, j]
        distances.append(np.sqrt(0.5 * np.sum((np.sqrt(p) - np.sqrt(q)) ** 2)))
    assert d_hellinger(a, b, smoothing=3.0) == pytest.approx(np.mean(distances), abs=1e-10)
    assert d_hellinger(a, b) == pytest.approx(d_hellinger(b, a), abs=1e-12)


@pytest.mark.parametrize("value", [1.0, 0.0, np.nan, np.inf, 1e300])
def test_a_generated_coordinate_without_a_spectrum_counts_as_one(value):
    generated = np.full((2000, 1), value)
    assert d_hellinger(wave(0.1), generated) == 1.0
    both = np.concatenate([wave(0.1), generated], axis=1)
    assert d_hellinger(np.concatenate([wave(0.1)] * 2, axis=1), both) == pytest.approx(0.5, abs=1e-7)


def test_one_non_finite_row_makes_a_diverged_run():
    generated = wave(0.1)
    generated[-1] = np.nan
    assert d_hellinger(wave(0.1), generated) == 1.0


def test_both_are_cut_to_the_shorter_length():
    assert d_hellinger(wave(0.1), wave(0.1)[:700]) == d_hellinger(wave(0.1)[:700], wave(0.1)[:700])


@pytest.mark.parametrize("bad", [np.nan, 7.0])
def test_a_reference_without_a_spectrum_is_an_error(bad):
    with pytest.raises(ConfigError, match="reference is constant or non-finite"):
        d_hellinger(np.full((100, 1), bad), wave(0.1))


@pytest.mark.parametrize("shape", [(3, 1), (0, 2), (10,)])
def test_too_short_or_flat_input_is_an_error(shape):
    with pytest.raises(ConfigError, match="at least 4 steps"):
        power_spectrum(np.zeros(shape))


def test_different_coordinates_are_an_error():
    with pytest.raises(ConfigError, match="same N"):
        d_hellinger(np.random.default_rng(0).standard_normal((100, 2)), wave(0.1)[:100])


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
