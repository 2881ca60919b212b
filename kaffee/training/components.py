"""Principal components of many channels: the start of an observation map that is learned.

    x = C s + b + noise,    C = V (D - sigma^2)^{1/2}    (probabilistic principal components, Tipping and Bishop 1999)

V and D are the leading eigenvectors and eigenvalues of the covariance of standardised rows, sigma^2 the mean of the
others. C is scaled so that the scores s = C^+ (x - b) of the training rows have variance 1. Its columns are orthogonal:
of all C T that are as likely, with T any invertible matrix, this fixes one to begin with; training is free to leave it.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.model.observation import LinearObservation
from kaffee.model.statespace import Shell, StateSpaceModel

MOST_COMPONENTS = 20
"""Components that are tried where their number is not given."""
_HELD_BACK = 0.25
_LEAST_VARIANCE = 1e-4
_NUM_BLOCKS = 16
_FACTOR_STEPS, _LEAST_PSI = 40, 1e-3


@dataclass(frozen=True, eq=False)
class Components:
    """A map from K scores of mean 0 and variance 1 to N standardised channels, and the variance that it leaves over.

    Attributes:
        loadings: C.
        offset: b.
        noise: Variance of each channel around C s + b.
    """

    loadings: Float[np.ndarray, "N K"]
    offset: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"]

    @property
    def number(self) -> int:
        """Count the components K."""
        return int(self.loadings.shape[1])

    @property
    def inverse(self) -> Float[np.ndarray, "K N"]:
        """C^+, the least-squares inverse of the loadings."""
        return np.linalg.pinv(self.loadings)

    def scores(self, series: Series) -> Series:
        """Compute the scores of a standardised series."""
        names = tuple(f"s{k + 1}" for k in range(self.number))
        recordings = tuple(self.project(values) for values in series.recordings)
        return replace(series, recordings=recordings, columns=names)

    def project(self, values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T K"]:
        """Compute the scores of standardised rows, by least squares on the channels that were read.

        A row of fewer readings than components has none.
        """
        seen = ~np.isnan(values)
        v, result = np.where(seen, values - self.offset, 0.0), np.full((len(values), self.number), np.nan)
        whole = seen.all(axis=1)
        result[whole] = v[whole] @ self.inverse.T
        gappy = ~whole & (seen.sum(axis=1) >= self.number)
        if gappy.any():
            C, mask = self.loadings, seen[gappy].astype(float)
            gram = np.einsum("tn,nk,nl->tkl", mask, C, C) + 1e-9 * np.eye(self.number)
            result[gappy] = np.linalg.solve(gram, (v[gappy] @ C)[..., None])[..., 0]
        return result

    def turned(self, T: Float[np.ndarray, "K K"], c: Float[np.ndarray, " K"]) -> "Components":
        """Return the map from other scores, T s + c, to the same channels."""
        C = self.loadings @ np.linalg.inv(T)
        return replace(self, loadings=C, offset=self.offset - C @ c)

    def lift(self, model: StateSpaceModel) -> StateSpaceModel:
        """Make a model of the channels of a model of the scores.

        B = C B_s,    Lambda = noise + diag(C Lambda_s C'),    E = E_s C^+
        """
        C, dtype = self.loadings, model.dtype
        B = C @ np.asarray(model.observation.matrix(), np.float64)
        K = self.number
        hidden = model.latent_dim - K if not B[:, K:].any() else 0
        noise = self.noise + C**2 @ np.asarray(model.shell.observation_variance(), np.float64)
        log_std = jnp.asarray(0.5 * np.log(np.maximum(noise, _LEAST_VARIANCE)), dtype)
        return StateSpaceModel(
            core=model.core,
            shell=Shell(model.shell.log_process_std, log_std),
            observation=LinearObservation(
                jnp.asarray(B[:, : model.latent_dim - hidden], dtype), jnp.asarray(self.offset, dtype), hidden
            ),
            embedding=jnp.asarray(np.asarray(model.embedding, np.float64) @ self.inverse, dtype),
            climate=model.climate,
        )

    def view(self, model: StateSpaceModel) -> StateSpaceModel:
        """Look at a model of the channels through C^+: a model of these scores, whatever has become of its own map."""
        inverse, dtype, own = self.inverse, model.dtype, model.observation
        assert isinstance(own, LinearObservation)
        offset = 0.0 if own.offset is None else np.asarray(own.offset, np.float64)
        variance = inverse**2 @ np.asarray(model.shell.observation_variance(), np.float64)
        return StateSpaceModel(
            core=model.core,
            shell=Shell(model.shell.log_process_std, jnp.asarray(0.5 * np.log(variance), dtype)),
            observation=LinearObservation(
                jnp.asarray(inverse @ np.asarray(own.B, np.float64), dtype),
                jnp.asarray(inverse @ (offset - self.offset), dtype),
                own.hidden,
            ),
            embedding=jnp.asarray(np.asarray(model.embedding, np.float64) @ self.loadings, dtype),
            climate=model.climate,
        )


def principal_components(series: Series, number: int) -> Components:
    """Find the components of a standardised series; covariances are those of the rows at which both were read."""
    N = series.num_coordinates
    if not 1 <= number <= N:
        raise ConfigError(f"{number} components of {N} channels: there are between 1 and {N}.")
    values, vectors = _spectrum(series.concatenated())
    sigma2 = max(float(values[number:].mean()) if number < N else 0.0, 0.0)
    scale = np.sqrt(np.maximum(values[:number] - sigma2, 1e-3 * values[:number]))
    made = Components(vectors[:, :number] * scale, np.zeros(N), np.ones(N))
    scores = made.scores(series).concatenated()
    known = scores[~np.isnan(scores).any(axis=1)]
    if len(known) <= number:
        raise DataError(
            f"{series.label}: {len(known)} rows have as many readings as there are components ({number}). Take fewer "
            "components, or better observed channels."
        )
    mean, std = known.mean(axis=0), known.std(axis=0)
    loadings = made.loadings * std
    # The sign of an eigenvector is arbitrary; that of its largest entry is the same on every machine.
    loadings = loadings * np.where(loadings[np.abs(loadings).argmax(axis=0), np.arange(number)] < 0, -1.0, 1.0)
    made = Components(loadings, made.loadings @ mean, np.ones(N))
    rest = series.concatenated() - made.offset - made.scores(series).concatenated() @ loadings.T
    return replace(made, noise=np.nanmean(rest**2, axis=0))


def _spectrum(rows: Float[np.ndarray, "T N"]) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, "N N"]]:
    """Compute eigenvalues, the largest first, and eigenvectors of the covariance of rows with gaps."""
    values, vectors = np.linalg.eigh(_covariance(rows))
    return np.maximum(values[::-1], 1e-9), vectors[:, ::-1]


def _covariance(rows: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "N N"]:
    """Compute second moments of standardised rows, each of the rows at which both channels were read."""
    seen = ~np.isnan(rows)
    x, count = np.where(seen, rows, 0.0), np.maximum(seen.T.astype(float) @ seen, 1.0)
    return x.T @ x / count


def count_components(series: Series) -> int:
    """Choose the number of components by the likelihood of the last quarter of the rows of every recording.

        x ~ N(0, W W' + diag(psi))      (factor analysis: the noise of every channel is its own)

    The fewest are taken of those that are no worse than the best by more than two standard errors, which are those of
    means over blocks of rows, and there are never more than N channels can tell apart (Ledermann's bound).
    """
    N = series.num_coordinates
    train, test = (part.concatenated() for part in series.split(1.0 - _HELD_BACK))
    S, rows, scores = _covariance(train), np.nan_to_num(test), []
    for K in range(1, MOST_COMPONENTS + 1):
        if K > 1 and (N - K) ** 2 < N + K:
            break
        model = _factor_covariance(S, K)
        power = np.einsum("ti,ij,tj->t", rows, np.linalg.inv(model), rows)
        nll = 0.5 * (np.linalg.slogdet(model)[1] + power)
        scores.append([block.mean() for block in np.array_split(nll, min(_NUM_BLOCKS, len(nll)))])
    best = min(scores, key=np.mean)
    worse = [np.subtract(each, best) for each in scores]
    error = [2.0 * each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else 0.0 for each in worse]
    return 1 + next(k for k, each in enumerate(worse) if each.mean() <= error[k])


def _factor_covariance(S: Float[np.ndarray, "N N"], number: int) -> Float[np.ndarray, "N N"]:
    """Fit W W' + diag(psi) to a covariance by iterated principal factors."""
    psi = 0.5 / np.maximum(np.diag(np.linalg.inv(S + 1e-6 * np.eye(len(S)))), 1e-9)
    for _ in range(_FACTOR_STEPS):
        root = np.sqrt(psi)
        values, vectors = np.linalg.eigh(S / np.outer(root, root))
        W = root[:, None] * vectors[:, -number:] * np.sqrt(np.maximum(values[-number:] - 1.0, 0.0))
        psi = np.maximum(np.diag(S) - np.sum(W**2, axis=1), _LEAST_PSI * np.diag(S))
    return W @ W.T + np.diag(psi)


def subspace_angle(B: Float[np.ndarray, "N K"], other: Float[np.ndarray, "N L"]) -> float:
    """Compute the largest principal angle between the spans of two matrices, in degrees.

    A map is identified by its span alone: C T with the scores T^-1 s is as likely as C with s.

    >>> round(subspace_angle(np.eye(3, 2), np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])), 1)
    54.7
    """
    bases = [np.linalg.qr(np.asarray(each, np.float64))[0] for each in (B, other)]
    sines = np.linalg.svd(bases[1] - bases[0] @ (bases[0].T @ bases[1]), compute_uv=False)
    return float(np.degrees(np.arcsin(np.clip(sines.max(), 0.0, 1.0))))
