"""One small fitted run for all tests of the command line."""

from pathlib import Path

import pytest
from sharing import make_once
from shortening import shorten_fits
from typer.testing import CliRunner

from kaffee.cli.main import app
from kaffee.errors import KaffeeError
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate

# Long enough to be killed in the middle, small enough to take a second.
SMALL = (
    "core.latent_dim=5",
    "simulation.num_steps=600",
    "pretraining.window=10",
    "pretraining.schedule.num_updates=30000",
    "pretraining.schedule.batch_size=4",
    "pretraining.schedule.report_every=100",
    "pretraining.schedule.save_every=400",
    "adaptation.scored=6",
    "adaptation.burn_in=2",
    "adaptation.schedule.num_updates=5",
    "adaptation.schedule.batch_size=4",
)
TINY = (*SMALL, "pretraining.schedule.num_updates=20", "pretraining.schedule.report_every=10")


def sets(*settings):
    """`--set` options."""
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="session")
def kaffee():
    """Run a command in this process; returns what Typer's runner does."""

    def call(*arguments, content=None):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=content)

    return call


@pytest.fixture(scope="session")
def refused(kaffee):
    """Run a command that must end in one of kaffee's own errors; returns its sentence."""

    def call(*arguments):
        result = kaffee(*arguments)
        assert isinstance(result.exception, KaffeeError), result.exception
        assert result.stdout == ""
        return str(result.exception)

    return call


@pytest.fixture(scope="session")
def small():
    return sets(*SMALL)


@pytest.fixture(scope="session")
def run(kaffee, small, tmp_path_factory) -> Path:
    """The folder of an undisturbed run; called as impatient people call it."""

    def make(folder):
        # Fixtures of a session are made before those of a module, which shorten fits elsewhere.
        with pytest.MonkeyPatch.context() as patch:
            shorten_fits(patch.setattr)
            result = kaffee("fit", "lorenz63", "-o", folder, "--quiet", *small)
        assert result.exit_code == 0, result.exception

    return make_once(tmp_path_factory, "lorenz63", make)


@pytest.fixture(scope="session")
def tiny():
    return sets(*TINY)


@pytest.fixture(scope="session")
def values():
    """The shape of the small run's data."""
    return simulate(get_system("lorenz63"), 600, observation_noise=0.1).observations
