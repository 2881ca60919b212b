"""Folders that are expensive to make, made by one worker of pytest-xdist for all of them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Make a folder where no worker of this session has made it yet; return a copy that nobody else changes."""
    own = factory.mktemp("own") / name
    # The temporary folder of a worker lies in that of the session; without workers, its own is that of the session.
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared" / name
    if shared.exists():
        return shutil.copytree(shared, own)
    make(own)
    draft = shutil.copytree(own, factory.mktemp("draft") / name)
    shared.parent.mkdir(exist_ok=True)
    try:
        draft.rename(shared)
    except OSError:  # another worker has been faster; this one has its own
        assert shared.exists()
    return own
