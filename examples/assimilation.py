"""Reproduce a published score of data assimilation: Lorenz-96 with 40 sites, all read at every step with noise of 1.

The listed time-mean RMSE of the analysis is 0.18 for an ensemble transform Kalman filter of 24 members
(`python -m benchmarks.assimilation` has five cases, five seeds each).

python examples/assimilation.py
"""

import numpy as np

import kaffee


def main(cycles: int = 1000, spin_up: int = 400, seed: int = 0) -> "kaffee.inference.data_assimilation.Assimilation":
    """Run a twin experiment with the true flow as the model, and print how it went."""
    system = kaffee.get_system("lorenz96", N=40, dt=0.05)
    truth = kaffee.simulate(system, cycles + 1, seed=seed).states
    readings = truth[1:] + np.random.default_rng(seed).standard_normal((cycles, 40))
    by = {"filter": "etkf:24,inflation=1.013", "keep_members": True}
    run = kaffee.assimilate(system, readings, start=truth[0], start_std=0.03, observation_std=1.0, **by)
    scores = run.compare(truth[1:], skip=spin_up)
    print(f"rmse {scores.rmse.mean():.3f}, spread {scores.spread.mean():.3f} (published: 0.18)")
    print(f"rank histogram {np.round(scores.rank_histogram, 2)} (flat: 1)")
    return run


if __name__ == "__main__":
    main()
