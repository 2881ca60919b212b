"""Shared fixtures: strict dtypes everywhere, float64 where an oracle is compared to many digits."""

import os
from collections.abc import Iterator
from pathlib import Path

# Nearly all the time of the suite is compiling. What one process has compiled the others take, also those that tests
# start, and the next run of the suite.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import equinox as eqx
import jax
import pytest

# Every compiled program keeps some memory mapped; Linux gives a process 65 530 mappings, then compilation aborts it.
MOST_MAPPINGS = 20_000

jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def x64():
    """Run the test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def few_programs() -> Iterator[None]:
    """Forget compiled programs after a module where many have gathered."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_text().count("\n") > MOST_MAPPINGS:
        eqx.clear_caches()
        jax.clear_caches()
