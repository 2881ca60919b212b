"""One implementation alone in a fresh process, for its peak memory: `python -m benchmarks.worker kaffee`."""

import argparse
import ctypes
import gc
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.problem import Size

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_mb(field: str) -> float | None:
    """VmRSS (now) or VmHWM (peak) of this process; None where the system does not tell."""
    if not STATUS.exists():
        return None
    lines = [line for line in STATUS.read_text().splitlines() if line.startswith(field + ":")]
    return int(lines[0].split()[1]) / 1024 if lines else None


def reset_peak() -> bool:
    """Let the peak start again, so that compilation does not count; not every system can."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def release_free_memory() -> None:
    """Give back what the first call left behind: pages that stay resident would hide the need of the next call."""
    gc.collect()
    time.sleep(0.5)  # some buffers are freed by other threads
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def measure_here(peer: str, size: Size, repeats: int, seed: int) -> dict[str, Any]:
    """Seconds and memory of one peer in this process."""
    from benchmarks import ekf_kaffee
    from benchmarks.ekf_gradient import PEERS
    from benchmarks.problem import make_problem
    from benchmarks.timing import first_call, interleaved, summary

    problem = make_problem(size, seed=seed)
    call = PEERS[peer].build(problem)
    compile_seconds = first_call(call)[1]
    release_free_memory()
    before, resets = resident_mb("VmRSS"), reset_peak()
    call()
    peak = resident_mb("VmHWM")
    seconds = interleaved({peer: call}, repeats)[peer]
    found: dict[str, Any] = {**summary(seconds), "first_call": round(compile_seconds, 3)}
    if before is not None and peak is not None and resets:
        found["added_mb"] = round(peak - before, 1)
    if peer == "kaffee":
        compiled = ekf_kaffee.value_and_gradient("adjoint").lower(*ekf_kaffee.arguments(problem)).compile()
        found["xla_temporary_mb"] = round(compiled.compiled.memory_analysis().temp_size_in_bytes / 2**20, 1)
    # In kilobytes on Linux, bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    found["process_peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
    return found


def measure_apart(peer: str, size: Size, repeats: int, seed: int = 0) -> dict[str, Any]:
    """The same in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.worker", peer, "--repeats", str(repeats), "--seed", str(seed)]
    for name, value in asdict(size).items():
        command += [f"--{name}", str(value)]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure as the arguments say and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    for name, value in asdict(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    size = Size(options.latent, options.observed, options.windows, options.steps)
    print(json.dumps(measure_here(options.peer, size, options.repeats, options.seed)))


if __name__ == "__main__":
    main()
