"""Cycles, covariance maps and summaries against known answers."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.model.maps import Linear, Polynomial
from kaffee.paper.controls import (
    _covariance_gain,
    _interval,
    _jacobian_eigenvalues,
    _LimitCycle,
    _measure_cycle,
    spiral_summary,
)
from kaffee.paper.objectives import DataUnits
from kaffee.records import jsonable

DT = 0.05


@pytest.mark.parametrize(("amplitude", "period", "offset"), [(2.0, 7.2, 0.0), (0.3, 3.3, -5.0)])
def test_cycle_of_a_sine(amplitude, period, offset):
    t = DT * np.arange(3000)
    cycle = _measure_cycle(offset + amplitude * np.sin(2 * np.pi * t / period + 0.4), DT)
    # A peak is missed by at most half a step, a crossing by the curvature of the sine.
    assert cycle.amplitude == pytest.approx(amplitude, rel=(np.pi * DT / period) ** 2)
    assert cycle.period == pytest.approx(period, rel=1e-4)
    assert not cycle.at_rest


def test_cycle_of_what_does_not_oscillate():
    rest = _measure_cycle(1.5 + 1e-6 * np.random.default_rng(0).standard_normal(500), DT)
    assert rest.at_rest
    assert np.isnan(rest.period)
    assert np.isnan(_measure_cycle(np.arange(500.0), DT).period)
    assert np.isnan(_measure_cycle(np.array([0.0, np.inf]), DT).amplitude)


def test_returning_needs_amplitude_and_period():
    truth = _LimitCycle(2.0, 7.0)
    assert _LimitCycle(2.09, 6.7).returns_to(truth)
    assert not _LimitCycle(2.11, 7.0).returns_to(truth)
    assert not _LimitCycle(2.0, 7.4).returns_to(truth)
    assert not _LimitCycle(0.0, float("nan")).returns_to(truth)


def test_covariance_gain_of_a_linear_map():
    A = np.array([[0.9, -0.4], [0.1, 0.7]])
    core = Linear(jnp.asarray(A, jnp.float32), jnp.ones(2))
    starts = np.random.default_rng(0).standard_normal((4, 2))
    for horizon in (1, 20):
        power = np.linalg.matrix_power(A, horizon)
        expected = np.trace(power @ power.T) / 2
        np.testing.assert_allclose(_covariance_gain(core, starts, horizon), expected, rtol=1e-5)


def test_covariance_gain_follows_the_core_itself():
    """Two steps of a nonlinear map: the second Jacobian is that of the state after the first step."""
    core = Polynomial(0.5 * jnp.eye(2), 0.1 * jnp.ones((2, 7)), jnp.zeros(2))
    z = jnp.array([0.3, -0.8])
    product = np.asarray(core.jacobian(core(z))) @ np.asarray(core.jacobian(z))
    gain = _covariance_gain(core, np.asarray(z)[None], 2)
    np.testing.assert_allclose(gain, (product**2).sum() / 2, rtol=1e-5)


def test_eigenvalues_do_not_depend_on_units():
    inner = Linear(jnp.array([[0.9, -0.3], [0.3, 0.9]]), jnp.array([0.1, 0.2]))
    core = DataUnits(inner, jnp.array([5.0, -1.0]), jnp.array([2.0, 0.1]))
    found = _jacobian_eigenvalues(core, np.zeros((3, 2)))
    np.testing.assert_allclose(np.sort_complex(found[1]), [0.9 - 0.3j, 0.9 + 0.3j], rtol=1e-5)
    z = jnp.array([3.0, -0.9])
    u = jnp.array([-1.0, 1.0])
    np.testing.assert_allclose(core(z), jnp.array([5.0, -1.0]) + jnp.array([2.0, 0.1]) * inner(u), rtol=1e-5)


def test_confidence_interval_of_ten_seeds():
    values = np.arange(10.0)
    mean, half = _interval(values)
    assert mean == 4.5
    assert half == pytest.approx(2.2621572 * values.std(ddof=1) / np.sqrt(10), rel=1e-6)


def test_summaries_count_every_seed():
    cells = [
        {"objective": "kaffee", "noise": 0.5, "seed": s, "spectral_radius": 0.9 + s, "radius_error": float(s)}
        for s in (0, 1)
    ]
    group = spiral_summary(cells)["kaffee"][0.5]
    assert group["spectral_radius"][0] == pytest.approx(1.4)
    assert group["radius_error"][0] == 0.5


def test_plain_values_are_json():
    value = jsonable(
        {"a": np.array([1.0, np.inf]), "b": np.float32(0.1), "c": np.bool_(True), "d": 3, "e": 1 / 3}, digits=5
    )
    assert json.loads(json.dumps(value)) == {"a": [1.0, None], "b": 0.1, "c": True, "d": 3, "e": 0.33333}
