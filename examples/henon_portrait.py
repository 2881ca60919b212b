"""What a map does in the long run: fixed points, cycles, exponents and basins of the Henon map, as of any model.

python examples/henon_portrait.py
"""

import jax.numpy as jnp

import kaffee


def step(z: jnp.ndarray) -> jnp.ndarray:
    """Take one step of the Henon map with its classic parameters."""
    return jnp.stack([1.0 - 1.4 * z[0] ** 2 + z[1], 0.3 * z[0]])


def main(num_steps: int = 10_000, grid: int = 40) -> "kaffee.theory.Analysis":
    """Analyse the map, and print what was found; a fitted surrogate or the folder of a run goes in the same place."""
    shell = kaffee.Shell.from_std(jnp.full(2, 0.1), jnp.full(2, 0.1))
    model = kaffee.StateSpaceModel(kaffee.as_core(step, 2), shell, kaffee.Projection(2, 2), jnp.eye(2))
    analysis = kaffee.analyse(model, max_order=4, num_steps=num_steps, grid=grid)
    for name, cycle in zip(analysis.names, analysis.cycles, strict=True):
        print(f"{name}: first state {cycle.states[0].round(4)}, {cycle.stability}, |eigenvalue| {cycle.radius:.3f}")
    spectrum = analysis.spectrum
    if spectrum is not None:
        print(f"exponents {spectrum.exponents.round(3)} ± {spectrum.standard_errors.round(3)}")
        print(f"Kaplan-Yorke dimension {spectrum.kaplan_yorke_dimension:.3f}")
    if analysis.basins is not None:
        print({name: round(share, 3) for name, share in analysis.basins.shares().items()})
    return analysis


if __name__ == "__main__":
    main()
