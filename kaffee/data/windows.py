"""Training windows, drawn inside jit by a cheap gather from one packed array."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpy.typing import ArrayLike

from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError


class WindowBatch(eqx.Module):
    """W windows of L consecutive rows: values, 0 where missing, and a mask, True where they were observed.

    Rows of a series with inputs have them after the coordinates, and a mask that is True there.

    The `starts` are rows of `Series.concatenated()`. The `key` is for what else is random with these windows, such as
    the noise inside a core; None if they were not drawn.
    """

    observations: Float[Array, "W L N"]
    mask: Bool[Array, "W L N"]
    starts: Int[Array, " W"]
    key: PRNGKeyArray | None = None


class WindowSampler(eqx.Module):
    """All valid windows of a series as one pytree: packed rows and a table of window starts.

    A window never crosses the end of a recording. It has at least one observation after its first row, and by
    default its first row is fully observed, because the filter is anchored there.

    Attributes:
        values: Rows of all recordings, 0 where missing.
        mask: True where a value was observed.
        starts: First row of each valid window of `length` rows.
        skipped_recordings: Recordings shorter than a window.
        dropped_windows: Windows left out because of missing values.
    """

    values: Float[Array, "T N"]
    mask: Bool[Array, "T N"]
    starts: Int[Array, " windows"]
    length: int = eqx.field(static=True)
    skipped_recordings: int = eqx.field(static=True, default=0)
    dropped_windows: int = eqx.field(static=True, default=0)

    @classmethod
    def from_series(
        cls,
        series: Series,
        length: int,
        *,
        stride: int = 1,
        require_observed_start: bool = True,
        dtype: Any = jnp.float32,
    ) -> "WindowSampler":
        """Collect the valid windows of a series, which should already be standardised.

        Args:
            length: Rows in a window, 2 or more: the first row is the anchor, the others are scored.
            stride: Rows between window starts; `stride=length` gives windows that do not overlap.
            require_observed_start: Leave out windows with a missing value in the first row.
            dtype: Of the values; float64 needs JAX's 64-bit mode.
        """
        if length < 2 or stride < 1:
            raise ConfigError(f"length={length}, stride={stride}: use a length of 2 or more and a stride of 1 or more.")
        if series.num_steps > np.iinfo(np.int32).max:
            raise DataError(f"{series.label}: {series.num_steps} steps are too many for one sampler. Split the series.")
        longest = max(series.lengths)
        if longest < length:
            which = f"recording {series.lengths.index(longest)}" + ", the longest," * (series.num_recordings > 1)
            raise DataError(
                f"{series.label}: {which} has {longest} steps, but a window needs {length}. "
                f"Use a window of at most {longest} steps, or bring longer recordings."
            )
        rows = series.concatenated()
        mask = ~np.isnan(rows)
        offsets = np.cumsum([0, *series.lengths[:-1]])
        candidates = np.concatenate(
            [start + np.arange(0, T - length + 1, stride) for start, T in zip(offsets, series.lengths, strict=True)]
        )
        # Without an observation after the first row there is nothing to score.
        count = np.concatenate([[0], np.cumsum(mask.any(axis=1))])
        keep = count[candidates + length] > count[candidates + 1]
        if require_observed_start:
            keep &= mask.all(axis=1)[candidates]
        if not keep.any():
            advice = "All observations are too isolated. Use a longer window, or a smaller stride."
            if require_observed_start:
                advice = (
                    f"Only {100 * mask.all(axis=1).mean():.3g} % of the rows are fully observed, and a window must "
                    "start at one. Pass require_observed_start=False, or select better observed columns."
                )
            usable = f"none of the {len(candidates)} windows of {length} steps is usable"
            raise DataError(f"{series.label}: {usable}. {advice}")
        return cls(
            values=_append_inputs(_device_array(np.where(mask, rows, 0.0), dtype, series), dtype, series),
            mask=jnp.asarray(np.pad(mask, ((0, 0), (0, series.num_inputs)), constant_values=True)),
            starts=jnp.asarray(candidates[keep], dtype=jnp.int32),
            length=length,
            skipped_recordings=sum(steps < length for steps in series.lengths),
            dropped_windows=int((~keep).sum()),
        )

    @property
    def num_windows(self) -> int:
        """Count the valid windows."""
        return int(self.starts.shape[0])

    def sample(self, key: PRNGKeyArray, batch_size: int) -> WindowBatch:
        """Draw `batch_size` windows (static under jit) uniformly, with replacement."""
        index = jax.random.randint(key, (batch_size,), 0, self.num_windows, dtype=jnp.int32)
        return self._gather(self.starts[index], jax.random.fold_in(key, 1))

    def take(self, indices: ArrayLike | Int[Array, " W"]) -> WindowBatch:
        """Take the windows with the given positions in `starts`.

        Indices from the host are checked; those on a device or in a trace are clamped, to avoid waiting for them.
        """
        if not isinstance(indices, jax.Array):
            host, number = np.asarray(indices), self.num_windows
            if host.ndim != 1 or host.dtype.kind not in "iu" or not ((host >= 0) & (host < number)).all():
                raise ConfigError(f"Window indices are whole numbers from 0 to {number - 1}; given {indices}.")
            indices = jnp.asarray(host, dtype=jnp.int32)
        return self._gather(jnp.take(self.starts, indices, mode="clip"))

    def _gather(self, starts: Int[Array, " W"], key: PRNGKeyArray | None = None) -> WindowBatch:
        def window(array: Array) -> Array:
            return jax.vmap(lambda start: jax.lax.dynamic_slice_in_dim(array, start, self.length))(starts)

        return WindowBatch(window(self.values), window(self.mask), starts, key)


def _append_inputs(values: Float[Array, "T N"], dtype: Any, series: Series) -> Float[Array, "T D"]:
    if series.inputs is None:
        return values
    return jnp.hstack([values, _device_array(series.inputs.concatenated(), dtype, series.inputs)])


def _device_array(values: np.ndarray, dtype: Any, series: Series) -> Array:
    wanted = jnp.dtype(dtype)
    if not jnp.issubdtype(wanted, jnp.floating):
        raise ConfigError(f"dtype={wanted} is not a float type. Use float32 or float64.")
    if wanted.itemsize == 8 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise ConfigError("dtype=float64 needs JAX's 64-bit mode: set jax_enable_x64, or use float32.")
    with np.errstate(over="ignore"):
        cast = values.astype(wanted)
    bad = ~np.isfinite(cast.astype(np.float64))
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        recording, local = series.locate(row)
        raise DataError(
            f"{series.label}, recording {recording}, row {local}, column '{series.columns[column]}': "
            f"{values[row, column]:.4g} does not fit into {wanted}. Standardise the series first."
        )
    return jnp.asarray(cast)


def training_windows(series: Series, length: int, dtype: Any = jnp.float32) -> WindowSampler:
    """Collect the windows for training: those that start at a fully observed row, unless such rows are rare.

    The first row anchors the mean of a window, so a complete one is better. With many coordinates and scattered
    gaps hardly any row is complete; then every window is used, and the missing entries of its first row start at the
    mean of the data (0 in standardised units), which the burn-in forgets.
    """
    complete = ~np.isnan(series.concatenated()).any(axis=1)
    return WindowSampler.from_series(series, length, require_observed_start=bool(complete.mean() > 0.2), dtype=dtype)


def group_rows(series: Series) -> Int[np.ndarray, " T"]:
    """Number the group of every row of `Series.concatenated()`."""
    names = series.group_names
    return np.repeat([names.index(group) for group in series.groups], series.lengths).astype(np.int32)


def padded(series: Series, dtype: Any = jnp.float32) -> tuple[Float[Array, "R T D"], Bool[Array, "R T D"]]:
    """Stack all recordings as one batch, padded with missing values to the longest; also return the mask.

    Inputs stand after the coordinates, padded with zeros, their mean: they are never missing.
    """
    N, K = series.num_coordinates, series.num_inputs
    values = np.full((series.num_recordings, max(series.lengths), N + K), np.nan)
    values[..., N:] = 0.0
    for i, length in enumerate(series.lengths):
        values[i, :length] = series.rows_with_inputs(i)
    mask = ~np.isnan(values)
    return jnp.asarray(np.where(mask, values, 0.0), dtype), jnp.asarray(mask)
