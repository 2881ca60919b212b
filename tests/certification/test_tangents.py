"""Maps from data have the tangents of what made the data, noise is smoothed as far as forecasts gain from it."""

import numpy as np
import pytest

from certification.problems import SCALER, passed, train_series
from kaffee.certification.tangents import (
    Candidate,
    TangentProxy,
    _choose_candidate,
    _fit_linear_map,
    _fit_local_map,
    _fit_quadratic_map,
    _forecast_error,
    _hann,
    _list_maps,
    _pair_rows,
    _smooth,
    tangent_proxy,
    try_candidates,
)
from kaffee.certification.verdicts import _judge_tangents
from kaffee.errors import DataError

RNG = np.random.default_rng(0)


def henon(x):
    """x' = 1 - 1.4 x^2 + 0.3 y, y' = x."""
    return np.stack([1.0 - 1.4 * x[:, 0] ** 2 + 0.3 * x[:, 1], x[:, 0]], axis=1)


def oscillator(num_steps, noise):
    """Van der Pol's in fine steps, kicked a little, with noise on top; and its Jacobians."""
    z, rows, J = np.array([1.0, 0.0]), [], []
    for _ in range(num_steps):
        rows.append(z)
        x, y = z
        J.append([[1.0, 0.1], [-0.1 * (1.0 + 2.0 * x * y), 1.0 + 0.1 * (1.0 - x**2)]])
        z = z + 0.1 * np.array([y, (1.0 - x**2) * y - x]) + 0.03 * RNG.standard_normal(2)
    return np.array(rows) + noise * RNG.standard_normal((num_steps, 2)), np.array(J)


def test_a_linear_map_is_found_exactly():
    A = np.array([[0.9, -0.3], [0.3, 0.9]])
    x = RNG.standard_normal((500, 2))
    value, J = _fit_linear_map(x, x @ A.T + [1.0, 2.0])(np.array([[3.0, 4.0]]))
    np.testing.assert_allclose(J[0], A, atol=2e-3)  # the ridge is a thousandth
    np.testing.assert_allclose(value[0], A @ [3.0, 4.0] + [1.0, 2.0], atol=2e-2)


def test_tangents_of_a_quadratic_map():
    x = RNG.standard_normal((2000, 2))
    fitted, points = _fit_quadratic_map(x, henon(x)), x[:50]
    value, J = fitted(points)
    expected = np.zeros((50, 2, 2))
    expected[:, 0, 0], expected[:, 0, 1], expected[:, 1, 0] = -2.8 * points[:, 0], 0.3, 1.0
    np.testing.assert_allclose(J, expected, atol=0.02)  # the ridge is a thousandth
    np.testing.assert_allclose(value, henon(points), atol=0.02)
    step = 1e-5
    for j, e in enumerate(np.eye(2)):
        difference = (fitted(points + step * e)[0] - fitted(points - step * e)[0]) / (2 * step)
        np.testing.assert_allclose(J[:, :, j], difference, atol=1e-8)


def test_tangents_of_any_smooth_map_by_analogues():
    x = RNG.uniform(-2, 2, (4000, 2))
    after = np.stack([np.sin(x[:, 0]), x[:, 0] * x[:, 1]], axis=1)
    points = RNG.uniform(-1, 1, (40, 2))
    value, J = _fit_local_map(x, after, share=0.02)(points)
    expected = np.zeros((40, 2, 2))
    expected[:, 0, 0] = np.cos(points[:, 0])
    expected[:, 1, 0], expected[:, 1, 1] = points[:, 1], points[:, 0]
    np.testing.assert_allclose(value, np.stack([np.sin(points[:, 0]), points.prod(axis=1)], axis=1), atol=0.05)
    np.testing.assert_allclose(J, expected, atol=0.1)


