"""Held-out data that are too few are named with what is needed."""

import numpy as np
import pytest

from certification.problems import series_of
from kaffee.certification.certificate import describe_shortage


def rows(count):
    return np.random.default_rng(0).standard_normal((count, 2))


@pytest.mark.parametrize("count", [200, 1000])
def test_enough_is_not_mentioned(count):
    assert describe_shortage(series_of(rows(count))) == ""


def test_four_rows_are_too_few_for_everything():
    assert describe_shortage(series_of(rows(4))) == (
        "4 held-out rows are too few for the certificate: one-step predictions need 50 readings, of which there are 6 "
        "after 1 row of warm-up; free runs need 200 rows without gaps, of which there are 4. Record more, or hold out "
        "more by test_fraction"
    )


def test_a_hundred_rows_are_too_few_for_free_runs_only():
    sentence = describe_shortage(series_of(rows(60), rows(40)))
    assert sentence.startswith("100 held-out rows are too few for the certificate: free runs need 200")
    assert "one-step" not in sentence


def test_gaps_count():
    values = rows(300)
    values[::2, 0] = np.nan
    assert "free runs need 200 rows without gaps, of which there are 150" in describe_shortage(series_of(values))
