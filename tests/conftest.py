"""Shared fixtures: strict dtypes everywhere, float64 where an oracle is compared to many digits."""

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def x64():
    """Run the test in float64."""
    with jax.enable_x64(True):
        yield
