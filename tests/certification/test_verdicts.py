"""The number of a verdict is the one that decided it, and says what it is."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from certification.problems import passed
from certification.test_free_runs import made, run_of
from kaffee.certification.innovations import residual_checks
from kaffee.certification.verdicts import (
    _find_decisive,
    _Finding,
    _judge_calibration,
    _judge_core,
    _judge_skill,
    _judge_tangents,
    _judge_whiteness,
)
from kaffee.metrics.attractors import AttractorDistances


@pytest.fixture(scope="module")
def right():
    return residual_checks(passed())


def test_the_worst_status_decides_and_then_what_is_farthest_beyond_its_limit():
    near, far, other = _Finding("a", 1.0, "warn", 1.1), _Finding("b", 2.0, "warn", 3.0), _Finding("c", 3.0, "pass", 9.0)
    assert _find_decisive([near, far, other]) == far
    assert _find_decisive([other, near]) == near


@pytest.mark.parametrize(
    ("changes", "status", "value", "quantity"),
    [
        ({"bias": np.array([0.01, -0.4])}, "fail", -0.4, "bias in standard deviations, right"),
        ({"ks": 0.09}, "warn", 0.09, "PIT, distance from uniform, all readings"),
        ({"nis": 4.0}, "fail", 4.0, "NIS, all readings"),
    ],
)
def test_what_is_wrong_is_shown_and_not_a_fair_nis(changes, status, value, quantity, right):
    assert abs(right.nis - 1.0) < 0.1
    verdict = _judge_calibration(replace(right, **changes))
    assert (verdict.status, verdict.value, verdict.quantity) == (status, value, quantity)


def test_whiteness_says_where(right):
    verdict = _judge_whiteness(right)
    assert verdict.quantity.startswith("size of autocorrelation, ")
    assert ", lag " in verdict.quantity


def scores(*gains):
    skill = [SimpleNamespace(gain=g, error=0.1, baseline="linear", num_blocks=9) for g in gains]
    return SimpleNamespace(horizons=(1, 2, 5)[: len(gains)], skill=skill)


@pytest.mark.parametrize(
    ("gains", "status", "value", "horizon"),
    [
        ((0.1, 0.9, 0.3), "pass", 0.9, "2 steps"),
        ((0.1, 0.9, -0.7), "warn", -0.7, "5 steps"),
        ((0.1, -0.9, -0.5), "fail", -0.9, "2 steps"),
    ],
)
def test_skill_is_shown_at_the_horizon_that_decides(gains, status, value, horizon):
    verdict = _judge_skill(scores(*gains))
    assert (verdict.status, verdict.value) == (status, value)
    assert verdict.quantity == f"gain over linear at {horizon}, nats"


@pytest.mark.parametrize(
    ("r2", "reliability", "status", "value", "quantity"),
    [
        (0.5, 0.9, "pass", 0.3, "rank correlation of growths"),
        (0.01, 0.9, "unknown", 0.01, "error below that of a linear map"),
        (0.5, 0.2, "unknown", 0.2, "reliability of the data's tangents"),
    ],
)
def test_tangents_that_say_nothing_show_why(r2, reliability, status, value, quantity):
    found = SimpleNamespace(r2_over_linear=r2, reliability=reliability, within=0.3, method="local")
    verdict = _judge_tangents(found)
    assert (verdict.status, verdict.value, verdict.quantity) == (status, value, quantity)


OCCUPATION, SPECTRUM = "excess of D_stsp, linear model = 1", "excess of D_H over data against data"


@pytest.mark.parametrize(
    ("core", "changes", "value", "quantity"),
    [
        (run_of(1.3, 0.1), {}, 1.2, OCCUPATION),
        (run_of(0.1, 0.5), {}, 0.45, SPECTRUM),
        (run_of(0.1, 0.06), {}, 0.01, SPECTRUM),
        (run_of(0.1, 0.1, trapped=12), {}, 12, "free runs of 20 that are lost"),
        (run_of(np.nan, np.nan, diverged=20), {}, 20, "free runs of 20 that are lost"),
        (run_of(0.1, 0.1, diverged=3), {"linear": None}, 3, "free runs of 20 that are lost"),
        (run_of(0.5, 0.05), {"prior_core": run_of(-0.1, 0.1)}, 0.6, "D_stsp above the prior's, linear model = 1"),
        (run_of(1.3, 0.1), {"prior_core": run_of(0.1, 0.1)}, 1.2, OCCUPATION),
        (run_of(1.3, 0.1), {"linear": run_of(0.1, 0.1)}, 12.0, "excess of D_stsp, 0.1 nats = 1"),
    ],
)
def test_the_number_of_free_runs_is_the_one_that_decides(core, changes, value, quantity):
    verdict = _judge_core(made(core, **changes))
    assert verdict.quantity == quantity
    assert verdict.value == pytest.approx(value)


def test_nothing_to_compare_with_has_no_number():
    verdict = _judge_core(made(run_of(0.1, 0.1), linear=None))
    assert (verdict.status, verdict.value, verdict.quantity) == ("unknown", None, "")
    assert (
        _judge_core(made(run_of(0.1, np.nan), spectra={}, floor=AttractorDistances(0.1, np.nan))).quantity == OCCUPATION
    )
