"""Logging S_H and D during adaptation."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax

from kaffee.data.series import Series
from kaffee.dpc.gaps import Entry, Measured
from kaffee.errors import ConfigError
from kaffee.methods import Method
from kaffee.ssm import StateSpaceModel
from kaffee.training.adaptation import Adaptation, nll_objective
from kaffee.training.loop import Watcher
from kaffee.training.sampling import training_windows


class GapLog(Watcher):
    """A watcher that certifies the model every `every` updates; hand it to `adapt(..., watcher=log)`.

    Any score and any losses will do: both are functions of a model.

    Attributes:
        entries: What was seen so far.
        last: The number of updates of the run, after which it looks in any case.
    """

    def __init__(
        self,
        score: Callable[[StateSpaceModel], float],
        losses: Callable[[StateSpaceModel], Mapping[str, Measured]],
        *,
        every: int,
        last: int | None = None,
        inner: Watcher | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError(f"A gap log looks every 1, 2, ... updates, not every {every}.")
        self.score, self.losses, self.every, self.last = score, losses, every, last
        self.inner = inner or Watcher()
        self.entries: list[Entry] = []

    def compiling(self, what: str) -> None:
        self.inner.compiling(what)

    def advanced(self, update: int, loss: float, skipped: int) -> None:
        self.inner.advanced(update, loss, skipped)

    def visited(self, update: int, model: StateSpaceModel) -> None:
        self.inner.visited(update, model)
        if update % self.every == 0 or update == self.last:
            self.entries.append(Entry(update, self.score(model), dict(self.losses(model))))


def fixed_score(
    prior: StateSpaceModel,
    series: Series,
    method: Method,
    settings: Adaptation,
    *,
    num_windows: int = 128,
    seed: int = 0,
) -> Callable[[StateSpaceModel], float]:
    """The method's own training objective on a fixed batch of windows of a standardised series: S_H."""
    surrogate = prior.replace(core=prior.core.surrogate())
    objective = nll_objective(surrogate, series, method, settings, method.trainable_parts)
    windows = training_windows(series, settings.burn_in + settings.scored + 1, prior.dtype)
    batch = windows.sample(jax.random.key(seed), num_windows)
    evaluated = eqx.filter_jit(lambda model: objective(model, batch).loss)
    return lambda model: float(evaluated(model))
