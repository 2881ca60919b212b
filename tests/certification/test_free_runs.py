"""Free runs: distances have a floor, constant coordinates are left out, divergence is a verdict and not a crash."""

from dataclasses import replace

import numpy as np
import pytest

from certification.problems import A, held_out_series, linear_model, reconstruct, series_of, simulated, train_series
from certification.problems import true_reconstruction as right
from kaffee.certification.free_runs import Agreement, RunSummary, agreement
from kaffee.certification.verdicts import _judge_core, _judge_run
from kaffee.data.gaps import constant_columns, longest_stretch, pieces, stretches
from kaffee.errors import DataError
from kaffee.filtering.evaluation import Target
from kaffee.metrics.attractors import AttractorDistances
from kaffee.records import jsonable

SMALL = {"runs": 4, "steps": 500}


@pytest.fixture(scope="module")
def found():
    """The true model, as its own linear baseline and as the prior."""
    return agreement(right(), train_series(), held_out_series(), linear=right(), prior=right(), **SMALL)


def test_the_true_stochastic_run_is_as_close_as_other_data(found):
    assert found.num_rows == 1500  # no more than the longest training recording
    assert found.num_pieces == 1
    assert abs(found.stochastic.typical.d_stsp - found.floor.d_stsp) < 0.1
    assert abs(found.stochastic.typical.d_h - found.floor.d_h) < 0.05
    assert found.stochastic.lowest < found.stochastic.typical.d_stsp < found.stochastic.highest
    assert jsonable(found.linear) == jsonable(found.stochastic) == jsonable(found.prior_stochastic)
    assert jsonable(found.core) == jsonable(found.prior_core)
    assert _judge_run("stochastic run", found, found.stochastic).status == "pass"


def test_a_core_at_rest_fails(found):
    """A stable linear core without noise comes to rest: the collapse that certification must see."""
    assert found.core.typical.d_stsp > 10 * found.stochastic.typical.d_stsp
    assert found.core.typical.d_h == found.at_rest.d_h == 1.0
    assert found.core.typical.d_stsp == pytest.approx(found.at_rest.d_stsp, rel=0.2)
    verdict = _judge_core(found)
    assert verdict.status == "fail"
    assert "Lyapunov exponent is -0." in verdict.sentence
    assert (found.core.trapped, found.stochastic.trapped) == (4, 0)
    assert "none of 4 free runs of 3000 steps left the attractor; 4 stay in a part of it" in verdict.sentence


def test_exponents_are_those_of_the_matrix(found):
    moduli = np.sort(np.log(np.abs(np.linalg.eigvals(A))))[::-1] / 0.5
    np.testing.assert_allclose(found.exponents.values, moduli, atol=1e-3)
    assert (found.exponents.errors < 1e-2).all()
    assert found.exponents.sum_positive == 0.0
    assert found.exponents.kaplan_yorke == 0.0


def test_figures_are_small_and_in_data_units(found):
    assert set(found.drawn) == {"data", "core", "stochastic", "prior"}
    assert found.drawn["data"].shape == found.drawn["core"].shape == (1500, 2)
    assert abs(found.drawn["stochastic"].mean(axis=0)[1] + 200) < 40
    assert len(found.frequencies) == len(found.spectra["data"]) <= 400
    assert found.frequencies[-1] <= 1.0  # Nyquist of a step of 0.5


def test_the_truth_and_the_prior_stand_beside_the_core(found):
    assert found.truth is None
    np.testing.assert_array_equal(found.prior_exponents.values, found.exponents.values)
    train, test = train_series(), held_out_series()
    known = agreement(right(), train, test, truth=np.concatenate([test.recordings[0]] * 2), **SMALL)
    assert known.truth == AttractorDistances(pytest.approx(0.0, abs=0.2), pytest.approx(0.0, abs=0.2))
    np.testing.assert_array_equal(known.drawn["truth"], known.drawn["data"])
    assert agreement(right(), train, test, truth=test.recordings[1], **SMALL).truth is None  # too short


def test_a_diverging_core_is_a_verdict():
    away = reconstruct(linear_model(1.2 * A))
    found = agreement(away, train_series(), held_out_series(), linear=right(), **SMALL)
    assert found.core.diverged == found.stochastic.diverged == 4
    assert 0 < found.core.first < 2500
    assert found.exponents is None
    assert np.isnan(found.core.typical.d_stsp)
    assert set(found.drawn) == {"data"}
    for verdict in (_judge_core(found), _judge_run("stochastic run", found, found.stochastic)):
        assert verdict.status == "fail"
        assert "4 of 4 free runs" in verdict.sentence


def test_a_constant_held_out_coordinate_is_left_out():
    values = simulated(1500, 8)
    values[:, 0] = 7.0
    found = agreement(right(), train_series(), series_of(values), linear=right(), **SMALL)
    assert found.columns == found.shown == ("right",)
    assert _judge_run("stochastic run", found, found.stochastic).status == "pass"
    values[:, 1] = 7.0
    with pytest.raises(DataError, match="every held-out coordinate is constant"):
        agreement(right(), train_series(), series_of(values), **SMALL)


