"""Certificates to draw: of a damped rotation, and one as large as they get."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from kaffee.certification.certificate import CertificationSettings, Losses, certify
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.systems.simulation import Truth
from kaffee.training import linear

EVIL = "<script>alert(1)</script> & \"x\" </script><!-- \u2028 ü → λ₁ 'y' <img src=x onerror=alert(1)>"
SMALL = CertificationSettings(num_starts=60, members=20, horizons=(1, 2, 5), divergence_runs=2, divergence_steps=100)
A = np.array([[0.95, -0.25], [0.25, 0.95]]) * 0.98


def rotated(num_steps, seed=0, noise=0.1):
    """Readings of a noisy damped rotation, and its states."""
    rng = np.random.default_rng(seed)
    z, states = np.zeros(2), []
    for _ in range(num_steps):
        z = A @ z + 0.3 * rng.standard_normal(2)
        states.append(z)
    states = np.array(states)
    return states + noise * rng.standard_normal(states.shape), states


@cache
def certificate(columns=("<i>a", "b")):
    """Of the very model that made the data, with itself as prior."""
    readings, states = rotated(1600)
    train, test = Series.from_arrays(readings, columns=columns).split(0.75)
    model = StateSpaceModel(
        core=Linear(A.astype(np.float32), np.zeros(2, np.float32)),
        shell=Shell.from_std(np.full(2, 0.3), np.full(2, 0.1)),
        observation=Projection(2, 2),
        embedding=np.eye(2, dtype=np.float32),
    )
    own = Reconstruction(model, Scaler.identity(2), columns, 0.5, "kaffee")
    truth = Truth(rotated(500, 1)[1], rotated(500, 2)[1], states[1200:], 0.1)
    prior = replace(own, method="prior")
    with pytest.MonkeyPatch.context() as patch:  # the linear baseline is tested elsewhere
        schedule = replace(linear.SETTINGS.schedule, num_updates=0)
        patch.setattr(linear, "SETTINGS", replace(linear.SETTINGS, schedule=schedule))
        return certify(own, train, test, prior=prior, truth=truth, settings=SMALL)


def with_page(found, title="a fit"):
    """What the command line adds to a certificate."""
    curve = "loss", np.arange(1, 4), np.array([3.0, np.nan, 1.0])
    losses = (Losses("Pretraining", *curve), Losses("Adaptation", *curve))
    page = {"title": title, "summary": title, "settings": f"a = {title!r}", "provenance": {"command": title}}
    return replace(found, training=losses, page={**page, "true_lambda_1": 0.1})


def many_coordinates(names):
    """A certificate whose figures have six coordinates, as large as pages get."""
    rng = np.random.default_rng(0)
    found = certificate()
    drawn = {
        name: rng.standard_normal((3000, 6)).cumsum(axis=0) for name in ("data", "truth", "prior", "core", "stochastic")
    }
    spectra = {name: rng.uniform(1e-8, 1.0, (400, 6)) for name in drawn}
    frequencies = np.linspace(0.0, 1.0, 400)
    free = replace(found.agreement, shown=names, drawn=drawn, spectra=spectra, frequencies=frequencies)
    withheld = found.withheld._replace(column=names[0])
    return with_page(replace(found, agreement=free, withheld=withheld), names[0])
