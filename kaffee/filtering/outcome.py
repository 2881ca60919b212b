"""Outcomes instead of silent NaN: which quantity became non-finite, and when."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int

from kaffee.filtering.gaussian import Belief, Innovation

# Index = code; the order is the order in which one step computes them.
QUANTITIES = ("", "predicted mean", "predicted covariance", "innovation covariance", "likelihood", "gradient")

ADVICE = {
    "predicted mean": "the core itself blows up; lower the learning rate, clip gradients, or force more often",
    "predicted covariance": "the covariance overflows, as it does when Jacobians expand over a long window without "
    "assimilation; shorten the window",
    "innovation covariance": "it is not positive definite in this precision; use a larger observation noise",
    "likelihood": "a residual is too large for this precision; check the scaling of the data",
    "gradient": "the loss is finite but its gradient overflows; shorten the window or lower the learning rate",
}


def fault_code(predicted: Belief, innovation: Innovation) -> Int[Array, " W"]:
    """0 if all is finite, else the index in `QUANTITIES` of the first quantity of this step that is not."""
    finite = [
        jnp.isfinite(jnp.sum(predicted.mean, axis=1)),
        jnp.isfinite(jnp.sum(jnp.diagonal(predicted.covariance, axis1=1, axis2=2), axis=1)),
        jnp.isfinite(jnp.sum(innovation.inverse_factor, axis=(1, 2))),
        jnp.isfinite(innovation.nll),
    ]
    code = jnp.zeros(finite[0].shape, jnp.int32)
    for index in range(len(finite), 0, -1):
        code = jnp.where(finite[index - 1], code, index)
    return code


@dataclass(frozen=True)
class Outcome:
    """Whether a computation stayed finite and, if not, where it first did not.

    Attributes:
        step: Number of the first bad step, counted from 1, or None.
        window: Index of the window it happened in.
        quantity: Which of `QUANTITIES` was the first to be non-finite.
    """

    step: int | None = None
    window: int | None = None
    quantity: str = ""

    @property
    def ok(self) -> bool:
        return self.step is None

    def __str__(self) -> str:
        if self.ok:
            return "all values are finite"
        place = "" if self.step == 0 else f" at step {self.step} of window {self.window}"
        return f"the {self.quantity} became non-finite{place}: {ADVICE[self.quantity]}"


def locate_fault(faults: Int[Array, "T W"]) -> Int[Array, " 3"]:
    """(step, window, code) of the earliest fault; zeros if there is none. For use inside jit.

    >>> locate_fault(jnp.array([[0, 0], [0, 2]], jnp.int32)).tolist()
    [2, 1, 2]
    """
    position = jnp.argmax(faults.ravel() > 0).astype(jnp.int32)
    code = faults.ravel()[position]
    place = jnp.stack([position // faults.shape[1] + 1, position % faults.shape[1], code]).astype(jnp.int32)
    return jnp.where(code > 0, place, 0)


def outcome_of(located: Int[Array, " 3"]) -> Outcome:
    """The sentence for what `locate_fault` found."""
    step, window, code = (int(n) for n in located)
    return Outcome(step, window, QUANTITIES[code]) if code else Outcome()
