"""Bring your own transition map: an Equinox module becomes a core, KAFFEE does the rest.

python examples/own_core.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp

import kaffee


class SecondOrder(eqx.Module):
    """What we know: x changes by its velocity. What we do not: the force, a small network of both."""

    rate: jax.Array
    force: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        self.rate = jnp.array(0.1)
        self.force = eqx.nn.MLP(2, 1, 32, 1, activation=jnp.tanh, key=key)

    def __call__(self, z: jax.Array) -> jax.Array:
        x, v = z[:1], z[1:]
        return jnp.concatenate([x + self.rate * v, v + 0.1 * self.force(z)])


def main(num_pretraining: int = 5_000, num_adaptation: int = 100) -> kaffee.Reconstruction:
    """Fit a noisy Van der Pol oscillator with the module above."""
    system = kaffee.get_system("van_der_pol")
    data = kaffee.simulate(system, 5_000, seed=0, process_noise=0.035, observation_noise=0.1)
    series = kaffee.Series.from_arrays(data.observations, columns=["x", "v"], times=data.times)
    train, test = series.split(0.8)
    scaler = kaffee.Scaler.fit(train)
    standard = train.standardised(scaler)

    core = kaffee.as_core(SecondOrder(jax.random.key(0)), latent_dim=2)
    model = kaffee.StateSpaceModel.create(core, num_observed=2, key=jax.random.key(1))
    forcing = kaffee.Forcing(interval=10)
    schedule = kaffee.Schedule(num_updates=num_pretraining, report_every=500)
    prior = kaffee.pretrain(model, standard, kaffee.Pretraining(forcing=forcing, schedule=schedule), seed=0)
    start = kaffee.initialise_shell(prior.model, standard, forcing=forcing)
    schedule = kaffee.Schedule(num_updates=num_adaptation, report_every=10)
    adapted = kaffee.adapt(start, standard, kaffee.KAFFEE, kaffee.Adaptation(schedule=schedule), seed=0)

    result = kaffee.Reconstruction(adapted.model, scaler, series.columns, system.dt, "kaffee")
    print(kaffee.check(result, test, reference=data.states))
    return result


if __name__ == "__main__":
    main()
