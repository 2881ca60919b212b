"""Decimal marks in text files: read where there is one reading, refused where there are two."""

import numpy as np
import pytest

from kaffee.data.reading import read_series
from kaffee.errors import ConfigError, DataError


@pytest.fixture
def read(tmp_path):
    def _read(text, **options):
        path = tmp_path / "lab.csv"
        path.write_text(text)
        return read_series(path, **options).recordings[0].tolist()

    return _read


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a;b\n1,5;2\n-3,25e1;4\n", [[1.5, 2], [-32.5, 4]]),
        ("a;b\n1.234,5;2\n1.234;4\n", [[1234.5, 2], [1234, 4]]),  # the column says that points separate thousands
        ("a;b\n1.234.567;2\n1;4\n", [[1234567, 2], [1, 4]]),
        ("a;b\n1,234.5;2\n3,000;4\n", [[1234.5, 2], [3000, 4]]),
        ("a;b\n0,125;2\n1,000;4\n", [[0.125, 2], [1, 4]]),  # no thousands begin with a zero
        ("a;b\n1234,567;2\n1,000;4\n", [[1234.567, 2], [1, 4]]),
        ("a;b\n1,000;2,5\n3,000;4\n", [[1, 2.5], [3, 4]]),  # the only decimal mark of the file
        ("a;b\n1.234;2.567\n3.000;4\n", [[1.234, 2.567], [3, 4]]),  # points alone, as in every file
        ('a;b\n"1,5";2,5\n"3,5";4\n', [[1.5, 2.5], [3.5, 4]]),
        ("1,5;2,5\n3,5;4\n", [[1.5, 2.5], [3.5, 4]]),
    ],
)
def test_columns_with_one_reading(read, text, rows):
    np.testing.assert_array_equal(read(text), rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a;b\n1,000;2\n3,000;4\n", "line 2, column 'a': '1,000' could be 1.000 or 1000; .* Pass decimal=','"),
        ("a;b\n7;2\n1,000;2.5\n", "line 3, column 'a': '1,000' could be"),
        ("a;b\n1.234;2,5\n3.000;4\n", "column 'a': '1.234' could be 1.234 or 1234"),
        ("a;b\n1,000;2\n3.000;4\n", "column 'a': '1,000' could be"),
        ("a;b\n1,5;2\n3.5;4\n", "line 3, column 'a': '3.5' has another decimal mark than '1,5' in line 2"),
        ("a;b\n1,5;2.5\n", "column 'a': '1,5' has a decimal comma, but other columns have decimal points"),
        ("t;b\n1,000;2.5\n2,000;4\n", "column 't': '1,000' could be"),
        ("a\tb\n1,5\t2\n", "'1,5' is not a number. .* or pass decimal=','"),
    ],
)
def test_columns_with_two_readings_are_refused(read, text, words):
    with pytest.raises(DataError, match=words):
        read(text)


def test_who_knows_the_mark_says_so(read):
    text = "a;b\n1,000;2\n3,000;4\n"
    assert read(text, decimal=",") == [[1, 2], [3, 4]]
    assert read(text, decimal=".") == [[1000, 2], [3000, 4]]
    assert read("a\tb\n1,5\t2\n", decimal=",") == [[1.5, 2]]
    assert read("1,5  2\n 2,5 3\n", decimal=",", delimiter=" ") == [[1.5, 2], [2.5, 3]]
    with pytest.raises(DataError, match=r"'2.5' does not have the decimal mark ','"):
        read("a;b\n1,5;2.5\n", decimal=",")
    with pytest.raises(ConfigError, match="commas separate the cells"):
        read("a,b\n1,5\n", decimal=",")
    with pytest.raises(ConfigError, match="no decimal mark"):
        read("a;b\n1,5;2\n", decimal="x")


def test_a_column_that_is_not_read_may_be_in_doubt(read):
    assert read("a;b\n1,000;2.5\n3,000;4\n", columns="b") == [[2.5], [4]]
    assert read('label;a\n"x;1,000";1,5\n"y;2";2,5\n', columns="a", decimal=",", header=True) == [[1.5], [2.5]]
