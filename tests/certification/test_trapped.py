"""A collapsed core on a short recording: seen by the certificate, by the guard, and beside another run."""

import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.certification import certificate
from kaffee.certification.certificate import CertificationSettings, certify
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import as_core
from kaffee.report.compare import tabulate_comparison
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.training.guard import FreeRunGuard

FULL_LOOKS = True
ROWS, PIECE = 1200, 240
SYSTEM = get_system("lorenz63")
SMALL = CertificationSettings(num_starts=20, members=8, horizons=(1, 4), divergence_runs=4, divergence_steps=3000)


def readings():
    return simulate(SYSTEM, ROWS, observation_noise=0.1).observations


def recording():
    return Series.from_arrays(readings(), times=SYSTEM.dt * np.arange(ROWS))


def lorenz(z):
    """One step of Runge and Kutta's."""

    def flow(z):
        x, y, w = z
        return jnp.stack([10.0 * (y - x), x * (28.0 - w) - y, x * y - 8.0 / 3.0 * w])

    h = SYSTEM.dt
    k1 = flow(z)
    k2 = flow(z + 0.5 * h * k1)
    k3 = flow(z + 0.5 * h * k2)
    k4 = flow(z + h * k3)
    return z + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def _model(core):
    return StateSpaceModel(core, Shell.from_std(np.full(3, 0.1), np.full(3, 0.8)), Projection(3, 3), jnp.eye(3))


def moving():
    return _model(as_core(lorenz, 3))


def at_rest():
    """Every run ends in the mean of the data."""
    return _model(Linear(0.5 * jnp.eye(3), jnp.asarray(0.5 * readings().mean(axis=0), jnp.float32)))


@pytest.fixture(scope="module")
def certificates():
    """Without the linear baseline, which takes the most time."""

    def none(*_, **__):
        raise DataError("not wanted")

    train, test = recording().split(0.8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "fit_linear", none)
        return {
            name: certify(Reconstruction(model, Scaler.identity(3), dt=train.time_step), train, test, settings=SMALL)
            for name, model in (("moving", moving()), ("at_rest", at_rest()))
        }


def test_a_core_at_rest_is_trapped_and_the_true_one_is_not(certificates):
    found = {name: whole.agreement for name, whole in certificates.items()}
    assert found["at_rest"].num_rows == PIECE
    # Nearer than twice what pieces of the data are from each other: the distance alone would not tell.
    assert found["at_rest"].core.highest < 2.0 + 2.0 * found["at_rest"].floor_highest.d_stsp
    assert (found["moving"].core.trapped, found["at_rest"].core.trapped) == (0, 4)
    assert found["moving"].stochastic.trapped == 0
    verdicts = {name: whole.verdicts[-1] for name, whole in certificates.items()}
    assert verdicts["at_rest"].status == "fail"
    assert "4 stay in a part of it" in verdicts["at_rest"].sentence


def test_beside_another_run_it_is_not_the_better_one(certificates):
    stored = {name: whole.to_dict() for name, whole in certificates.items()}
    rows = {row["metric"]: row for row in tabulate_comparison(stored).to_json()}
    assert rows["trapped runs of the core"] == {
        "metric": "trapped runs of the core",
        "moving": 0,
        "at_rest": 4,
        "better": "moving",
    }


def test_the_guard_sees_it():
    short = [readings()[i : i + PIECE] for i in range(0, 1200, PIECE)]
    guard = FreeRunGuard(Series.from_arrays(short), every=1)
    assert guard.look(at_rest())[:2] == (guard.RUNS, np.inf)
    assert guard.look(moving()).lost == 0
