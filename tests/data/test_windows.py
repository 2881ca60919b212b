"""Windows: inside recordings, anchored at observed rows, drawn uniformly, compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaffee.data.series import Series
from kaffee.data.windows import WindowSampler, padded, training_windows
from kaffee.errors import ConfigError, DataError


def counting(lengths, width=2):
    """Each value tells recording, row and coordinate."""
    return [10_000.0 * (r + 1) + 10 * np.arange(steps)[:, None] + np.arange(width) for r, steps in enumerate(lengths)]


def test_known_windows():
    sampler = WindowSampler.from_series(Series.from_arrays(counting([4, 2, 3])), length=3)
    assert sampler.starts.tolist() == training_windows(Series.from_arrays(counting([4, 2, 3])), 3).starts.tolist()
    assert sampler.starts.tolist() == [0, 1, 6]
    assert sampler.skipped_recordings == 1
    assert sampler.num_windows == 3
    batch = sampler.take([2, 0])
    np.testing.assert_array_equal(batch.observations[0], counting([4, 2, 3])[2])
    np.testing.assert_array_equal(batch.starts, [6, 0])
    assert batch.observations.dtype == jnp.float32
    assert batch.mask.all()


def test_stride_gives_windows_without_overlap():
    sampler = WindowSampler.from_series(Series.from_arrays(counting([7, 6])), length=3, stride=3)
    assert sampler.starts.tolist() == [0, 3, 7, 10]


def test_windows_start_at_observed_rows_and_have_something_to_score():
    data = np.ones((8, 2))
    data[1, 0] = np.nan
    data[4:7] = np.nan
    data[:, 0] += np.arange(8)
    strict = WindowSampler.from_series(Series.from_arrays(data), length=3)
    assert strict.starts.tolist() == [0, 2]  # row 3 is followed by nothing observed
    assert strict.dropped_windows == 4
    loose = WindowSampler.from_series(Series.from_arrays(data), length=3, require_observed_start=False)
    assert loose.starts.tolist() == [0, 1, 2, 5]
    batch = loose.take(np.array([1]))
    assert batch.mask[0].tolist() == [[False, True], [True, True], [True, True]]
    assert batch.observations[0, 0, 0] == 0
    assert jnp.isfinite(loose.values).all()


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 19), max_size=4),  # 20 rows in all, so that shapes and compiled code repeat
    length=st.sampled_from([2, 4]),
    stride=st.integers(1, 4),
    seed=st.integers(0, 2**16),
    start=st.booleans(),
)
def test_windows_hold_consecutive_rows_of_one_recording(cuts, length, stride, seed, start):
    rng = np.random.default_rng(seed)
    recordings = counting(np.diff([0, *sorted(cuts), 20]))
    for values in recordings:
        values[rng.random(values.shape) < 0.2] = np.nan
    recordings[0][0] = 10_000.0, 10_001.0
    series = Series.from_arrays(recordings)
    try:
        sampler = WindowSampler.from_series(series, length, stride=stride, require_observed_start=start)
    except DataError:  # the messages have tests of their own
        return
    batch = sampler.take(np.arange(20) % sampler.num_windows)
    for window, mask, first in zip(*map(np.asarray, (batch.observations, batch.mask, batch.starts)), strict=True):
        recording, row = series.locate(int(first))
        expected = series.recordings[recording][row : row + length]
        assert len(expected) == length
        assert row % stride == 0
        np.testing.assert_array_equal(mask, ~np.isnan(expected))
        np.testing.assert_array_equal(window, np.nan_to_num(expected, nan=0.0))
        assert mask[1:].any()
        assert mask[0].all() or not start


def test_sampling_compiles_once_and_depends_on_the_key():
    sampler = WindowSampler.from_series(Series.from_arrays(counting([50])), length=5)
    traces = 0

    @jax.jit
    def draw(sampler, key):
        nonlocal traces
        traces += 1
        return sampler.sample(key, 8)

    first, second = draw(sampler, jax.random.key(0)), draw(sampler, jax.random.key(1))
    assert traces == 1
    assert first.observations.shape == (8, 5, 2)
    assert first.mask.shape == (8, 5, 2)
    assert first.starts.tolist() != second.starts.tolist()
    again = sampler.sample(jax.random.key(0), 8)
    np.testing.assert_array_equal(again.starts, first.starts)
    np.testing.assert_array_equal(sampler.take(first.starts).observations, first.observations)


def test_sampling_makes_no_transfer_to_the_host():
    sampler = WindowSampler.from_series(Series.from_arrays(counting([50])), length=5)
    draw = jax.jit(lambda sampler, key: sampler.sample(key, 4))
    key = jax.random.key(0)
    draw(sampler, key)
    with jax.transfer_guard("disallow"):
        draw(sampler, key)


def test_sampling_is_uniform_over_windows_not_recordings():
    sampler = WindowSampler.from_series(Series.from_arrays(counting([4, 12])), length=3)
    draws = 60_000
    starts = np.asarray(sampler.sample(jax.random.key(3), draws).starts)
    probability = 1 / sampler.num_windows
    counts = np.array([(starts == s).sum() for s in np.asarray(sampler.starts)])
    assert counts.sum() == draws
    error = np.sqrt(draws * probability * (1 - probability))
    assert np.abs(counts - draws * probability).max() < 5 * error


def test_too_short_names_recording_and_window():
    series = Series.from_arrays(counting([4, 9, 5]), source="runs.npz")
    with pytest.raises(DataError, match=r"runs\.npz: recording 1, the longest, has 9 steps.*needs 10.*at most 9"):
        WindowSampler.from_series(series, length=10)
    with pytest.raises(DataError, match="recording 0 has 5 steps, but a window needs 7"):
        training_windows(Series.from_arrays(np.ones((5, 1))), 7)


def test_no_observed_start_gives_advice():
    data = np.ones((6, 2))
    data[::2, 0] = np.nan
    data[1::2, 1] = np.nan
    with pytest.raises(DataError, match=r"none of the 4 windows.*Only 0 % of the rows.*require_observed_start=False"):
        WindowSampler.from_series(Series.from_arrays(data), length=3)
    lonely = np.full((9, 1), np.nan)
    lonely[0] = 1
    with pytest.raises(DataError, match="too isolated"):
        WindowSampler.from_series(Series.from_arrays(lonely), length=3, require_observed_start=False)


@pytest.mark.parametrize("options", [{"length": 1}, {"length": 3, "stride": 0}])
def test_options_out_of_range(options):
    with pytest.raises(ConfigError, match="length of 2 or more"):
        WindowSampler.from_series(Series.from_arrays(counting([9])), **options)


def test_dtype_is_checked():
    series = Series.from_arrays(counting([9]))
    with pytest.raises(ConfigError, match="64-bit mode"):
        WindowSampler.from_series(series, 3, dtype=np.float64)
    with pytest.raises(ConfigError, match="not a float type"):
        WindowSampler.from_series(series, 3, dtype=np.int32)
    huge = Series.from_arrays([[1.0, 2.0], [3.0, 1e300], [1.0, 2.0]], columns=["a", "b"])
    with pytest.raises(DataError, match=r"recording 0, row 1, column 'b': 1e\+300 does not fit into float32"):
        WindowSampler.from_series(huge, 2)


@pytest.mark.usefixtures("x64")
def test_float64_windows():
    sampler = WindowSampler.from_series(Series.from_arrays(counting([9])), 3, dtype=np.float64)
    batch = sampler.sample(jax.random.key(0), 2)
    assert batch.observations.dtype == jnp.float64
    assert batch.starts.dtype == jnp.int32


@pytest.mark.parametrize("indices", [[7], [-1], [0.5], 0])
def test_wrong_window_indices(indices):
    sampler = WindowSampler.from_series(Series.from_arrays(counting([9])), 3)
    with pytest.raises(ConfigError, match="from 0 to 6"):
        sampler.take(indices)


def test_windows_start_at_complete_rows_where_these_are_common():
    values = np.arange(12.0).reshape(6, 2)
    values[1, 0] = values[3, 1] = np.nan
    assert training_windows(Series.from_arrays(values), 2).starts.tolist() == [0, 2, 4]


def test_windows_start_anywhere_where_complete_rows_are_rare():
    values = np.arange(24.0).reshape(8, 3)
    values[np.arange(8), np.arange(8) % 3] = np.nan
    sampler = training_windows(Series.from_arrays(values), 3)
    assert sampler.starts.tolist() == [0, 1, 2, 3, 4, 5]


def test_padding_fills_up_with_missing_rows():
    x, mask = padded(Series.from_arrays([np.array([[1.0, np.nan]]), np.array([[2.0, 3.0], [4.0, 5.0]])]))
    assert x.tolist() == [[[1, 0], [0, 0]], [[2, 3], [4, 5]]]
    assert mask.tolist() == [[[True, False], [False, False]], [[True, True], [True, True]]]
    assert x.dtype == jnp.float32
