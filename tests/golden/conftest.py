"""The command line, and the recording that is fitted."""

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from kaffee.cli.main import app

from .pinned import EXPECTED, REGENERATE


@pytest.fixture(scope="session")
def kaffee():
    """Run a command in this process, on a wide terminal; it must end with the exit code that is expected."""

    def call(*arguments, content=None, exit_code=0):
        words = [str(argument) for argument in arguments]
        result = CliRunner().invoke(app, words, input=content, env={"COLUMNS": "240"})
        assert result.exit_code == exit_code, (result.exception, result.output)
        return result

    return call


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="session")
def simulated(kaffee, place):
    """Simulate what is fitted; returns the values, times first."""
    path = place / "simulated.csv"
    kaffee("simulate", "lorenz63", "-o", path, "--steps", 1000, "--observation-noise", 0.1, "--seed", 3)
    return np.loadtxt(path, delimiter=",", skiprows=1)


@pytest.fixture(scope="session")
def recording(place, request):
    """Take the pinned recording: chaos makes one that is simulated elsewhere another, with another fingerprint."""
    if REGENERATE:
        values = request.getfixturevalue("simulated")
        np.savetxt(EXPECTED / "train.csv", values, "%.3f", delimiter=",", header="t,x1,x2,x3", comments="")
    return shutil.copy(EXPECTED / "train.csv", place / "train.csv")
