"""How an evaluation is done, as data that stands beside its results."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from kaffee.errors import ConfigError


@dataclass(frozen=True)
class Protocol:
    """The protocol of appendix C.4; the defaults are the paper's for Lorenz-96.

    Attributes:
        horizon: Forecast steps H = floor(0.25 / (lambda_1 dt)).
        spectrum_horizons: Forecast steps of the skill spectrum: 0.13, 0.27, 0.60, 1.00 Lyapunov times (D.1).
        num_members: Of an ensemble.
        num_starts: Forecast starts of the NLL, evenly spaced over `forecast_span` steps of the test data.
        num_crps_starts: Of the CRPS.
        num_extra_starts: Of the additional columns from embedded observations, where 100 starts are too few (see
            docs/decisions.md); filtered beliefs start at `num_starts` of them.
        warm_up: Filter steps before G_tan and before a forecast from a filtered belief.
        grounding_steps: Steps pooled in G_tan.
        gates: Whose slopes transport the covariance that G_tan sees.
        rollout_steps, transient: Of free runs.
        num_exponents: Lyapunov exponents computed of a surrogate, at most all it has.
        mixture_samples: Monte Carlo draws of D_stsp.
        num_divergence_starts: Free runs that are only watched for divergence.
    """

    horizon: int = 4
    spectrum_horizons: tuple[int, ...] = (2, 4, 9, 15)
    num_members: int = 200
    num_starts: int = 100
    num_crps_starts: int = 10
    num_extra_starts: int = 500
    forecast_span: int = 20_000
    warm_up: int = 200
    grounding_steps: int = 4_000
    gates: Literal["hard", "surrogate"] = "hard"
    rollout_steps: int = 100_000
    transient: int = 1_000
    num_exponents: int = 20
    mixture_samples: int = 1_000
    num_divergence_starts: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, int) and name != "seed" and value < 1:
                raise ConfigError(f"protocol.{name} must be at least 1, not {value}.")
        if any(h < 1 for h in self.spectrum_horizons):
            raise ConfigError(f"protocol.spectrum_horizons must all be at least 1, not {self.spectrum_horizons}.")
        if self.forecast_span <= self.warm_up:
            raise ConfigError(
                f"protocol.forecast_span must exceed warm_up: {self.forecast_span} steps leave no starts after "
                f"{self.warm_up}."
            )
        if self.num_extra_starts < max(self.num_starts, self.num_crps_starts):
            raise ConfigError("protocol.num_extra_starts must not be smaller than the other numbers of starts.")

    @property
    def all_horizons(self) -> tuple[int, ...]:
        """Every horizon at which forecasts are scored, in ascending order."""
        return tuple(sorted({self.horizon, *self.spectrum_horizons}))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)
