"""The gate from what people say: a chi-square quantile and a patience."""

import jax.numpy as jnp
from scipy.special import chdtri

from kaffee.errors import ConfigError
from kaffee.inference.counts import check_count
from kaffee.inference.tracking import Gate, open_gate


def gate_of(quantile: float | None, patience: int = 10) -> Gate:
    """Reject a reading if v_i^2 / Omega_ii exceeds this quantile of chi-square with one degree of freedom.

    Args:
        quantile: Such as 0.9999, one good reading in ten thousand lost; None for no gate.
        patience: Rejections in a row after which a coordinate is believed again.

    >>> round(float(gate_of(0.95).threshold), 3)
    3.841
    """
    patience = check_count("patience", patience, 1)
    if quantile is None:
        return open_gate()
    if not 0.0 < quantile < 1.0:
        raise ConfigError(f"The gate is a quantile between 0 and 1, such as 0.9999; not {quantile:g}.")
    return Gate(jnp.asarray(chdtri(1.0, 1.0 - quantile), jnp.float32), jnp.asarray(patience, jnp.int32))
