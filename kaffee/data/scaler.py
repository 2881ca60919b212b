"""Standardisation of coordinates, carried with the model and inverted on output."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from kaffee.data.validation import as_float64, check_observed, quoted
from kaffee.errors import ConfigError, DataError, unknown

if TYPE_CHECKING:
    from kaffee.data.series import Series


GAUSSIAN = "gaussian"
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
LIKELIHOODS = (GAUSSIAN, "poisson", "bernoulli")
"""What readings can be: numbers with Gaussian noise, counts, zeros and ones."""


def encode_discrete(x: Float[np.ndarray, "... N"], likelihood: str) -> Float[np.ndarray, "... N"]:
    """Encode counts as log(x + 1/2), zeros and ones as -log 3 and log 3; NaN stays missing.

    >>> encode_discrete(np.array([0.0, 2.0]), "poisson").round(3).tolist()
    [-0.693, 0.916]
    """
    if likelihood not in LIKELIHOODS:
        raise ConfigError(unknown("likelihood", likelihood, LIKELIHOODS))
    if likelihood == GAUSSIAN:
        return x
    binary, seen = likelihood == "bernoulli", np.asarray(x, np.float64)[~np.isnan(x)]
    bad = seen[(seen < 0) | (seen != np.round(seen)) | (seen > (1 if binary else 1e6))]
    if bad.size:
        wanted = "0 or 1" if binary else "counts, whole numbers from 0 to a million"
        raise DataError(f"Readings of the likelihood {likelihood} are {wanted}; got {bad[0]:g}.")
    return np.log(3.0) * (2.0 * x - 1.0) if binary else np.log(x + 0.5)


@dataclass(frozen=True, eq=False)
class Scaler:
    r"""The map $x \mapsto (x - \mathrm{mean}) / \mathrm{scale}$ for each coordinate, and its inverse.

    Works on NumPy and JAX arrays alike and keeps their dtype: mean and scale (N,), in data units, are cast to it.
    Two scalers with the same numbers are equal and have the same hash. `inputs` is the scaler of known inputs. Counts
    and binary readings are encoded first (`encode_discrete`, in NumPy); mean and scale are then those of log rates or
    log odds.

    >>> scaler = Scaler(mean=[1.0, 2.0], scale=[2.0, 4.0])
    >>> scaler.transform(np.array([[3.0, 2.0]])).tolist()
    [[1.0, 0.0]]
    """

    mean: Float[np.ndarray, " N"]
    scale: Float[np.ndarray, " N"]
    inputs: "Scaler | None" = None
    likelihood: str = GAUSSIAN

    def __post_init__(self) -> None:
        if self.likelihood not in LIKELIHOODS:
            raise ConfigError(unknown("likelihood", self.likelihood, LIKELIHOODS))
        mean, scale = as_float64(self.mean, "scaler mean"), as_float64(self.scale, "scaler scale")
        if mean.ndim != 1 or mean.shape != scale.shape or not mean.size:
            shapes = f"given {mean.shape} and {scale.shape}"
            raise DataError(f"A scaler needs mean and scale of the same shape (N,); {shapes}.")
        if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
            raise DataError("A scaler needs a finite mean and a finite, positive scale in every coordinate.")
        for array in (mean, scale):
            array.setflags(write=False)
        self.__dict__.update(mean=mean, scale=scale)

    @classmethod
    def fit(cls, series: "Series", likelihood: str = GAUSSIAN) -> "Scaler":
        """Take mean and standard deviation (ddof 0) of the observed values; refuse constant and unobserved columns."""
        check_observed(series.recordings, series.columns, series.label)
        if likelihood != GAUSSIAN:
            encoded = tuple(encode_discrete(values, likelihood) for values in series.recordings)
            known = cls.fit(replace(series, recordings=encoded))
            return cls(known.mean, known.scale, known.inputs, likelihood)
        low = np.fmin.reduce([np.fmin.reduce(values, axis=0) for values in series.recordings])
        high = np.fmax.reduce([np.fmax.reduce(values, axis=0) for values in series.recordings])
        # Powers of two are exact and keep the squares of very large or small values in range.
        largest = np.fmax(np.abs(low), np.abs(high))
        unit = np.ldexp(1.0, np.clip(np.frexp(largest)[1], -1000, 1000))
        # Counted from the middle of the range, a constant has deviation zero to the last bit.
        middle = (low / unit + high / unit) / 2
        parts = [values / unit - middle for values in series.recordings]
        count = sum(np.sum(~np.isnan(part), axis=0) for part in parts)
        shift = sum(np.nansum(part, axis=0) for part in parts) / count
        scale = np.sqrt(sum(np.nansum((part - shift) ** 2, axis=0) for part in parts) / count)
        mean = middle + shift
        constant = np.flatnonzero(scale <= np.finfo(np.float64).eps * largest / unit)
        if constant.size:
            names = [series.columns[j] for j in constant]
            others = ",".join(name for name in series.columns if name not in names)
            it, column = ("it", "column") if len(names) == 1 else ("them", "columns")
            value = (mean * unit)[constant[0]]
            advice = f"Leave {it} out: --columns {others}, or Series.select in Python."
            raise DataError(
                f"{series.label}: constant {column} {quoted(names)} ({value:.6g} in all {count[constant[0]]} observed "
                f"values): there is no scale to standardise by. {advice if others else 'Nothing is left to model.'}"
            )
        return cls(mean * unit, scale * unit, None if series.inputs is None else cls.fit(series.inputs))

    @classmethod
    def identity(cls, num_coordinates: int, num_inputs: int = 0) -> "Scaler":
        """Make a scaler that changes nothing."""
        inputs = cls.identity(num_inputs) if num_inputs else None
        return cls(np.zeros(num_coordinates), np.ones(num_coordinates), inputs)

    @property
    def num_coordinates(self) -> int:
        """Count the coordinates N."""
        return int(self.mean.shape[0])

    def transform(self, x: Any) -> Any:
        """Convert data units (..., N) to standard units."""
        x = self._floating(x)
        if self.discrete:
            x = encode_discrete(np.asarray(x), self.likelihood)
        return (x - _align(self.mean, x)) / _align(self.scale, x)

    def inverse(self, x: Any) -> Any:
        """Convert standard units (..., N) to data units; what was encoded comes back as whole numbers."""
        t = self._unscale(x)
        if self.likelihood == "poisson":
            return np.maximum(np.round(np.exp(t) - 0.5), 0.0)
        return np.where(np.isnan(t), t, t > 0) if self.discrete else t

    def inverse_signal(self, x: Any) -> Any:
        """Convert a signal in standard units to data units: itself, or the rate or probability that it stands for."""
        t = self._unscale(x)
        return t if not self.discrete else np.exp(t) if self.likelihood == "poisson" else 1.0 / (1.0 + np.exp(-t))

    def _unscale(self, x: Any) -> Any:
        x = self._floating(x)
        return x * _align(self.scale, x) + _align(self.mean, x)

    @property
    def discrete(self) -> bool:
        """Tell whether readings are counts or binary."""
        return self.likelihood != GAUSSIAN

    @property
    def log_scale(self) -> Float[np.ndarray, " N"]:
        """Return what log densities lose from standard to data units; probabilities of whole numbers lose nothing."""
        return np.zeros_like(self.scale) if self.discrete else np.log(self.scale)

    def signal_moments(self, mean: Any, std: Any) -> tuple[Any, Any]:
        """Convert mean and standard deviation of a normal signal to those of what it stands for, in data units."""
        if not self.discrete:
            return self.inverse(mean), self.inverse_std(std)
        values = self.inverse_signal(mean[..., None, :] + std[..., None, :] * _NODES[:, None])
        first = np.einsum("q,...qn->...n", _WEIGHTS, values)
        return first, np.sqrt(np.einsum("q,...qn->...n", _WEIGHTS, (values - first[..., None, :]) ** 2))

    def reading_moments(self, mean: Any, std: Any) -> tuple[Any, Any]:
        """Convert the moments of a predicted reading (`gated.Row.reading_mean`, `reading_std`) to data units.

        Of counts with rate r, E x = E r and Var x = E r + Var r.
        """
        if not self.discrete:
            return self.inverse(mean), self.inverse_std(std)
        at = self.inverse_signal(mean)
        weight = np.maximum(at if self.likelihood == "poisson" else at * (1.0 - at), 1e-6)
        signal = np.sqrt(np.maximum(std**2 - 1.0 / (self.scale**2 * weight), 0.0))
        first, spread = self.signal_moments(mean, signal)
        return first, np.sqrt(first + spread**2 if self.likelihood == "poisson" else first * (1.0 - first))

    def inverse_std(self, std: Any) -> Any:
        """Convert standard deviations (..., N) in standard units to data units."""
        std = self._floating(std)
        return std * _align(self.scale, std)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists for JSON; `from_dict` restores the very same bits."""
        more: dict[str, Any] = {} if self.inputs is None else {"inputs": self.inputs.to_dict()}
        more |= {"likelihood": self.likelihood} if self.discrete else {}
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist(), **more}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Scaler":
        """Restore the scaler that `to_dict` wrote."""
        if missing := {"mean", "scale"} - set(data):
            raise DataError(f"A stored scaler needs the keys 'mean' and 'scale'; missing: {sorted(missing)}.")
        inputs = None if data.get("inputs") is None else cls.from_dict(data["inputs"])
        return cls(data["mean"], data["scale"], inputs, data.get("likelihood", GAUSSIAN))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaler) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.mean.tobytes(), self.scale.tobytes(), self.inputs, self.likelihood

    def _floating(self, x: Any) -> Any:
        if not hasattr(x, "dtype") or (isinstance(x, np.ndarray) and x.dtype.kind in "iu"):
            x = np.asarray(x, dtype=np.float64)
        if np.issubdtype(x.dtype, np.integer) or np.issubdtype(x.dtype, np.bool_):
            raise DataError(f"A scaler works on floats; given {x.dtype}. Convert with .astype first.")
        if x.ndim == 0 or x.shape[-1] != self.num_coordinates:
            raise DataError(
                f"The scaler holds {self.num_coordinates} coordinates, but the last axis of shape "
                f"{tuple(x.shape)} does not. Pass arrays of shape (..., N) with the coordinates last."
            )
        return x


