"""Known inputs in the recursion: the Kalman filter and smoother with control, the adjoint, forecasts and free runs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, OBSERVED, flat, gaussian_nll, make_belief, make_core, make_data, make_model, matrix_of

from kaffee.errors import ConfigError, DataError
from kaffee.filtering.adjoint import adjoint_terms
from kaffee.filtering.filters import parse_filter
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import KAFFEE, window_nll
from kaffee.filtering.recursion import Dynamics, Recursion, arrange_observations, scan_terms
from kaffee.filtering.rollout import forecast_ensemble, free_run
from kaffee.filtering.smoother import smooth_rows
from kaffee.filtering.sweep import run_filter
from kaffee.model.inputs import Driven, InputRuns, drive
from kaffee.model.wrappers import Confined, Custom, as_core
from kaffee.training.forcing import Forcing, forcing_loss

INPUTS = 2


def make_driven(kind="linear", seed=0):
    C = jnp.asarray(np.random.default_rng(40 + seed).standard_normal((LATENT, INPUTS)))
    return Driven(make_core(kind, seed=seed), C)


def make_rows(*, rows=7, windows=3, missing=0.3):
    """Readings with the inputs of every row after them, and their mask."""
    x, mask = make_data(rows=rows, windows=windows, missing=missing)
    u = jnp.asarray(np.random.default_rng(41).standard_normal((windows, rows, INPUTS)))
    return jnp.concatenate([x, u], axis=2), jnp.pad(mask, ((0, 0), (0, 0), (0, INPUTS)), constant_values=True)


def kalman_with_control(model, rows, mask, start):
    """z = A z + h + C u_t, P = A P A' + Q, then the update; Sarkka (2013), section 4.3. One window, in NumPy."""
    A, h, C = (np.asarray(a) for a in (model.core.inner.A, model.core.inner.h, model.core.C))
    B, Q = matrix_of(model.observation), np.diag(np.asarray(model.shell.process_variance()))
    R = np.diag(np.asarray(model.shell.observation_variance()))
    (z, P), found = (np.asarray(a) for a in start), []
    for row, seen in zip(np.asarray(rows), np.asarray(mask), strict=True):
        x, u, seen = row[:OBSERVED], row[OBSERVED:], seen[:OBSERVED]
        predicted = z, P = A @ z + h + C @ u, A @ P @ A.T + Q
        H = B[seen]
        S = H @ P @ H.T + R[np.ix_(seen, seen)]
        K = P @ H.T @ np.linalg.inv(S)
        nll = gaussian_nll(x[seen], H @ z, S)
        z, P = z + K @ (x[seen] - H @ z), (np.eye(len(z)) - K @ H) @ P
        found.append((nll, z, P, predicted))
    return found, A


def rauch_tung_striebel(found, A):
    z, P = found[-1][1:3]
    states = [(z, P)]
    for (_, zf, Pf, _), (_, _, _, (zp, Pp)) in zip(found[-2::-1], found[:0:-1], strict=True):
        G = Pf @ A.T @ np.linalg.inv(Pp)
        z, P = zf + G @ (z - zp), Pf + G @ (P - Pp) @ G.T
        states.append((z, P))
    return states[::-1]


