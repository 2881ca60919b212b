"""Distances of two trajectories (appendix C.4): D_stsp, of where they are in state space, and D_H, of power spectra.

All estimators of D_stsp estimate KL(reference || generated) in nats. Values of different estimators or lengths cannot
be compared: at 30^3 bins even truth against truth gives 0.6-0.7 for 5000 points. `attractors` chooses one.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.ndimage import gaussian_filter1d

from kaffee.errors import ConfigError

# Models run in float32: a run that has come to rest goes on flickering in the last digits of its coordinates.
FLAT = 1e-6


def _match(reference: np.ndarray, generated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    reference, generated = np.asarray(reference, np.float64), np.asarray(generated, np.float64)
    if reference.ndim != 2 or generated.ndim != 2 or reference.shape[1] != generated.shape[1]:
        raise ConfigError(
            f"Two trajectories (T, N) with the same N are needed; got {reference.shape} and {generated.shape}."
        )
    return reference, generated


def _check(reference: np.ndarray, generated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    reference, generated = _match(reference, generated)
    if not len(reference):
        raise ConfigError("The reference trajectory is empty.")
    if not np.isfinite(reference).all():
        raise ConfigError("The reference trajectory has non-finite values; drop or impute them first.")
    return reference, generated


def d_stsp_histogram(
    reference: Float[np.ndarray, "T N"],
    generated: Float[np.ndarray, "L N"],
    *,
    num_bins: int = 30,
    smoothing: float = 1e-5,
) -> float:
    """Estimate D_stsp by histograms, sum_b p(b) log p(b)/q(b); for up to about three dimensions.

    The bins cover the reference's range plus a tenth of its standard deviation on both sides; generated points outside
    and non-finite ones (of a diverged run) are dropped; with none left the result is infinite. Both histograms are
    smoothed by `smoothing` counts per bin. A run at rest within the range has a finite value, that of one full bin.

    >>> line = np.linspace(0, 1, 100)[:, None]
    >>> d_stsp_histogram(line, line)
    0.0
    """
    reference, generated = _check(reference, generated)
    margin = 0.1 * reference.std(axis=0)
    low, high = reference.min(axis=0) - margin, reference.max(axis=0) + margin
    if not (high > low).all():
        raise ConfigError("A coordinate of the reference is constant: it has no range to put bins over.")
    generated = generated[((generated >= low) & (generated <= high)).all(axis=1)]
    if not len(generated):
        return float("inf")
    edges = [np.linspace(a, b, num_bins + 1) for a, b in zip(low, high, strict=True)]

    def density(points: np.ndarray) -> np.ndarray:
        counts, _ = np.histogramdd(points, bins=edges)
        return (counts + smoothing) / (counts.sum() + smoothing * counts.size)

    p, q = density(reference), density(generated)
    return float(np.sum(p * np.log(p / q)))


@jax.jit
def _log_mixture(
    points: Float[Array, "S N"], centres: Float[Array, "C K N"], weights: Float[Array, "C K"], variance: Array
) -> Float[Array, " S"]:
    """Compute log sum_k w_k exp(-|x - c_k|^2 / (2 variance)), in chunks of centres and without underflow."""

    def body(total: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
        c, log_w = chunk
        squares = jnp.sum(points**2, 1)[:, None] - 2.0 * points @ c.T + jnp.sum(c**2, 1)[None, :]
        terms = log_w - 0.5 * jnp.maximum(squares, 0.0) / variance
        return jnp.logaddexp(total, jax.nn.logsumexp(terms, axis=1)), None

    start = jnp.full(points.shape[0], -jnp.inf, points.dtype)
    return jax.lax.scan(body, start, (centres, weights))[0]


def _mixture(points: np.ndarray, centres: np.ndarray, variance: float) -> np.ndarray:
    chunk = min(4096, -(-len(centres) // 512) * 512)
    pad = -len(centres) % chunk
    padded = np.concatenate([centres, np.zeros((pad, centres.shape[1]))])
    log_weights = np.concatenate([np.zeros(len(centres)), np.full(pad, -np.inf)])
    with jax.enable_x64(True):
        total = _log_mixture(
            jnp.asarray(points),
            jnp.asarray(padded.reshape(-1, chunk, centres.shape[1])),
            jnp.asarray(log_weights.reshape(-1, chunk)),
            jnp.asarray(variance),
        )
        return np.asarray(total) - np.log(len(centres))


def d_stsp_mixture(
    reference: Float[np.ndarray, "T N"],
    generated: Float[np.ndarray, "L N"],
    *,
    variance: float = 1.0,
    num_samples: int = 1000,
    seed: int = 0,
) -> float:
    """Estimate D_stsp by Monte Carlo between Gaussian mixtures centred on the trajectories (Eq. kl_mc).

        1/n sum_i log [1/T sum_t N(x_i | z_t, s^2 I)] / [1/L sum_l N(x_i | zhat_l, s^2 I)],   x_i ~ the first mixture

    For many dimensions. Computed in float64 with logsumexp, so that no sample is lost to underflow. Non-finite rows of
    a diverged run are left out; with none left the result is infinite. Constant coordinates are as good as others.
    """
    return float(_mixture_distances(reference, [generated], variance, num_samples, seed)[0])


def _mixture_distances(
    reference: np.ndarray, runs: Sequence[np.ndarray], variance: float, num_samples: int, seed: int
) -> Float[np.ndarray, " S"]:
    """Compute `d_stsp_mixture` of many runs, which share the samples and their density under the reference."""
    pairs = [_check(reference, run) for run in runs]
    reference = np.asarray(reference, np.float64)
    rng = np.random.default_rng(seed)
    centres = reference[rng.integers(len(reference), size=num_samples)]
    points = centres + np.sqrt(variance) * rng.standard_normal(centres.shape)
    log_p = _mixture(points, reference, variance)
    finite = [run[np.isfinite(run).all(axis=1)] for _, run in pairs]
    return np.array([np.mean(log_p - _mixture(points, run, variance)) if len(run) else np.inf for run in finite])


def d_stsp_kernel(
    reference: Float[np.ndarray, "T N"], runs: Sequence[Float[np.ndarray, "L N"]]
) -> Float[np.ndarray, " S"]:
    """Estimate D_stsp of some runs by kernel densities: mixtures in units of the reference's spread.

    The mixtures are as wide as a kernel density of so many rows should be (Scott 1992): T^(-1/(N+4)) standard
    deviations. Histograms of 30 bins in each of three dimensions would need a hundred times the rows that a recording
    has, and would count the observation noise of a recording against a core without any.
    """
    mean, std = reference.mean(axis=0), reference.std(axis=0)
    T, N = reference.shape
    scaled = [(run - mean) / std for run in runs]
    return _mixture_distances((reference - mean) / std, scaled, T ** (-2.0 / (N + 4)), 1000, 0)


def power_spectrum(x: Float[np.ndarray, "T N"], *, smoothing: float = 20.0) -> Float[np.ndarray, "F N"]:
    """Estimate power spectra: z-scored `|rfft|^2`, smoothed by a Gaussian of `smoothing` bins, of unit mass.

    A constant or non-finite coordinate has no spectrum: its column is NaN. The width is in bins, so results depend on
    the length of the series.
    """
    x = np.asarray(x, np.float64)
    if x.ndim != 2 or len(x) < 4:
        raise ConfigError(f"A trajectory (T, N) of at least 4 steps is needed; got shape {x.shape}.")
    with np.errstate(all="ignore"):
        std = x.std(axis=0)
        valid = np.isfinite(std) & (std > 1e-12 * np.abs(x).max(axis=0))
    safe = np.where(valid, x, 0.0)
    scaled = (safe - safe.mean(axis=0)) / np.where(valid, std, 1.0)
    power = gaussian_filter1d(np.abs(np.fft.rfft(scaled, axis=0)) ** 2, smoothing, axis=0)
    with np.errstate(all="ignore"):
        return np.where(valid, power / power.sum(axis=0), np.nan)


def d_hellinger(
    reference: Float[np.ndarray, "T N"], generated: Float[np.ndarray, "T N"], *, smoothing: float = 20.0
) -> float:
    """Return D_H, the mean over coordinates of sqrt(1 - sum_w sqrt(p_j(w) q_j(w))), between 0 (equal) and 1.

    Both series are cut to the shorter length. A generated coordinate that is constant (up to the rounding of float32,
    in units of the reference's spread) or non-finite counts as 1.

    >>> t = np.arange(1000.0)[:, None]
    >>> d_hellinger(np.sin(t), np.sin(t + 0.3)) < 0.01
    True
    """
    length = min(len(reference), len(generated))
    reference, generated = (x[:length] for x in _match(reference, generated))
    p, q = (power_spectrum(x, smoothing=smoothing) for x in (reference, generated))
    if np.isnan(p).any():
        raise ConfigError("A coordinate of the reference is constant or non-finite: it has no power spectrum.")
    with np.errstate(all="ignore"):
        away = (generated - reference.mean(axis=0)) / reference.std(axis=0)
        flat = away.std(axis=0) <= FLAT * np.maximum(np.abs(away).max(axis=0), 1.0)
    overlap = np.clip(np.sum(np.sqrt(p * q), axis=0), 0.0, 1.0)
    return float(np.mean(np.where(np.isnan(overlap) | flat, 1.0, np.sqrt(1.0 - overlap))))
