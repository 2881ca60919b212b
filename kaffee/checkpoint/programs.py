"""Keep compiled programs between processes, and compile them with little optimisation, so that nobody waits for them.

JAX can keep programs in a folder. A program is machine code: on another processor it may be slow or end the process.
Programs are therefore kept apart by processor and by versions, and the least used go when there are too many.
"""

import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 500_000_000
"""Bytes of all programs together, which is about a hundred kinds of fits."""
_SWITCH, _FOLDER, _LEAST_SECONDS = (
    "KAFFEE_CACHE",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
)
QUICK = (
    "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)
"""For XLA on processors. First calls take 0.4 to 0.6 of the time with full optimisation, later ones 0.8 to 1.1
(`python -m benchmarks.compiling`)."""
KNOWN_BY = ((0, 8), (0, 10))
"""Versions of jaxlib, first and last, that were seen to know these flags; an unknown one ends the process."""
_SPEED, _FLAGS = "KAFFEE_COMPILE", "XLA_FLAGS"
_OFF = ("off", "0", "no", "false", "none")
# Another process may be writing what this one reads; then it compiles.
_BUSY = "Error (reading|writing) persistent compilation cache entry"


class ProgramCache(NamedTuple):
    """The folder that holds programs, how many there are, of this machine and of others, and their bytes."""

    path: Path
    files: int
    size: int


def cache_programs(environment: MutableMapping[str, str] | None = None) -> Path | None:
    """Let JAX keep the programs that it compiles from now on, and find those of earlier processes.

    The command line calls this by itself; scripts and notebooks may: `kaffee.cache_programs()`. `KAFFEE_CACHE=off` in
    the environment switches it off, `KAFFEE_CACHE=FOLDER` chooses the place. If JAX has been told where to keep
    programs, nothing changes.

    Returns:
        The folder; None if no programs are kept.
    """
    environment = os.environ if environment is None else environment
    if environment.get(_SWITCH, "").lower() in _OFF:
        return None
    if environment.get(_FOLDER):
        return Path(environment[_FOLDER])
    folder = cache_folder(environment) / describe_machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # no place to write to, as in some containers
    # Read by JAX when it is imported, and by the processes that this one starts.
    environment[_FOLDER] = str(folder)
    environment.setdefault(_LEAST_SECONDS, "0")
    if "jax" in sys.modules and environment is os.environ:
        import jax

        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", float(environment[_LEAST_SECONDS]))
    warnings.filterwarnings("ignore", message=_BUSY)
    return folder


def compile_quickly(environment: MutableMapping[str, str] | None = None) -> bool:
    """Let XLA compile for processors with little optimisation, before JAX starts; return whether it will.

    The command line does so but for `kaffee bench`, whose numbers are those of full optimisation to the last bit.
    Nothing changes if `XLA_FLAGS` is set, with `KAFFEE_COMPILE=full`, where JAX may use an accelerator, or with a
    version that may not know the flags.
    """
    environment = os.environ if environment is None else environment
    asked = _FLAGS in environment or environment.get(_SPEED, "").lower() == "full"
    other = any(find_spec(name) for name in ("jax_plugins", "libtpu"))
    number = tuple(int(part) for part in version("jaxlib").split(".")[:2])
    if asked or other or not KNOWN_BY[0] <= number <= KNOWN_BY[1]:
        return False
    environment[_FLAGS] = QUICK
    return True


def cache_folder(environment: MutableMapping[str, str] | None = None) -> Path:
    """Return where programs of all machines are kept."""
    environment = os.environ if environment is None else environment
    chosen = environment.get(_SWITCH, "")
    if chosen and chosen.lower() not in _OFF:
        return Path(chosen).expanduser()
    usual = environment.get("LOCALAPPDATA") if sys.platform == "win32" else environment.get("XDG_CACHE_HOME")
    return (Path(usual) if usual else Path.home() / ".cache") / "kaffee" / "programs"


def describe_machine() -> str:
    """Name what decides whether a program can be used: processor and versions, as sixteen hexadecimal digits."""
    facts = {name: version(name) for name in ("jax", "jaxlib")}
    facts |= {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    facts["processor"] = _describe_processor()
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _describe_processor() -> str:
    """Return model and features of the processor; where they cannot be read, the name of the machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.processor()} of {platform.node()}"
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    # Of the first processor: the others of a machine are the same.
    known: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        if name.strip() in wanted:
            known.setdefault(name.strip(), " ".join(sorted(value.split())))
    return json.dumps(known, sort_keys=True) if known else platform.node()


def inspect_cache() -> ProgramCache:
    """Count programs of all machines."""
    sizes = [status.st_size for _, status in _list_programs()]
    return ProgramCache(cache_folder(), len(sizes), sum(sizes))


def prune_cache(most_bytes: int = MOST_BYTES) -> int:
    """Remove the programs that were not used for longest until the rest has at most so many bytes.

    Returns:
        The number of files that were removed; with `most_bytes=0` that is all of them.
    """
    programs = sorted(_list_programs(), key=lambda each: max(each[1].st_atime, each[1].st_mtime))
    total, removed = sum(status.st_size for _, status in programs), 0
    for path, status in programs:
        if total <= most_bytes:
            break
        path.unlink(missing_ok=True)  # another process may have been faster
        total, removed = total - status.st_size, removed + 1
    return removed


def _list_programs() -> Iterator[tuple[Path, os.stat_result]]:
    # Only what JAX writes: the folder may be one that a user chose.
    for path in cache_folder().glob("*/*-cache"):
        try:
            yield path, path.stat()
        except OSError:
            continue