def test_smoothing_weights_and_gaps():
    assert _hann(0) == (1.0,)
    assert sum(_hann(3)) == pytest.approx(1.0)
    x = np.arange(10.0)[:, None]
    found = _smooth(x, 2)[:, 0]
    np.testing.assert_allclose(found[2:8], np.arange(2.0, 8.0))  # a line stays
    assert np.isnan(found[[0, 1, 8, 9]]).all()
    x[5] = np.nan
    assert np.isnan(_smooth(x, 2)[3:8]).all()
    assert np.isnan(_smooth(x[:3], 2)).all()
    now, after = _pair_rows([x], 0)
    assert len(now) == 7  # neither into the gap nor out of it
    np.testing.assert_array_equal(after - now, 1.0)


def test_no_smoothing_sees_what_it_forecasts():
    """The error of the true map on noisy rows is the noise of the target plus what became of that of the origin."""
    x = np.random.default_rng(3).standard_normal((4000, 1))  # pure noise: nothing can be forecast

    def identity(points):
        return points, np.ones((len(points), 1, 1))

    for width in (0, 1, 2):
        expected = 1.0 + sum(w**2 for w in _hann(width))
        assert _forecast_error(identity, [x], width) == pytest.approx(expected, rel=0.2)


def test_a_map_of_large_steps_is_not_smoothed_and_fine_samples_are():
    rows = [np.array([[0.1, 0.1]])]
    for _ in range(3000):
        rows.append(henon(rows[-1]))
    best = _choose_candidate(try_candidates([np.concatenate(rows)]))
    assert (best.name, best.width) == ("quadratic", 0)
    noisy, _ = oscillator(3000, noise=0.15)
    best = _choose_candidate(try_candidates([noisy]))
    assert best.name.startswith("local")  # the oscillator is cubic
    assert best.width >= 1


def test_smoothing_brings_tangents_closer():
    """Errors in variables: noise in the regressors pulls slopes to zero."""
    noisy, J = oscillator(4000, noise=0.15)
    points = slice(100, 3900, 40)

    def error(width):
        s = _smooth(noisy, width)
        found = _fit_local_map(*_pair_rows([noisy], width), share=0.15)(s[points])[1]
        return np.abs(found - J[points]).mean()

    assert error(2) < 0.6 * error(0)


def test_of_equally_good_local_maps_the_widest_is_chosen():
    found = [Candidate("local 0.05", 1, 1.0), Candidate("local 0.15", 1, 1.015), Candidate("linear", 0, 1.01)]
    assert _choose_candidate(found).name == "local 0.15"
    assert _choose_candidate([*found[:1], Candidate("local 0.15", 1, 1.03)]).name == "local 0.05"
    assert _choose_candidate([Candidate("quadratic", 1, 0.9), *found]).name == "quadratic"
    assert "quadratic" not in _list_maps(50)  # 1326 features


def test_a_linear_system_has_no_tangents_to_follow():
    proxy = tangent_proxy(passed(), train_series().standardised(SCALER).recordings)
    assert proxy.r2_over_linear < 0.05
    verdict = _judge_tangents(proxy)
    assert verdict.status == "unknown"
    assert "do not show" in verdict.sentence


def test_too_few_pairs_are_an_error():
    with pytest.raises(DataError, match="too few complete consecutive rows"):
        tangent_proxy(passed(), [np.full((100, 2), np.nan), RNG.standard_normal((50, 2))])


@pytest.mark.parametrize(
    ("within", "nonlinear", "reliability", "status"),
    [
        (0.5, 0.3, 0.9, "pass"),
        (0.15, 0.3, 0.9, "warn"),
        (0.0, 0.3, 0.9, "fail"),
        (0.5, 0.01, 0.9, "unknown"),
        (0.5, 0.3, 0.2, "unknown"),
        (0.5, np.nan, 0.9, "unknown"),
    ],
)
def test_tangent_verdicts(within, nonlinear, reliability, status):
    proxy = TangentProxy(within, within, "local 0.05, 1", 0.9, nonlinear, reliability, 1000, [])
    assert _judge_tangents(proxy).status == status
