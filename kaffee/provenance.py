"""What a result must say about where it came from."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from kaffee._version import __version__

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Versions of kaffee, Python and the packages that decide the numbers."""
    found = {"kaffee": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        found[package] = importlib.metadata.version(package)
    return found


def machine() -> dict[str, Any]:
    """The processor, its usable cores and the operating system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": _processor(), "cores": cores, "system": f"{platform.system()} {platform.machine()}"}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
