"""The probabilistic rows of the paper as values: an objective, a covariance recursion, what is trained."""

from dataclasses import dataclass
from typing import Literal

from kaffee.errors import ConfigError, unknown
from kaffee.recursion import Recursion


@dataclass(frozen=True)
class Method:
    """One row of Table 1.

    Attributes:
        objective: "filtered" scores innovations, "open_loop" scores the free run of the window.
        transport: Covariance by the core's Jacobian (tied) or state-invariant (none).
        train_core: Whether the core moves; the shell always does.
    """

    objective: Literal["filtered", "open_loop"]
    transport: bool
    train_core: bool

    @property
    def recursion(self) -> Recursion:
        """The switches of the one recursion."""
        return Recursion(assimilate=self.objective == "filtered", transport=self.transport)

    @property
    def filter(self) -> Recursion:
        """The recursion that filters with a model trained by this method: its own covariance, always assimilating."""
        return Recursion(assimilate=True, transport=self.transport)

    @property
    def trainable_parts(self) -> tuple[str, ...]:
        """Names for `kaffee.ssm.trainable`."""
        return ("core", "shell") if self.train_core else ("shell",)


KAFFEE = Method("filtered", transport=True, train_core=True)
BLIND = Method("filtered", transport=False, train_core=True)
CORE_COLLAPSE = Method("open_loop", transport=True, train_core=True)
NOISE_MASKING = Method("open_loop", transport=False, train_core=True)
FROZEN_CORE = Method("filtered", transport=True, train_core=False)

METHODS: dict[str, Method] = {
    "kaffee": KAFFEE,
    "blind": BLIND,
    "core_collapse": CORE_COLLAPSE,
    "noise_masking": NOISE_MASKING,
    "frozen_core": FROZEN_CORE,
}


def get_method(name: str) -> Method:
    """The method of that name.

    >>> get_method("blind").transport
    False
    """
    try:
        return METHODS[name.lower().replace("-", "_")]
    except KeyError:
        raise ConfigError(unknown("method", name, METHODS)) from None
