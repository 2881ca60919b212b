"""Free runs: distances have a floor, constant coordinates are left out, divergence is a verdict and not a crash."""

from dataclasses import replace

import numpy as np
import pytest

from certification.problems import A, held_out_series, linear_model, reconstruct, series_of, simulated, train_series
from certification.problems import true_reconstruction as right
from kaffee.certification.agreement import Agreement, agreement
from kaffee.certification.free_runs import Distance, Divergence, compared
from kaffee.certification.run_verdicts import core_verdict, stochastic_verdict
from kaffee.data.stretches import constant_columns, longest_stretch, pieces, stretches
from kaffee.errors import DataError

SMALL = {"runs": 4, "steps": 500}


@pytest.fixture(scope="module")
def found():
    """The true model, as its own linear baseline and as the prior."""
    return agreement(right(), train_series(), held_out_series(), linear=right(), prior=right(), **SMALL)


def test_the_true_stochastic_run_is_as_close_as_other_data(found):
    assert found.num_rows == 1500  # no more than the longest training recording
    assert found.num_pieces == 1
    assert abs(found.stochastic.d_stsp - found.floor.d_stsp) < 0.1
    assert abs(found.stochastic.d_h - found.floor.d_h) < 0.05
    assert found.linear == found.stochastic == found.prior_stochastic
    assert stochastic_verdict(found).status == "pass"


def test_a_core_at_rest_fails(found):
    """A stable linear core without noise comes to rest: the collapse that certification must see."""
    assert found.core.d_stsp > 10 * found.stochastic.d_stsp
    assert found.core.d_h == found.at_rest.d_h == 1.0
    assert found.core.d_stsp == pytest.approx(found.at_rest.d_stsp, rel=0.2)
    verdict = core_verdict(found)
    assert verdict.status == "fail"
    assert "Lyapunov exponent is -0." in verdict.sentence
    assert (found.divergence.trapped_core, found.divergence.trapped_stochastic) == (4, 0)
    assert "4 of 4 are trapped in a small part of it" in verdict.sentence


def test_exponents_are_those_of_the_matrix(found):
    moduli = np.sort(np.log(np.abs(np.linalg.eigvals(A))))[::-1] / 0.5
    np.testing.assert_allclose(found.exponents.values, moduli, atol=1e-3)
    assert (found.exponents.errors < 1e-2).all()
    assert found.exponents.sum_positive == 0.0
    assert found.exponents.kaplan_yorke == 0.0


def test_figures_are_small_and_in_data_units(found):
    assert set(found.runs) == {"data", "core", "stochastic"}
    assert found.runs["data"].shape == (1500, 2)
    assert abs(found.runs["stochastic"].mean(axis=0)[1] + 200) < 40
    assert len(found.frequencies) == len(found.spectra["data"]) <= 400
    assert found.frequencies[-1] <= 1.0  # Nyquist of a step of 0.5


def test_a_diverging_core_is_a_verdict():
    away = reconstruct(linear_model(1.2 * A))
    found = agreement(away, train_series(), held_out_series(), linear=right(), **SMALL)
    assert found.divergence.core == found.divergence.stochastic == 4
    assert 0 < found.divergence.first_core < 500
    assert found.exponents is None
    assert np.isnan(found.core.d_stsp)
    for verdict in (core_verdict(found), stochastic_verdict(found)):
        assert verdict.status == "fail"
        assert "4 of 4 free runs" in verdict.sentence


def test_a_constant_held_out_coordinate_is_left_out():
    values = simulated(1500, 8)
    values[:, 0] = 7.0
    found = agreement(right(), train_series(), series_of(values), linear=right(), **SMALL)
    assert found.columns == found.shown == ("right",)
    assert stochastic_verdict(found).status == "pass"
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
    assert abs(found.stochastic.d_stsp - found.floor.d_stsp) < 0.1
    assert np.isnan([found.stochastic.d_h, found.floor.d_h, found.at_rest.d_h]).all()
    assert found.spectra == {}
    assert np.isnan(found.runs["data"]).any()
    verdict = stochastic_verdict(found)
    assert verdict.status == "pass"
    assert "no spectrum, since the data have too many gaps for one" in verdict.sentence
    assert core_verdict(found).status == "fail"  # at rest
    assert (found.divergence.trapped_core, found.divergence.trapped_stochastic) == (4, 0)


def test_distances_of_identical_and_shifted_runs():
    x = np.random.default_rng(0).standard_normal((500, 2))
    assert compared(x, x) == Distance(0.0, pytest.approx(0.0, abs=1e-7))
    assert compared(x, x + 3.0).d_stsp > 2.0
    assert compared(x, np.full_like(x, np.nan)).d_stsp == np.inf


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


def made(core, **changes):
    """An agreement of which only the core's numbers matter."""
    near, far = Distance(0.1, 0.05), Distance(1.1, 0.2)
    quiet = Divergence(20, 1000, 0, 0, 0, 0)
    none = {
        "exponents": None,
        "shown": (),
        "runs": {},
        "frequencies": np.zeros(1),
        "spectra": {"data": np.ones((1, 1))},
    }
    blank = Agreement(500, ("x",), core, core, None, None, far, near, near, 3, far, quiet, **none)
    return replace(blank, **changes)


@pytest.mark.parametrize(
    ("core", "changes", "status"),
    [
        (Distance(0.5, 0.1), {}, "pass"),
        (Distance(0.8, 0.1), {}, "warn"),
        (Distance(1.3, 0.1), {}, "fail"),
        (Distance(0.1, 0.25), {}, "warn"),
        (Distance(0.1, 0.5), {}, "fail"),
        (Distance(0.1, 0.1), {"divergence": Divergence(20, 1000, 2, 0, 9, 0)}, "warn"),
        (Distance(0.1, 0.1), {"divergence": Divergence(20, 1000, 3, 0, 9, 0)}, "fail"),
        (Distance(0.1, 0.1), {"divergence": Divergence(20, 1000, 1, 0, 9, 0, 1, 0)}, "warn"),
        (Distance(0.1, 0.1), {"divergence": Divergence(20, 1000, 0, 0, 0, 0, 12, 0)}, "fail"),
        (Distance(np.nan, np.nan), {}, "fail"),
        (Distance(0.1, 0.1), {"linear": None}, "unknown"),
        (Distance(0.7, 0.1), {"prior_core": Distance(0.1, 0.1)}, "warn"),
    ],
)
def test_core_verdicts(core, changes, status):
    assert core_verdict(made(core, **changes)).status == status
