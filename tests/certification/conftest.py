"""One truth for all tests of the evaluation."""

import pytest

from .truth import Weights, make_reference


@pytest.fixture(scope="session")
def reference():
    return make_reference()


@pytest.fixture(scope="session")
def weights():
    return Weights()