@pytest.mark.parametrize("spec", ["ekf", "ukf", "moments", "lowrank:5"])
def test_a_driven_linear_model_is_filtered_as_by_kalman_with_control(spec, x64):
    model, (rows, mask) = make_model(make_driven()), make_rows()
    start, recursion = make_belief(), Recursion(filter=parse_filter(spec))
    initial = eqx.filter_jit(lambda by, *start: by.start(*start))(recursion.filter, *start)
    run = run_filter(model, rows, mask, recursion, initial)
    for w in range(len(rows)):
        found, _ = kalman_with_control(model, rows[w], mask[w], (start.mean[w], start.covariance[w]))
        nll, means = (np.array([each[i] for each in found]) for i in (0, 1))
        stds = np.array([np.sqrt(np.diag(each[2])) for each in found])
        np.testing.assert_allclose(run.nll[w], nll, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(run.mean[w], means, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(run.std[w], stds, rtol=1e-10, atol=1e-10)


def test_smoothing_and_forecasts_of_a_driven_linear_model_are_those_of_kalman_with_control(x64):
    model, (rows, mask) = make_model(make_driven()), make_rows(rows=10)
    # The first row starts the belief: N(embed(x), Gamma).
    first = rows[:, 0, :OBSERVED]
    start = Belief(model.embed(first), jnp.stack([jnp.diag(model.shell.process_variance())] * len(rows)))
    x = jnp.swapaxes(jnp.where(mask, rows, jnp.nan), 0, 1)
    smoothed = smooth_rows(model, Recursion(), x, jnp.full(len(rows), 10))
    for w in range(len(rows)):
        found, A = kalman_with_control(model, rows[w, 1:], mask[w, 1:], (start.mean[w], start.covariance[w]))
        expected = rauch_tung_striebel(found, A)
        np.testing.assert_allclose(smoothed[0][1:, w], [z for z, _ in expected], rtol=1e-9, atol=1e-10)
        stds = [np.sqrt(np.diag(P)) for _, P in expected]
        np.testing.assert_allclose(smoothed[1][1:, w], stds, rtol=1e-9, atol=1e-10)
    quiet = model.replace(shell=jax.tree.map(lambda a: jnp.full_like(a, -10.0), model.shell))
    u = jnp.asarray(np.random.default_rng(1).standard_normal((len(rows), 6, INPUTS)))
    ahead = forecast_ensemble(quiet, start.mean, 6, 2, key=jax.random.key(0), inputs=u)
    for w in range(len(rows)):
        z = np.asarray(start.mean[w])
        for h in range(6):
            z = np.asarray(model.core.inner(jnp.asarray(z)) + model.core.C @ u[w, h])
            # The shell's noise is 4.5e-5 at least.
            np.testing.assert_allclose(ahead[:, w, h], np.stack([z[:OBSERVED]] * 2), atol=2e-3)
    with pytest.raises(DataError, match="needs 7 rows of inputs, not 6"):
        forecast_ensemble(quiet, start.mean, 7, 2, key=jax.random.key(0), inputs=u)


class Pushed(eqx.Module):
    """A user's own map of state and inputs, in which the input changes the Jacobian."""

    weights: jax.Array

    def __call__(self, z, u):
        return 0.7 * z + 0.5 * jnp.sin(self.weights @ z) * (1.0 + u[0]) + 0.3 * u[1]


def own_core():
    return as_core(Pushed(0.4 * jnp.asarray(np.random.default_rng(3).standard_normal((LATENT,) * 2))), LATENT, INPUTS)


DRIVEN = {
    "alrnn": lambda: make_driven("smooth"),
    "confined": lambda: Confined(make_driven("smooth"), -jnp.ones(LATENT), jnp.ones(LATENT)),
    "own": own_core,
}


@pytest.mark.parametrize(("kind", "transport"), [*((kind, True) for kind in DRIVEN), ("alrnn", False)])
def test_the_adjoint_with_inputs_is_automatic_differentiation(kind, transport, x64):
    model, (rows, mask) = make_model(DRIVEN[kind]()), make_rows(rows=3, windows=2)
    dynamics = Dynamics(
        model.core, model.shell.process_variance(), model.shell.observation_variance(), make_belief(windows=2)
    )
    (x, u), seen = model.split(rows), model.split(mask)[0]
    observations, recursion = arrange_observations(x, seen, model.observation, inputs=u), Recursion(transport=transport)

    def total(terms_of):
        def value(dynamics):
            terms = terms_of(dynamics)
            return jnp.sum(terms.nll * jnp.asarray([[1.0, 2.0], [0.5, -1.0], [3.0, 0.7]])) + jnp.sum(terms.final.mean)

        return value

    ours = eqx.filter_jit(eqx.filter_grad(total(lambda d: adjoint_terms(d, recursion, observations))))(dynamics)
    theirs = eqx.filter_jit(eqx.filter_grad(total(lambda d: scan_terms(recursion, d, observations))))(dynamics)
    of_inputs = flat(theirs.core.inner.C if kind == "confined" else getattr(theirs.core, "C", theirs.core))
    assert np.abs(of_inputs).max() > 0.0
    for name in ("core", "process_variance", "observation_variance"):
        a, b = (flat(getattr(each, name)) for each in (ours, theirs))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max(), err_msg=name)
    np.testing.assert_allclose(ours.initial.mean, theirs.initial.mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["alrnn", "own"])
def test_teacher_forcing_takes_inputs_and_its_gradient_is_the_derivative(kind, x64):
    model, (rows, mask) = make_model(DRIVEN[kind]()), make_rows(rows=4, windows=2)
    direction = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape), model.core)

    def loss(core):
        return forcing_loss(model.replace(core=core), rows, mask, Forcing(interval=2))

    def moved(step):
        return loss(jax.tree.map(lambda a, d: a + step * d, model.core, direction))

    with jax.disable_jit():
        gradient = eqx.filter_grad(loss)(model.core)
        difference = (moved(1e-6) - moved(-1e-6)) / 2e-6
    assert float(flat(gradient) @ flat(direction)) == pytest.approx(float(difference), rel=1e-6)


