"""Nearly all the time of the suite is compiling: every program once, and without much optimisation."""

import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

import jax

CACHE = Path(__file__).parent.parent / ".jax_cache"
# Half of the time; programs of this size hardly run slower. `XLA_FLAGS= make test` tests them as users run them.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)


def compile_quickly(environment: MutableMapping[str, str]) -> None:
    """What one process has compiled the others take, also those that tests start, and the next run of the suite."""
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    # Of this process, which has read its environment before.
    jax.config.update("jax_compilation_cache_dir", environment["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", float(environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
    )
    if "XLA_FLAGS" not in environment:
        environment["XLA_FLAGS"] = QUICK if _known(QUICK, environment) else ""


def _known(flags: str, environment: MutableMapping[str, str]) -> bool:
    """XLA ends the process at a flag that it does not know, and versions differ in what they know."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    found = subprocess.run(command, env={**environment, "XLA_FLAGS": flags}, capture_output=True, check=False)
    return found.returncode == 0
