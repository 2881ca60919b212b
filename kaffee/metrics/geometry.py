"""Estimators of D_stsp: how differently two trajectories occupy the state space (appendix C.4).

All estimate KL(reference || generated) in nats. Values of different estimators or different lengths cannot be compared:
at 30^3 bins even truth against truth gives 0.6-0.7 for 5000 points. `attractors` chooses one.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.errors import ConfigError


def _check(reference: np.ndarray, generated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    reference, generated = np.asarray(reference, np.float64), np.asarray(generated, np.float64)
    if reference.ndim != 2 or generated.ndim != 2 or reference.shape[1] != generated.shape[1]:
        raise ConfigError(
            f"Two trajectories (T, N) with the same N are needed; got {reference.shape} and {generated.shape}."
        )
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
    count, N = centres.shape
    chunk = min(4096, -(-count // 512) * 512)
    pad = -count % chunk
    padded = np.pad(centres, ((0, pad), (0, 0))).reshape(-1, chunk, N)
    log_weights = np.pad(np.zeros(count), (0, pad), constant_values=-np.inf).reshape(-1, chunk)
    with jax.enable_x64(True):
        total = _log_mixture(*(jnp.asarray(values) for values in (points, padded, log_weights, variance)))
        return np.asarray(total) - np.log(count)


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

    They are as wide as a kernel density of T rows should be (Scott 1992): T^(-1/(N+4)) standard deviations. Histograms
    would need a hundred times the rows that a recording has, and count its noise against a core without any.
    """
    mean, std = reference.mean(axis=0), reference.std(axis=0)
    reference, *scaled = ((run - mean) / std for run in (reference, *runs))
    T, N = reference.shape
    return _mixture_distances(reference, scaled, T ** (-2.0 / (N + 4)), 1000, 0)