def test_windows_in_segments_score_the_same_and_inputs_matter(x64):
    model, (rows, mask) = make_model(make_driven("smooth")), make_rows()
    whole, parts = (window_nll(model, rows, mask, KAFFEE.recursion, burn_in=0, segment=s).loss for s in (None, 3))
    assert float(parts) == pytest.approx(float(whole), rel=1e-12)
    none = rows.at[:, :, OBSERVED:].set(0.0)
    at_mean = window_nll(model.replace(core=model.core.inner), rows, mask, KAFFEE.recursion, burn_in=0).loss
    assert float(window_nll(model, none, mask, KAFFEE.recursion, burn_in=0).loss) == pytest.approx(float(at_mean))
    assert abs(float(whole - at_mean)) > 0.1
    with pytest.raises(DataError, match="takes 2 inputs beside 2 readings, but rows have 2 numbers"):
        window_nll(model, rows[:, :, :OBSERVED], mask[:, :, :OBSERVED], KAFFEE.recursion, burn_in=0)


def test_a_free_run_uses_recorded_inputs_again_when_they_end(x64):
    model = make_model(make_driven())
    u = np.random.default_rng(5).standard_normal((4, INPUTS))
    inputs = InputRuns.spread(u, 2, jnp.float64)
    assert inputs.first.tolist() == [0, 2]
    run = free_run(model, jnp.zeros((2, LATENT)), 5, transient=2, inputs=inputs)
    for r, first in enumerate((0, 2)):
        z = jnp.zeros(LATENT)
        states = [z := model.core.inner(z) + model.core.C @ u[(first + t) % 4] for t in range(7)]
        np.testing.assert_allclose(run.states[r], states[2:], rtol=1e-10, atol=1e-10)


def test_cores_say_what_they_take(x64):
    core = drive(make_core("linear"), INPUTS, jnp.float64)
    assert core.input_dim == INPUTS
    assert drive(core, INPUTS) is core
    assert drive(core.inner, 0) is core.inner
    with pytest.raises(ConfigError, match="takes 2 inputs, but 3"):
        drive(core, 3)
    with pytest.raises(ConfigError, match="takes 2 inputs; 1 are given"):
        core.with_inputs(jnp.zeros(1))
    with pytest.raises(ConfigError, match="must be \\(5, K\\)"):
        Driven(make_core("linear"), jnp.zeros((3, 1)))
    with pytest.raises(ConfigError, match="inputs of shape"):
        as_core(lambda z: z, LATENT, INPUTS)
    assert make_core("linear").with_inputs(jnp.zeros(3)) == make_core("linear").with_inputs(jnp.zeros(3))
    assert isinstance(own_core(), Custom)
