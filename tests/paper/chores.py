"""What workers do in tests of the engines, instead of cells. Every worker process imports it: it needs little."""

import os
import time
from pathlib import Path


def perform(arguments):
    """Note (name, process, cores), then do what the name says; `dies-once` is well behaved the second time."""
    folder, name = Path(arguments[0]), arguments[1]
    action = name.split("/")[0]
    seen = len(notes(folder, name))
    cores = sorted(os.sched_getaffinity(0))
    with (folder / "notes").open("a") as file:  # one short line, which the system appends in one piece
        file.write(f"{name} {os.getpid()} {','.join(map(str, cores))}\n")
    if action == "dies":
        time.sleep(0.3)  # as every cell does; meanwhile the result of the one before it is fetched
    if action == "dies" or (action == "dies-once" and not seen):
        os._exit(9)
    if action == "raises":
        raise ValueError(f"{name} cannot be written")
    if action == "waits":
        limit = time.monotonic() + 60
        while not (folder / "go").exists() and time.monotonic() < limit:
            time.sleep(0.01)
    return name


def notes(folder, name=None):
    """[(name, process, cores)] in the order in which cells began."""
    path = Path(folder) / "notes"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(n, int(pid), [int(c) for c in cores.split(",")]) for n, pid, cores in lines if name in (None, n)]


def alive(pid):
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid, word=""):
    """Processes whose parent is `pid` and whose command line holds `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if parent == pid and word in command:
            found.append(int(path.name))
    return found


def until(condition, seconds=120.0):
    """Wait for a condition; fails the test if it does not come true."""
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.01)
    return found
