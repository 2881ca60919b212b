"""Faster compilation, which takes nearly all the time of the suite: every program once, with little optimisation."""

import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

import jax

CACHE = Path(__file__).parent.parent / ".jax_cache"
# Half of the time; programs of this size hardly run slower. `XLA_FLAGS= make test` tests them as users run them.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    # Small programs are compiled sooner in one piece than in 32, and every core has a worker of pytest already.
    "--xla_cpu_parallel_codegen_split_count=1"
)


def compile_quickly(environment: MutableMapping[str, str]) -> None:
    """Share compiled programs between processes, including those that tests start, and with the next run."""
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    # Operations need not remember which lines of Python they come from.
    environment.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
    # This process has already read its environment.
    jax.config.update("jax_compilation_cache_dir", environment["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", float(environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
    )
    jax.config.update("jax_traceback_in_locations_limit", int(environment["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"]))
    if "XLA_FLAGS" not in environment:
        environment["XLA_FLAGS"] = QUICK if _known(QUICK, environment) else ""


def _known(flags: str, environment: MutableMapping[str, str]) -> bool:
    """Tell whether XLA knows the flags; an unknown one ends the process, and versions differ."""
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    done = subprocess.run(command, env={**environment, "XLA_FLAGS": flags}, capture_output=True, check=False)
    return done.returncode == 0
