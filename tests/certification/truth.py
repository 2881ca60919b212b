"""Lorenz-63 and small surrogates of it, written from their equations; nothing of kaffee computes these numbers."""

import jax.numpy as jnp
import numpy as np

from kaffee.certification.fidelity import Protocol, Reference
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.metrics.lyapunov import LyapunovSpectrum
from kaffee.model.alrnn import ALRNN
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.systems.catalogue import get_system

LATENT, OBSERVED, DT = 5, 3, 0.02
H_REFERENCE, H_NOISY = 0.9, 0.95

# Few of everything, all numbers different.
PROTOCOL = Protocol(
    horizon=3,
    spectrum_horizons=(2, 5),
    num_members=6,
    num_starts=5,
    num_crps_starts=3,
    num_extra_starts=8,
    forecast_span=60,
    warm_up=9,
    grounding_steps=40,
    rollout_steps=300,
    transient=30,
    num_divergence_starts=4,
    mixture_samples=20,
)


def field(z):
    x, y, w = z
    return np.array([10.0 * (y - x), x * (28.0 - w) - y, x * y - 8.0 / 3.0 * w])


def slope(z):
    x, y, w = z
    return np.array([[-10.0, 10.0, 0.0], [28.0 - w, -1.0, -x], [y, x, -8.0 / 3.0]])


def flow(z):
    """One Runge-Kutta step, and its derivative by the chain rule."""
    identity = np.eye(3)
    k1, K1 = field(z), slope(z)
    k2, K2 = field(z + DT / 2 * k1), slope(z + DT / 2 * k1) @ (identity + DT / 2 * K1)
    k3, K3 = field(z + DT / 2 * k2), slope(z + DT / 2 * k2) @ (identity + DT / 2 * K2)
    k4, K4 = field(z + DT * k3), slope(z + DT * k3) @ (identity + DT * K3)
    return z + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4), identity + DT / 6 * (K1 + 2 * K2 + 2 * K3 + K4)


def trajectory(num_steps, *, noise=0.0, seed=0):
    """States on the attractor, (T, 3)."""
    rng, z, states = np.random.default_rng(seed), np.array([-9.787, -15.039, 20.534]), []
    for _ in range(num_steps):
        states.append(z)
        z = flow(z)[0] + noise * rng.standard_normal(3)
    return np.array(states)


def spectrum(*exponents):
    found = np.array(exponents)
    return LyapunovSpectrum(found, np.zeros_like(found), found[None], 1, DT, len(found))


class Invented(Reference):
    """A truth with these exponents, whatever its system has."""

    lyapunov = spectrum(H_REFERENCE, 0.0, -14.5)
    lyapunov_noisy = spectrum(H_NOISY, 0.0, -14.5)


def make_reference(protocol=PROTOCOL, **changes):
    """A truth whose every number is known here."""
    states = trajectory(protocol.transient + protocol.rollout_steps, noise=0.05)
    observations = states + 0.5 * np.random.default_rng(1).standard_normal(states.shape)
    clean = trajectory(protocol.rollout_steps)
    parts = {
        "system": get_system("lorenz63"),
        "train": Series.from_arrays(observations[:50]),
        "scaler": Scaler(clean.mean(axis=0), clean.std(axis=0) * np.array([1.0, 0.9, 1.2])),
        "test_states": states,
        "test_observations": observations,
        "clean": clean,
    }
    return Invented(**{**parts, **changes})


def make_model(core, *, dtype=np.float64, process=0.1, observation=0.2):
    """A core between a shell that differs in every coordinate and B = [I 0]."""
    rng = np.random.default_rng(5)
    return StateSpaceModel(
        core=core,
        shell=Shell.from_std(
            process * rng.uniform(0.5, 1.5, LATENT), observation * rng.uniform(0.5, 1.5, OBSERVED), dtype
        ),
        observation=Projection(OBSERVED, LATENT),
        embedding=jnp.asarray(rng.uniform(-0.5, 0.5, (LATENT, OBSERVED)), dtype),
    )


def linear(A, h, *, dtype=np.float64, **noise):
    """z' = A z + h with a matrix A."""
    return make_model(Linear(jnp.asarray(A, dtype), jnp.asarray(h, dtype)), dtype=dtype, **noise)


def scaled(a, h=0.0, W=0.0, *, dtype=np.float64, **noise):
    """z' = a z + W z + h with numbers (or vectors) a and h, as an AL-RNN, for which all programs are compiled anyway.

    The last two columns of W, those of the gates, must be zero.
    """
    parts = (np.broadcast_to(part, shape) for part, shape in ((a, LATENT), (W, (LATENT, LATENT)), (h, LATENT)))
    return make_model(ALRNN(*(jnp.asarray(x, dtype) for x in parts), 2, "straight_through"), dtype=dtype, **noise)


class Weights:
    """An AL-RNN in NumPy: three linear and two gated coordinates; weakly chaotic (0.03 per step)."""

    def __init__(self, seed=38):
        rng = np.random.default_rng(seed)
        self.A = rng.uniform(0.3, 0.6, LATENT)
        self.W = rng.standard_normal((LATENT, LATENT))
        self.W *= 1.1 / np.abs(np.linalg.eigvals(np.diag(self.A) + self.W)).max()
        self.h = 0.4 * rng.standard_normal(LATENT)

    def step(self, z):
        gated = np.concatenate([z[:3], np.maximum(z[3:], 0.0)])
        return self.A * z + self.W @ gated + self.h

    def jacobian(self, z):
        return np.diag(self.A) + self.W * np.concatenate([np.ones(3), z[3:] > 0.0])

    def model(self, dtype=np.float64, **noise):
        A, W, h = (jnp.asarray(a, dtype) for a in (self.A, self.W, self.h))
        return make_model(ALRNN(A, W, h, 2, "straight_through"), dtype=dtype, **noise)


def standardised(reference, x):
    return (x - reference.scaler.mean) / reference.scaler.scale


def embed(model, x):
    """E x, the observed part overwritten."""
    return np.concatenate([x, (np.asarray(model.embedding) @ x)[OBSERVED:]])
