"""Your own context-conditioned model instead of DynaMix: two methods are all it needs.

This one "learns in context" by ridge regression: it reads a recording and becomes a cubic map. kaffee then gives it a
covariance that its own Jacobians carry, by some updates on that recording.

python examples/own_foundation_model.py
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

import kaffee
from kaffee.foundation import CALIBRATED
from kaffee.model.maps import Polynomial


@dataclasses.dataclass(frozen=True)
class RegressionModel:
    """A context model: `in_context` makes a core of a standardised recording, `initial_state` a state of a row."""

    degree: int = 3
    penalty: float = 1e-2

    def in_context(self, context):
        x = np.asarray(context, np.float64)
        N = x.shape[1]
        empty = Polynomial.skeleton(latent_dim=N, degree=self.degree)
        features = np.stack([np.asarray(empty.features(jnp.asarray(row))) for row in x[:-1]])
        design = np.hstack([x[:-1], features, np.ones((len(features), 1))])
        gram = design.T @ design + self.penalty * len(design) * np.eye(design.shape[1])
        # What is regularised is the change of the state: without data the map stays where it is.
        found = np.linalg.solve(gram, design.T @ (x[1:] - x[:-1])).T
        A, W, h = np.split(found, [N, design.shape[1] - 1], axis=1)
        parts = (np.eye(N) + A, W, h[:, 0])
        return Polynomial(*(jnp.asarray(part, jnp.float32) for part in parts), degree=self.degree)

    def initial_state(self, x):
        return x


def main(num_steps: int = 2_000, num_updates: int = 50) -> kaffee.Reconstruction:
    """Adapt it on Lorenz-63 and look at its one-step predictions of what follows."""
    data = kaffee.simulate(kaffee.get_system("lorenz63"), num_steps + 1_000, seed=0, observation_noise=0.1)
    context, future = np.split(data.observations, [num_steps])
    schedule = dataclasses.replace(CALIBRATED.schedule, num_updates=num_updates)
    surrogate = kaffee.adapt_foundation_model(
        RegressionModel(),
        context,
        dt=data.dt,
        lyapunov_exponent=0.9,
        settings=dataclasses.replace(CALIBRATED, schedule=schedule),
    )
    check = kaffee.check(surrogate, kaffee.Series.from_arrays(future))
    print(f"one-step NLL {check.nll:.3f}, 90 % bands cover {100 * check.coverage_90:.1f} %")
    return surrogate


if __name__ == "__main__":
    main()