def _align(vector: np.ndarray, x: Any) -> np.ndarray:
    """Cast to the dtype of x and add leading axes, so that neither dtype nor rank is promoted."""
    return vector.astype(x.dtype).reshape((1,) * (x.ndim - 1) + vector.shape)


MIN_FRAMES = 3
"""Rows that a context, from which a foundation model infers a system (appendix C.5), needs at least."""


def check_shape(shape: tuple[int, ...], num_observed: int | None = None) -> None:
    """Refuse a context unless it has shape (T, N) and is long enough."""
    if len(shape) != 2 or shape[1] == 0 or (num_observed is not None and shape[1] != num_observed):
        wanted = "N" if num_observed is None else num_observed
        hint = "" if num_observed is None else " For other dimensions use kaffee.zero_shot, which embeds them."
        raise DataError(f"A context has shape (T, {wanted}), one row per time step; given {shape}.{hint}")
    if shape[0] < MIN_FRAMES:
        raise DataError(f"A context needs at least {MIN_FRAMES} frames, better some hundred; given {shape[0]}.")


def check_context(context: Any, num_observed: int | None = None) -> Float[np.ndarray, "T N"]:
    """Return a context as a float64 array; refuse it if it is too short, constant, gappy or ill-shaped."""
    array = np.asarray(context)
    if array.dtype.kind not in "iuf":
        raise DataError(f"A context holds real numbers; given values of type {array.dtype}.")
    check_shape(array.shape, num_observed)
    array = array.astype(np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise DataError(
            f"The context has {int(bad.sum())} missing or infinite values, the first in row {row}, coordinate "
            f"{column}. A context has no gaps: interpolate it, or take a part without gaps."
        )
    constant = np.flatnonzero(np.ptp(array, axis=0) <= 1e-12 * np.abs(array).max(axis=0))
    if constant.size:
        raise DataError(
            f"Coordinate {int(constant[0])} of the context is constant ({array[0, constant[0]]:.6g}): "
            "there is nothing to reconstruct. Leave it out."
        )
    return array


def context_scaler(context: Float[np.ndarray, "T N"]) -> Scaler:
    """Make a scaler of mean and standard deviation (ddof 1) of a context, all that is known of the system."""
    context = check_context(context)
    return Scaler(context.mean(axis=0), context.std(axis=0, ddof=1))
