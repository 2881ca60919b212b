"""Shared fixtures: strict dtypes everywhere, float64 where an oracle is compared to many digits."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import pytest
from compiling import compile_quickly
from shortening import shorten_fits

# Every compiled program keeps some memory mapped; Linux gives a process 65 530 mappings, then compilation aborts it. So
# many are some 4 GB.
MOST_MAPPINGS = 20_000

compile_quickly(os.environ)
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_collection_finish():
    """Look for garbage rarely, and not in what was imported: JAX keeps millions of small objects, few are garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


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


@pytest.fixture(autouse=True, scope="module")
def short_fits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave linear models at least squares, without a map in context beside them and without looks at free runs.

    Modules where these are what is tested say `FULL_FITS = True`; those with pinned looks say `FULL_LOOKS = True`.
    """
    with pytest.MonkeyPatch.context() as patch:
        full = getattr(request.module, "FULL_FITS", False)
        shorten_fits(patch.setattr, linear=not full, looks=not (full or getattr(request.module, "FULL_LOOKS", False)))
        yield