def test_short_recordings_are_an_error():
    with pytest.raises(DataError, match="there are 100 rows without gaps; free runs are compared with at least 200"):
        agreement(right(), train_series(), series_of(simulated(100, 0)), **SMALL)


def with_gaps(series, share=0.3):
    rng = np.random.default_rng(0)
    return series_of(*(np.where(rng.random(x.shape) < share, np.nan, x) for x in series.recordings))


def test_with_many_gaps_complete_rows_are_compared():
    """No stretch of 200 rows is left, but half of the rows are complete: they say where the system lives."""
    train, test = with_gaps(train_series()), with_gaps(held_out_series())
    assert len(longest_stretch(test)) < 200
    found = agreement(right(), train, test, linear=right(), prior=right(), **SMALL)
    assert 200 <= found.num_rows <= 2000
    assert found.num_pieces >= 1
    assert abs(found.stochastic.typical.d_stsp - found.floor.d_stsp) < 0.1
    assert np.isnan([found.stochastic.typical.d_h, found.floor.d_h, found.at_rest.d_h]).all()
    assert found.spectra == {}
    assert np.isnan(found.drawn["data"]).any()
    verdict = _judge_run("stochastic run", found, found.stochastic)
    assert verdict.status == "pass"
    assert "no spectrum, since the data have too many gaps for one" in verdict.sentence
    assert _judge_core(found).status == "fail"  # at rest
    assert (found.core.trapped, found.stochastic.trapped) == (4, 0)


def test_distances_of_identical_and_shifted_runs():
    x = np.random.default_rng(0).standard_normal((500, 2))
    same, shifted, lost = Target(x, "kernel").measure([x, x + 3.0, np.full_like(x, np.nan)])
    assert same == AttractorDistances(0.0, pytest.approx(0.0, abs=1e-7))
    assert shifted.d_stsp > 2.0
    assert lost.d_stsp == np.inf


def test_stretches_and_pieces():
    values = np.arange(20.0).reshape(10, 2)
    values[3, 1] = np.nan
    assert [len(part) for part in stretches(values)] == [3, 6]
    series = series_of(values, np.ones((4, 2)))
    np.testing.assert_array_equal(longest_stretch(series), values[4:])
    assert [len(piece) for piece in pieces(series, 3)] == [3, 3, 3, 3]
    assert len(pieces(series_of(np.ones((100, 2))), 2)) == 10
    assert pieces(series, 7) == []
    assert [len(piece) for piece in pieces(series, 5, gaps=True)] == [5, 5]
    assert pieces(series_of(np.where(np.arange(20.0)[:, None] % 5 < 2, np.ones((20, 2)), np.nan)), 5, gaps=True) == []
    assert constant_columns(np.array([[1.0, 2.0], [1.0, 3.0]])).tolist() == [True, False]


def run_of(d_stsp, d_h, *, diverged=0, trapped=0):
    return RunSummary(AttractorDistances(d_stsp, d_h), d_stsp, d_stsp, diverged, 9 if diverged else 0, trapped)


def made(core, **changes):
    """An agreement of which only the core's numbers matter."""
    near, far = AttractorDistances(0.1, 0.05), run_of(1.1, 0.2)
    spectra = {"frequencies": np.zeros(1), "spectra": {"data": np.ones((1, 1))}}
    blank = Agreement(
        *(500, 20, 1000, ("x",)),
        *(core, core, None, None, far, near, near, 3, far.typical),
        *(None, (), {}),
        **spectra,
    )
    return replace(blank, **changes)


@pytest.mark.parametrize(
    ("core", "changes", "status"),
    [
        (run_of(0.5, 0.1), {}, "pass"),
        (run_of(0.8, 0.1), {}, "warn"),
        (run_of(1.3, 0.1), {}, "fail"),
        (run_of(0.1, 0.25), {}, "warn"),
        (run_of(0.1, 0.5), {}, "fail"),
        (run_of(0.1, 0.1, diverged=2), {}, "warn"),
        (run_of(0.1, 0.1, diverged=3), {}, "fail"),
        (run_of(0.1, 0.1, diverged=1, trapped=1), {}, "warn"),
        (run_of(0.1, 0.1, trapped=12), {}, "fail"),
        (run_of(np.nan, np.nan, diverged=20), {}, "fail"),
        (run_of(0.1, 0.1), {"linear": None}, "unknown"),
        (run_of(0.7, 0.1), {"prior_core": run_of(0.1, 0.1)}, "warn"),
        (run_of(1.3, 0.1), {"floor_highest": AttractorDistances(50.0, 0.9)}, "fail"),
        (run_of(0.9, 0.1), {"floor_highest": AttractorDistances(50.0, 0.9)}, "pass"),
    ],
)
def test_core_verdicts(core, changes, status):
    assert _judge_core(made(core, **changes)).status == status


def test_a_verdict_says_its_limits():
    sentence = _judge_core(made(run_of(0.5, 0.1))).sentence
    assert "D_stsp 0.50, over runs 0.50 to 0.50 (data against data 0.10, linear model 1.10, limit 0.60)" in sentence
    assert "D_H 0.10 (data against data 0.05, limit 0.15)" in sentence
