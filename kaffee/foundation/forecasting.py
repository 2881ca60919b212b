"""Zero-shot forecasts: the pretrained model continues a series that it has never seen, without any training."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from kaffee.data.scaler import check_context
from kaffee.errors import ConfigError
from kaffee.filtering.rollout import DIVERGENCE_BOUND
from kaffee.foundation.embedding import EmbeddingKind, embed
from kaffee.model.dynamix import DynaMix
from kaffee.model.gating import Context


@dataclass(frozen=True, eq=False)
class ZeroShot:
    """A zero-shot forecast; `numpy.asarray` of it gives its values.

    Attributes:
        values: (num_steps, n) in data units; the first row is one step after the context.
        embedding: How the series became a context: "direct", "delay" or "positional"; see `foundation.embedding`.
        delays: In steps, for each coordinate; empty if there are none.
        periods: In steps; empty if there are none.
        diverged_at: First step (from 1) at which a state was non-finite or far off the context; 0 if it never was.
    """

    values: Float[np.ndarray, "T n"]
    embedding: str
    delays: tuple[int, ...]
    periods: tuple[float, ...]
    diverged_at: int

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)


def zero_shot(
    model: DynaMix,
    context: Float[np.ndarray, "T n"],
    num_steps: int,
    *,
    key: Key[Array, ""] | None = None,
    embedding: EmbeddingKind = "delay",
    delay: int | None = None,
    period: float | None = None,
) -> ZeroShot:
    """Continue a series by DynaMix (section 5.2): the context decides everything, nothing is trained.

    The context is standardised by its own mean and standard deviation (ddof 1); the model starts from its last frame.
    A series of fewer dimensions than the model's N is embedded by delays (or positions in a period); one of more
    dimensions is forecast coordinate by coordinate, all in one batch.

    Args:
        model: From `from_pretrained`; a context that it has is replaced by this one.
        context: (T, n) or (T,), in data units, without gaps.
        num_steps: How many steps to generate.
        key: Draws the gate noise, which the model was trained with; None: no noise, which tends to be worse in the
            long run.
        embedding: "delay" or "positional"; has no effect if n is the model's N.
        delay: In steps; None: where the autocorrelation falls below 1/e, for each coordinate.
        period: In steps, for "positional"; None: from the autocorrelation.

    >>> model = DynaMix.create(8, num_observed=3, key=jax.random.key(0))
    >>> wave = np.sin(np.arange(200) / 10)
    >>> forecast = zero_shot(model, wave, 50)
    >>> forecast.values.shape, forecast.delays
    ((50, 1), (12,))
    """
    if not isinstance(model, DynaMix):
        raise ConfigError(f"Zero-shot forecasts need a DynaMix (kaffee.from_pretrained); got {type(model).__name__}.")
    if num_steps < 1:
        raise ConfigError(f"num_steps must be at least 1, not {num_steps}.")
    given = np.asarray(context)
    x = check_context(given[:, None] if given.ndim == 1 else given)
    embedded = embed(x, model.num_observed, kind=embedding, delay=delay, period=period)
    mean = embedded.contexts.mean(axis=1, keepdims=True)
    std = embedded.contexts.std(axis=1, ddof=1, keepdims=True)
    standard = (embedded.contexts - mean) / std
    output, diverged_at = _generate(
        model.without_noise(), jnp.asarray(standard, model.h.dtype), key, num_steps, DIVERGENCE_BOUND
    )
    values = np.asarray(output, np.float64) * std[:, 0] + mean[:, 0]
    n = x.shape[1]
    columns = values[:, 0, :n] if n <= model.num_observed else values[:, :, 0]
    left = np.asarray(diverged_at)
    first = int(left[left > 0].min()) if left.any() else 0
    return ZeroShot(columns, embedded.kind, embedded.delays, embedded.periods, first)


@eqx.filter_jit
def _generate(
    model: DynaMix, contexts: Float[Array, "G T N"], key: Key[Array, ""] | None, num_steps: int, bound: float
) -> tuple[Float[Array, "S G N"], Int[Array, " G"]]:
    """Free runs from the last frame of every context, in one scan with the noise drawn beforehand."""
    G, _, N = contexts.shape
    read = jax.vmap(model.gating.read)(contexts)
    noise = None if key is None else jax.random.normal(key, (num_steps, G, N), contexts.dtype)

    def advance(context: Context, z: Array, eps: Array | None) -> Array:
        return replace(model, context=context, noise=eps)(z)

    def body(carry: tuple[Array, Array], inputs: tuple[Array, Array | None]) -> tuple[tuple[Array, Array], Array]:
        (z, diverged_at), (t, eps) = carry, inputs
        z = jax.vmap(advance)(read, z, eps)
        away = ~(jnp.max(jnp.abs(z), axis=1) < bound)
        return (z, jnp.where((diverged_at == 0) & away, t, diverged_at)), z[:, :N]

    start = (model.initial_state(contexts[:, -1]), jnp.zeros(G, jnp.int32))
    steps = jnp.arange(1, num_steps + 1, dtype=jnp.int32)
    (_, diverged_at), output = jax.lax.scan(body, start, (steps, noise))
    return output, diverged_at
