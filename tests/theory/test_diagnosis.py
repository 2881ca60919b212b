"""The diagnosis of a model as a whole: numbers, table, sentences, figure."""

import json
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from kaffee.errors import ConfigError
from kaffee.filtering.recursion import Recursion
from kaffee.records import jsonable
from kaffee.report.consistency import describe_diagnosis as describe
from kaffee.report.consistency import diagnosis_figure as figure
from kaffee.report.consistency import diagnosis_table as table
from kaffee.report.style import encode_png
from kaffee.theory.attenuation import Measured
from kaffee.theory.diagnosis import _estimate_over_windows, _finite_mean, _geometric_mean, _probes, diagnose

WINDOWS, ROWS, BURN_IN = 5, 9, 2
HORIZON = ROWS - 1 - BURN_IN


def windows():
    """Standardised windows with a gap, as float32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((WINDOWS, ROWS, 2)).astype(np.float32)
    mask = np.ones(x.shape, bool)
    mask[1, 4] = mask[2, 5, 0] = False
    return np.where(mask, x, np.nan), mask


def surrogate_model():
    model = small_model()
    return model.replace(core=model.core.surrogate())


@pytest.fixture(scope="module")
def found():
    x, mask = windows()
    return diagnose(surrogate_model(), x, mask, x.reshape(-1, 2), burn_in=BURN_IN, columns=("left", "right"))


def test_the_numbers_are_those_of_the_theory(found):
    assert found.num_windows == WINDOWS
    assert found.horizon == HORIZON
    assert found.faulty == 0
    # from the same belief, forecast and filter agree at the first step
    np.testing.assert_allclose(found.pressure_open_loop[0], found.pressure_filter[0], rtol=1e-9)
    np.testing.assert_allclose(found.pressure_filter[0], found.pressure_one_step[0], rtol=1e-9)
    assert (np.array(found.pressure_filter) >= np.array(found.pressure_one_step) - 1e-12).all()
    np.testing.assert_allclose(found.gradient_filter[0], found.gradient_chain[0], rtol=1e-9)
    assert found.log_volume < 0
    assert 0 < found.trace_ratio < 1
    low, mean, high = found.strengths
    assert 0 <= low < mean < high < 1
    assert len(found.kappa) == len(found.dispersion) == 2
    assert found.kappa_worst <= min(found.kappa) < 1
    assert found.directions[0] <= found.directions[1]


def test_it_is_json_a_table_sentences_and_a_picture(found):
    record = json.loads(json.dumps(jsonable(found), allow_nan=False))
    assert record["lemma"] == {"value": found.lemma.value, "se": found.lemma.se}
    assert len(record["gradient_filter"]) == HORIZON
    assert len(table(found).rows) == 13
    text = " ".join(describe(found))
    for word in ("Volume", "Attenuation", "Dispersion", "Forcing", "Lemma 1"):
        assert word in text
    drawing = figure(found)
    assert encode_png(drawing).startswith(b"\x89PNG")
    assert drawing.get_size_inches()[0] == pytest.approx(17 / 2.54)
    assert all(axis.get_xlabel() and axis.get_ylabel() and axis.get_title() for axis in drawing.axes)


def test_sentences_follow_the_numbers(found):
    sure = replace(found, dispersion=[2.0, 0.5], dispersion_se=[0.1, 0.1], lemma=Measured(-1.0, 0.1))
    text = " ".join(describe(replace(sure, directions=[1.2, 3.0], full=Measured(1.0, 0.1))))
    assert "underdispersed) in left." in text
    assert "overdispersed) in right." in text
    assert "so it holds" in text
    assert "asks for more growth" in text
    assert "asks for less growth" in text
    calm = " ".join(describe(replace(sure, dispersion=[1.1, 0.9], lemma=Measured(0.1, 0.1), gain_share=0.0)))
    assert "as large as predicted in every coordinate" in calm
    assert "neither more nor less" in calm
    assert "hides the signal" in " ".join(describe(replace(found, kappa=[-0.5, 0.9])))
    many = replace(found, columns=tuple(f"channel {i}" for i in range(40)), kappa=[0.9] * 40, kappa_worst=float("nan"))
    many = replace(many, dispersion=[2.0] * 40, dispersion_se=[0.1] * 40)
    assert "and 34 more" in " ".join(describe(many))
    assert encode_png(figure(many)).startswith(b"\x89PNG")


def test_a_model_without_transport_feels_no_pressure_and_needs_no_burn_in():
    x, mask = windows()
    found = diagnose(small_model(), x, mask, x.reshape(-1, 2), recursion=Recursion(transport=False), burn_in=0)
    assert found.horizon == ROWS - 1
    assert set(found.pressure_open_loop) == set(found.pressure_filter) == {0.0}
    assert found.gain_share == found.lemma.value == 0.0
    assert found.columns == ("x1", "x2")
    assert "does not move covariances" in describe(found)[0]
    assert encode_png(figure(found)).startswith(b"\x89PNG")


def test_an_exploding_model_is_told_apart_and_not_averaged_in():
    """Every window leaves float64 within the horizon."""
    x, mask = windows()
    model = surrogate_model()
    model = eqx.tree_at(lambda m: m.core.A, model, jnp.full(4, 1e30))
    found = diagnose(model, x, mask, x.reshape(-1, 2), burn_in=BURN_IN)
    assert found.faulty == WINDOWS
    assert "became non-finite" in describe(found)[-1]
    json.dumps(jsonable(found), allow_nan=False)
    assert encode_png(figure(found)).startswith(b"\x89PNG")


def test_windows_that_leave_no_horizon_are_refused():
    x, mask = windows()
    with pytest.raises(ConfigError, match="leave no horizon"):
        diagnose(small_model(), x, mask, x.reshape(-1, 2), burn_in=ROWS - 1)


def test_many_windows_come_in_batches_with_the_same_result(found, monkeypatch):
    x, mask = (np.concatenate([a, a, a[:1]]) for a in windows())
    monkeypatch.setattr("kaffee.theory.diagnosis._MEMORY", WINDOWS * HORIZON * 16 * 80 * 1.2)
    monkeypatch.setattr("kaffee.theory.diagnosis._FORCING_WINDOWS", WINDOWS)
    twice = diagnose(surrogate_model(), x, mask, x.reshape(-1, 2), burn_in=BURN_IN, columns=("left", "right"))
    assert twice.num_windows == 2 * WINDOWS  # the eleventh does not fill a batch
    assert twice.forcing_windows == WINDOWS
    np.testing.assert_allclose(twice.pressure_filter, found.pressure_filter, rtol=1e-9)
    np.testing.assert_allclose(twice.dispersion, found.dispersion, rtol=1e-9)


def test_averages_leave_out_what_is_not_finite():
    values = np.array([[1.0, np.inf], [3.0, np.nan]])
    np.testing.assert_array_equal(_finite_mean(values, axis=0), [2.0, np.nan])
    np.testing.assert_allclose(_geometric_mean(np.array([[1.0, 100.0, 0.0]]), axis=1), [10.0])
    assert _estimate_over_windows(values) == (2.0, pytest.approx(np.nan, nan_ok=True))
    assert np.isnan(_estimate_over_windows(np.full((2, 2), np.nan)).value)


def test_a_large_model_is_perturbed_in_some_directions(x64):
    Q = np.asarray(_probes(200, np.float64))
    assert Q.shape == (200, 128)
    np.testing.assert_allclose(Q.T @ Q, np.eye(128), atol=1e-12)
    assert _probes(3, np.float64).shape == (3, 3)
