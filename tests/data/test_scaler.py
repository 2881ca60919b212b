"""Standardisation: known answers, exact storage, any float type of NumPy and JAX."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import DataError


def test_fit_pools_observed_values_of_all_recordings():
    series = Series.from_arrays([np.array([[1.0, 10], [np.nan, 20]]), np.array([[3.0, 30], [5.0, np.nan]])])
    scaler = Scaler.fit(series)
    np.testing.assert_allclose(scaler.mean, [3, 20])
    np.testing.assert_allclose(scaler.scale, [np.sqrt(8 / 3), np.sqrt(200 / 3)])


@pytest.mark.parametrize("size", [1e300, 1e-300, 5e-310, 1.7e308])
def test_fit_neither_overflows_nor_underflows(size):
    scaler = Scaler.fit(Series.from_arrays(np.array([-1.0, 1.0, -1.0, 1.0]) * size))
    np.testing.assert_allclose(scaler.scale, [size], rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0, 1e300])
def test_constant_coordinate_is_named(value):
    data = np.random.default_rng(0).normal(size=(1000, 3))
    data[:, 1] = value
    data[5, 1] = np.nan
    series = Series.from_arrays(data, columns=["a", "b", "c"], source="lab.csv")
    with pytest.raises(DataError, match=r"lab\.csv: constant column 'b'.*999 observed.*Leave it out: --columns a,c"):
        Scaler.fit(series)


def test_storage_is_exact():
    scaler = Scaler.fit(Series.from_arrays(np.random.default_rng(1).normal(size=(50, 4)) * 1e-7 + 1 / 3))
    back = Scaler.from_dict(json.loads(json.dumps(scaler.to_dict())))
    assert back == scaler
    assert hash(back) == hash(scaler)
    np.testing.assert_array_equal(back.mean, scaler.mean)
    assert scaler != Scaler.identity(4)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"mean": [0.0]}, "missing: \\['scale'\\]"),
        ({"mean": [0.0], "scale": [1.0, 2.0]}, "same shape"),
        ({"mean": [0.0], "scale": [0.0]}, "positive"),
        ({"mean": [float("nan")], "scale": [1.0]}, "finite mean"),
        ({"mean": ["a"], "scale": [1.0]}, "not real numbers"),
    ],
)
def test_damaged_storage_is_refused(stored, words):
    with pytest.raises(DataError, match=words):
        Scaler.from_dict(stored)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_jax_arrays_keep_their_type(dtype):
    scaler = Scaler([1.0, 2.0], [2.0, 4.0])
    x = jnp.ones((3, 5, 2), dtype)
    with jax.numpy_rank_promotion("raise"):
        for function in (scaler.transform, scaler.inverse, scaler.inverse_std):
            assert function(x).dtype == dtype
            assert jax.jit(function)(x).dtype == dtype
    assert isinstance(scaler.transform(x), jax.Array)
    assert scaler.transform(np.ones((3, 2), np.float32)).dtype == np.float32
    assert scaler.transform([[1, 2]]).tolist() == [[0.0, 0.0]]


@pytest.mark.usefixtures("x64")
def test_float64_in_jax():
    scaler = Scaler([1.0, 2.0], [2.0, 4.0])
    assert scaler.inverse(jnp.ones((3, 2), jnp.float64)).dtype == jnp.float64


def test_spread_follows_the_samples():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 3))
    scaler = Scaler.fit(Series.from_arrays(x))
    z = scaler.transform(x)
    np.testing.assert_allclose(scaler.inverse_std(z.std(axis=0)), x.std(axis=0), rtol=1e-12)


def test_wrong_shapes_are_refused():
    scaler = Scaler.identity(3)
    with pytest.raises(DataError, match="holds 3 coordinates"):
        scaler.transform(np.ones((4, 2)))
    with pytest.raises(DataError, match="works on floats"):
        scaler.transform(jnp.ones((2, 3), jnp.int32))


# Rounding of subnormal numbers is absolute, not relative.
numbers = st.floats(-1e6, 1e6).map(lambda value: 0.0 if abs(value) < 1e-290 else value)


@given(st.lists(numbers, min_size=3, max_size=3), st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3),
       st.lists(st.one_of(numbers, st.just(float("nan"))), min_size=3, max_size=3))  # fmt: skip
def test_inverse_undoes_transform(mean, scale, x):
    scaler = Scaler(mean, scale)
    slack = 1e-15 * (np.abs(mean) + np.abs(x))
    back = scaler.inverse(scaler.transform(np.array(x)))
    assert np.all((np.abs(back - x) <= 8 * slack) | np.isnan(x))
    np.testing.assert_array_equal(np.isnan(back), np.isnan(x))


def test_a_coordinate_that_was_never_observed_has_no_scale():
    with pytest.raises(DataError, match=r"column 'b' without any observed value\. Select"):
        Scaler.fit(Series.from_arrays([[1.0, np.nan], [2.0, np.nan]], columns=["a", "b"]))
