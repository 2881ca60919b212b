"""Models, recordings and textbook smoothers for the tests of inference; NumPy alone where it is an oracle."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from models import make_model, matrix_of, textbook_filter

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel

COLUMNS = ("left", "right")
SCALER = Scaler(mean=[10.0, -200.0], scale=[3.0, 40.0])
LENGTHS = (17, 24, 9)
DT = 0.25
M, N = 5, 2


def linear_model(seed=0, *, dtype=np.float64):
    """z' = A z + h with a spectral radius of 0.95."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((M, M))
    A *= 0.95 / np.abs(np.linalg.eigvals(A)).max()
    return StateSpaceModel(
        core=Linear(jnp.asarray(A, dtype), jnp.asarray(0.1 * rng.standard_normal(M), dtype)),
        shell=Shell.from_std(rng.uniform(0.2, 0.6, M), rng.uniform(0.3, 0.8, N), dtype),
        observation=Projection(N, M),
        embedding=jnp.asarray(rng.uniform(-0.7, 0.7, (M, N)), dtype),
    )


def reconstruct(model, method="kaffee"):
    return Reconstruction(model, SCALER, COLUMNS, DT, method)


def recordings(seed=0, lengths=LENGTHS):
    """Unequal lengths, 30 % of the entries missing, a gap, a first row that is not complete; in data units."""
    rng = np.random.default_rng(50 + seed)
    found = []
    for length in lengths:
        values = SCALER.inverse(rng.standard_normal((length, N)))
        values[rng.uniform(size=values.shape) < 0.3] = np.nan
        values[3:6] = np.nan
        found.append(values)
    found[0][0] = SCALER.mean
    found[1][0, 1] = np.nan
    found[2][0] = np.nan
    times = [100.0 * r + DT * np.arange(len(values)) for r, values in enumerate(found)]
    return Series.from_arrays(found, columns=COLUMNS, times=times, name="demo")


def first_belief(model, x, seen):
    """N(E x overwritten by x, Gamma + B^+ B^+' where nothing was seen)."""
    B, E = matrix_of(model.observation), np.asarray(model.embedding)
    pseudo = np.linalg.pinv(B)
    clean = np.where(seen, x, 0.0)
    mean = E @ clean + pseudo @ (clean - B @ E @ clean)
    Gamma = np.diag(np.asarray(model.shell.process_variance()))
    return mean, Gamma + pseudo @ np.diag(1.0 - seen) @ pseudo.T


def textbook_smoother(model, x, *, transport=True):
    """Filter by the textbook, then P_s = P + G (P_s' - P_pred) G' back; means and covariances of every row."""
    seen = ~np.isnan(x)
    B, core = matrix_of(model.observation), model.core
    step, jacobian = (eqx.filter_jit(f) for f in (lambda z: core(z), lambda z: core.jacobian(z)))
    Gamma, Lambda = (np.diag(np.asarray(v())) for v in (model.shell.process_variance, model.shell.observation_variance))
    mean, covariance = first_belief(model, x[0], seen[0])
    given = (B, Gamma, Lambda, mean, covariance, x[1:], seen[1:])
    _, means, covariances = textbook_filter(step, jacobian, *given, transport=transport)
    means, covariances = np.array([mean, *means]), np.array([covariance, *covariances])
    filtered = covariances.copy()
    for t in range(len(x) - 2, -1, -1):
        J = np.asarray(jacobian(means[t])) if transport else np.eye(len(mean))
        predicted = J @ covariances[t] @ J.T + Gamma
        G = covariances[t] @ J.T @ np.linalg.inv(predicted)
        ahead = np.asarray(step(means[t]))
        means[t] = means[t] + G @ (means[t + 1] - ahead)
        covariances[t] = covariances[t] + G @ (covariances[t + 1] - predicted) @ G.T
    return means, covariances, filtered


def dense_posterior(model, x):
    """Means (T, M) and covariances of z_1..z_T given all of x, by one big Gaussian."""
    seen = ~np.isnan(x)
    A, h, B = np.asarray(model.core.A), np.asarray(model.core.h), matrix_of(model.observation)
    Gamma, Lambda = np.asarray(model.shell.process_variance()), np.asarray(model.shell.observation_variance())
    T = len(x)
    mean, covariance = first_belief(model, x[0], seen[0])
    # z = L e + m with e = (z_1, noise_2, ..., noise_T)
    L, m = np.zeros((T * M, T * M)), [mean]
    for t in range(T):
        for s in range(t + 1):
            L[t * M : (t + 1) * M, s * M : (s + 1) * M] = np.linalg.matrix_power(A, t - s)
        if t:
            m.append(A @ m[-1] + h)
    blocks = np.kron(np.eye(T), np.diag(Gamma))
    blocks[:M, :M] = covariance
    joint, m = L @ blocks @ L.T, np.concatenate(m)
    # the first row anchors: it is in the prior and not observed again
    observed = np.concatenate([np.zeros(N, bool), seen[1:].ravel()])
    H = np.kron(np.eye(T), B)[observed]
    S = H @ joint @ H.T + np.diag(np.tile(Lambda, T)[observed])
    K = joint @ H.T @ np.linalg.inv(S)
    posterior = joint - K @ H @ joint
    means = m + K @ (x.ravel()[observed] - H @ m)
    index = [slice(t * M, (t + 1) * M) for t in range(T)]
    return means.reshape(T, M), np.stack([posterior[i, i] for i in index])


def expanding_reconstruction(dtype=np.float32, expansion=1.1):
    """A core whose uncertainty grows by 10 % a step in a gap, although the mean stays put at 0."""
    model = make_model(Linear(expansion * jnp.eye(M, dtype=dtype), jnp.zeros(M, dtype)), dtype=dtype)
    return reconstruct(model)
