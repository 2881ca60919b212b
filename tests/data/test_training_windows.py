"""Which windows training draws from, and recordings as one padded batch."""

import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.data.series import Series
from kaffee.data.windows import padded, training_windows
from kaffee.errors import DataError

NAN = np.nan


def test_windows_start_at_complete_rows_where_these_are_common():
    values = np.arange(12.0).reshape(6, 2)
    values[1, 0] = values[3, 1] = NAN
    assert training_windows(Series.from_arrays(values), 2).starts.tolist() == [0, 2, 4]


def test_windows_start_anywhere_where_complete_rows_are_rare():
    values = np.arange(24.0).reshape(8, 3)
    values[np.arange(8), np.arange(8) % 3] = NAN
    sampler = training_windows(Series.from_arrays(values), 3)
    assert sampler.starts.tolist() == [0, 1, 2, 3, 4, 5]


def test_windows_stay_inside_their_recording():
    series = Series.from_arrays([np.ones((4, 1)), np.ones((2, 1)), np.ones((3, 1))])
    assert training_windows(series, 3).starts.tolist() == [0, 1, 6]


def test_too_long_a_window_is_a_clear_error():
    with pytest.raises(DataError, match="recording 0 has 5 steps, but a window needs 7"):
        training_windows(Series.from_arrays(np.ones((5, 1))), 7)


def test_padding_fills_up_with_missing_rows():
    x, mask = padded(Series.from_arrays([np.array([[1.0, NAN]]), np.array([[2.0, 3.0], [4.0, 5.0]])]))
    assert x.tolist() == [[[1, 0], [0, 0]], [[2, 3], [4, 5]]]
    assert mask.tolist() == [[[True, False], [False, False]], [[True, True], [True, True]]]
    assert x.dtype == jnp.float32
