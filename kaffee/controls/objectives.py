"""The objectives of the non-chaotic controls as values: score innovations, or take noisy observations for states.

The noisy-state predictive objective of appendices A.2, A.3 and D.2 ("naive maximum likelihood") is

    L_H = sum_{h=1}^{H} -log N(x_{t+h}; F^h(x_t), V_h)

In the one recursion it is an open loop without covariance transport whose windows start at N(x_t, 0), without burn-in:

    z_0 = x_t,   Sigma_0 = 0,   Omega_h = h Gamma + Lambda

For H = 1 the residual covariance V_1 = Gamma + Lambda is free, exactly the paper's family; only the sum is determined.
For H > 1 the paper lets every V_h be free, here they grow linearly in h. Either way V_h does not depend on the core,
so that no volume pressure enters, and proposition 2 (ii) holds for both: in the scalar case E(x_{t+h} - a^h x_t)^2
falls in a up to kappa^(1/h) a* and rises beyond it, so that any positive weights of the H summands put the minimiser
between kappa a* and kappa^(1/H) a*.
"""

from dataclasses import dataclass
from typing import Literal

from kaffee.errors import ConfigError, unknown
from kaffee.methods import KAFFEE, NOISE_MASKING, Method
from kaffee.training.adaptation import Adaptation
from kaffee.training.loop import Schedule
from kaffee.training.optimiser import Optimiser

HORIZONS = (1, 5, 20)
"""H of the noisy-state objectives that the experiments compare."""


@dataclass(frozen=True)
class Budget:
    """The optimisation, the same for every objective.

    The paper gives none for these controls. With these updates the losses are flat at the end, up to a slow last
    decline of KAFFEE's on Van der Pol; clipping is that of appendix B.2. The burn-in is longer than the paper's 8,
    because a window starts at N(x, Gamma) as if x had no noise, and a filter with little process noise forgets that
    slowly.

    Attributes:
        scored_per_update: Scored steps in a batch, whatever the length of its windows.
        scored, burn_in: The windows of KAFFEE, in steps.
    """

    num_updates: int = 2000
    learning_rate: float = 1e-2
    final_learning_rate: float = 1e-4
    clip_norm: float = 2.0
    scored_per_update: int = 1024
    scored: int = 32
    burn_in: int = 32
    report_every: int = 20

    def adaptation(self, *, scored: int, burn_in: int, start: Literal["embedding", "observed"]) -> Adaptation:
        """The settings of one training run."""
        if scored > self.scored_per_update:
            raise ConfigError(f"Windows of {scored} scored steps do not fit {self.scored_per_update} steps per update.")
        return Adaptation(
            scored=scored,
            burn_in=burn_in,
            start=start,
            optimiser=Optimiser(
                "adam",
                learning_rate=self.learning_rate,
                final_learning_rate=self.final_learning_rate,
                clip_norm=self.clip_norm,
            ),
            schedule=Schedule(
                num_updates=self.num_updates,
                batch_size=self.scored_per_update // scored,
                report_every=self.report_every,
            ),
        )


@dataclass(frozen=True)
class ControlObjective:
    """An objective of the controls.

    Attributes:
        horizon: H of the noisy-state predictive objective; None: the innovation likelihood of KAFFEE.
    """

    name: str
    title: str
    horizon: int | None = None

    @property
    def method(self) -> Method:
        """The switches of the recursion."""
        return KAFFEE if self.horizon is None else NOISE_MASKING

    def settings(self, budget: Budget) -> Adaptation:
        """How `kaffee.training.adaptation.adapt` trains it."""
        if self.horizon is None:
            return budget.adaptation(scored=budget.scored, burn_in=budget.burn_in, start="embedding")
        return budget.adaptation(scored=self.horizon, burn_in=0, start="observed")


def noisy_state(horizon: int) -> ControlObjective:
    """The noisy-state predictive objective over `horizon` steps.

    >>> noisy_state(5).settings(Budget()).start
    'observed'
    """
    steps = "one step" if horizon == 1 else f"{horizon} steps"
    return ControlObjective(f"noisy_state_{horizon}", f"Noisy state, {steps}", horizon)


OBJECTIVES: dict[str, ControlObjective] = {
    objective.name: objective
    for objective in (ControlObjective("kaffee", "KAFFEE"), *(noisy_state(horizon) for horizon in HORIZONS))
}


def get_objective(name: str) -> ControlObjective:
    """The objective of that name.

    >>> get_objective("noisy_state_20").horizon
    20
    """
    try:
        return OBJECTIVES[name]
    except KeyError:
        raise ConfigError(unknown("objective of the controls", name, OBJECTIVES)) from None
