"""Install a wheel into a fresh environment for every Python on this machine, and run the README's commands there.

    python .ci/install_check.py dist/kaffee-*.whl [--full]

Nothing of the repository but the README's text is used: commands run in an empty folder. Long ones are shortened, which
is printed; --full runs them as they stand (about ten minutes for each Python).
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
OLDEST = (3, 11)
SHORTER = {
    "make quickstart": "kaffee doctor",  # it installs from the repository, and its fit is the next command's
    "--steps 25000": "--steps 1500",
    "-o run --core incontext": "-o adapted --core incontext --preset quick --no-certify",
    "-o run": "-o run --preset quick --no-certify",
    "25_000": "1_500",
    "seed=0)": 'seed=0, settings={"rung": "linear"})',
}


def find_pythons() -> dict[tuple[int, int], Path]:
    """Find one interpreter of every version that is supported: on the path, and among those of pyenv."""
    folders = [Path(entry) for entry in os.environ["PATH"].split(os.pathsep)]
    folders += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    found: dict[tuple[int, int], Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.[0-9]*")):
            version = re.fullmatch(r"python3\.(\d+)", path.name)
            if not version or (key := (3, int(version[1]))) < OLDEST or key in found:
                continue
            # A shim may stand for a version that is not there, and a distribution's Python may lack venv.
            if subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0:
                found[key] = path
    return dict(sorted(found.items()))


def read_commands(full: bool) -> list[str]:
    """Read the console commands of the README in their order, as they are run here."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line[2:].split("#")[0].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [shorten(line.replace(".venv/bin/", ""), full) for line in lines]


def shorten(text: str, full: bool) -> str:
    """Replace what takes minutes."""
    for long, short in SHORTER.items():
        if (not full or long.startswith("make")) and long in text:
            text = text.replace(long, short)
            if long.startswith("-o"):
                break
    return text


def main() -> int:
    """Check every Python; the number of failures is the exit code."""
    wheel, full, failures = Path(sys.argv[1]).resolve(), "--full" in sys.argv, 0
    pythons = find_pythons()
    if not pythons:
        print(f"No Python {'.'.join(map(str, OLDEST))} or newer was found.")
        return 1
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    for version, python in pythons.items():
        with tempfile.TemporaryDirectory() as folder:
            work, name = Path(folder), ".".join(map(str, version))
            subprocess.run([python, "-m", "venv", work / "env"], check=True)
            environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
            environment["PATH"] = f"{work / 'env/bin'}{os.pathsep}{environment['PATH']}"
            steps = [f"pip install --quiet --disable-pip-version-check {wheel}", "kaffee --version"]
            steps += [*read_commands(full), f"python -c '{shorten(program, full)}'"]
            for step in steps:
                if "recording.csv" in step and not (work / "recording.csv").exists():
                    (work / "recording.csv").write_bytes((work / "lorenz.csv").read_bytes())
                done = subprocess.run(
                    step, shell=True, cwd=work, env=environment, capture_output=True, text=True, check=False
                )
                failures += done.returncode != 0
                print(f"{name}  {'ok    ' if done.returncode == 0 else 'FAILED'}  {step.splitlines()[0]}", flush=True)
                if done.returncode:
                    print(done.stdout + done.stderr)
    return failures


if __name__ == "__main__":
    sys.exit(main())
