"""How long a user waits: commands with an empty and with a filled cache of compiled programs.

    python -m benchmarks.waiting [--quickstart] [--output results/waiting/seconds.json]

Every command is a process of its own. Cold is the first run with an empty folder of programs, warm the same command
again into another folder; "in full" keeps no programs and optimises them as XLA does by itself. Wall time is what a
user waits on this machine, processor time what an idle one would need at most; on a busy machine only the latter says
something.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kaffee.records import machine, versions

FIT_ROWS = 2_000
CALL = "from kaffee.cli.main import run; run()"


def measure(arguments: list[str], cache: Path | None) -> dict[str, float]:
    """Run a command; return its wall and processor seconds. Without a cache programs are compiled in full."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment |= {"KAFFEE_CACHE": "off", "KAFFEE_COMPILE": "full"} if cache is None else {"KAFFEE_CACHE": str(cache)}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    return {"wall": round(wall, 2), "processor": round(used, 2)}


def measure_all(folder: Path, *, quickstart: bool) -> dict[str, dict[str, float]]:
    """Measure small commands, a fit of 2000 x 3 rows, and the quickstart if asked for."""
    cache, data = folder / "programs", folder / "lorenz.csv"
    simulate = ["simulate", "lorenz63", "-o", str(data), "--steps", str(FIT_ROWS), "--observation-noise", "0.1"]
    subprocess.run([sys.executable, "-c", CALL, *simulate], check=True, capture_output=True)
    found = {
        "import kaffee": measure(["-c", "import kaffee"], cache),
        "kaffee --help": measure(["-c", CALL, "--help"], cache),
    }
    commands = {f"kaffee fit, {FIT_ROWS} x 3": ["fit", str(data)]}
    if quickstart:
        commands["kaffee quickstart"] = ["quickstart"]
    for name, command in commands.items():
        own = cache / name.replace(" ", "-").replace(",", "")  # a fit must not warm the quickstart
        for state in ("in full", "cold", "warm"):
            target = folder / f"{command[0]}-{state.replace(' ', '-')}"
            found[f"{name}, {state}"] = measure(
                ["-c", CALL, *command, "-o", str(target), "-q"], None if state == "in full" else own
            )
            print(name, state, found[f"{name}, {state}"], flush=True)
    return found


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quickstart", action="store_true", help="also the quickstart, which takes minutes")
    parser.add_argument("--output", type=Path, default=Path("results/waiting/seconds.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure_all(Path(folder), quickstart=options.quickstart)
    record = {"seconds": found, "load": os.getloadavg()[0], "versions": versions(), "machine": machine()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
