"""Readings that arrive one by one: parts missing, pauses, outliers behind a gate, and a restart in between.

python examples/online_filtering.py
"""

import tempfile
from pathlib import Path

import numpy as np

import kaffee

NUM_READINGS = 400


def stream(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(readings, what they are readings of, which are outliers) of Lorenz-63."""
    data = kaffee.simulate(kaffee.get_system("lorenz63"), NUM_READINGS, seed=1, observation_noise=0.05)
    readings = data.observations.copy()
    outliers = rng.random(readings.shape) < 0.01
    readings[outliers] += 60.0
    readings[rng.random(readings.shape) < 0.3] = np.nan  # sensors take turns
    readings[200:210] = np.nan  # and once they all pause
    return readings, data.states, outliers & ~np.isnan(readings)


def main(num_pretraining: int = 20_000, num_adaptation: int = 1_000) -> kaffee.Reconstruction:
    """Fit to a recording, then filter a stream that nobody has seen."""
    data = kaffee.simulate(kaffee.get_system("lorenz63"), 4_000, seed=0, observation_noise=0.05)
    settings = {
        "pretraining.schedule.num_updates": num_pretraining,
        "adaptation.schedule.num_updates": num_adaptation,
        "adaptation.calibration": num_adaptation // 10,
    }  # all else follows from the data
    surrogate = kaffee.Surrogate(settings=settings).fit(data.observations, dt=data.dt)

    readings, states, outliers = stream(np.random.default_rng(0))
    online = surrogate.online(gate=0.99999)  # of 100 000 good readings one is lost
    beliefs = [online.step(None if np.isnan(reading).all() else reading) for reading in readings[:250]]
    with tempfile.TemporaryDirectory() as folder:  # the machine is switched off, and on again
        online.save(Path(folder) / "state")
        online = kaffee.OnlineFilter(surrogate.reconstruction_).restore(Path(folder) / "state")
    beliefs += [online.step(reading) for reading in readings[250:]]

    spread = surrogate.reconstruction_.scaler.scale
    error = np.abs(np.array([belief.mean for belief in beliefs]) - states) / spread
    rejected = np.array([belief.rejected for belief in beliefs])
    width = np.array([belief.std for belief in beliefs]) / spread
    caught, lost = (rejected & outliers).sum(), (rejected & ~outliers).sum()
    print(f"steps: {online.num_steps}; the gate, restored: {online.gate}")
    print(f"outliers rejected: {caught} of {outliers.sum()}; good readings rejected: {lost}")
    print(f"typical error of the belief, in units of the data's spread: {np.median(error):.3f} (of a reading: 0.034)")
    print(f"its own standard deviation: {np.median(width):.3f}, at the end of the pause {width[209].mean():.3f}")
    return surrogate.reconstruction_


if __name__ == "__main__":
    main()
