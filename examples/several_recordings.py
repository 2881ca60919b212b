"""Several recordings of unequal length with gaps: fit them together, fill the gaps, and see how well.

python examples/several_recordings.py
"""

import numpy as np

import kaffee

LENGTHS = (3_000, 1_200, 2_000)


def record(num_steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A recording of Lorenz-63 and its truth; lost are single cells, a sensor for a while, and all of them at once."""
    data = kaffee.simulate(kaffee.get_system("lorenz63"), num_steps, seed=seed, observation_noise=0.05)
    rng = np.random.default_rng(seed)
    readings = np.where(rng.random(data.observations.shape) < 0.1, np.nan, data.observations)
    readings[num_steps // 3 : num_steps // 3 + 60, rng.integers(3)] = np.nan
    readings[num_steps // 2 : num_steps // 2 + 15] = np.nan
    return readings, data.states


def main(num_pretraining: int = 20_000, num_adaptation: int = 1_000) -> kaffee.Reconstruction:
    """Fit, impute, and compare with the truth and with what anyone would do: linear interpolation."""
    recordings, truths = zip(*(record(T, seed) for seed, T in enumerate(LENGTHS)), strict=True)
    settings = {
        "pretraining.schedule.num_updates": num_pretraining,
        "adaptation.schedule.num_updates": num_adaptation,
        "adaptation.calibration": num_adaptation // 10,
    }  # all else follows from the data
    surrogate = kaffee.Surrogate(settings=settings).fit(list(recordings), dt=0.02)
    filled, std = surrogate.impute(list(recordings), return_std=True)
    spread = surrogate.reconstruction_.scaler.scale
    print("recording  rows  missing  error of what was filled in  by interpolation  inside the 90 % band")
    for r, (x, truth) in enumerate(zip(recordings, truths, strict=True)):
        gap = np.isnan(x)
        rows = np.arange(len(x))
        lines = np.stack([np.interp(rows, rows[~g], column[~g]) for g, column in zip(gap.T, x.T, strict=True)], axis=1)
        ours, theirs = (np.sqrt(np.mean(((guess - truth) / spread)[gap] ** 2)) for guess in (filled[r], lines))
        # The band is one of readings; the truth, which has no noise, should lie inside at least as often.
        inside = (np.abs(filled[r] - truth) < 1.645 * std[r])[gap].mean()
        print(f"{r:9d}  {len(x):4d}  {gap.sum():7d}  {ours:27.3f}  {theirs:16.3f}  {100 * inside:18.0f} %")
    print("Errors are in units of the data's spread, so that 1 is as good as the mean.")
    return surrogate.reconstruction_


if __name__ == "__main__":
    main()
