"""A real electrocardiogram: fit a surrogate with the defaults, forecast the next beats, let it run on its own.

The file holds an array (T, N), such as the delay-embedded ECG (10 000 x 5) that the authors of the AL-RNN published.

python examples/ecg.py [ecg.npy]
"""

import sys
from pathlib import Path

import numpy as np

import kaffee

DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data" / "ecg.npy"
HORIZON = 200


def main(
    path: str | Path = DEFAULT, num_pretraining: int | None = None, num_adaptation: int | None = None
) -> kaffee.Reconstruction:
    """Fit all but the last rows and compare forecast and free run with them."""
    series = kaffee.read_series(path)
    known, future = series.split(test_steps=1_000)
    settings = {}  # all settings follow from the data, unless someone is in a hurry
    if num_pretraining is not None and num_adaptation is not None:
        settings = {
            "pretraining.schedule.num_updates": num_pretraining,
            "adaptation.schedule.num_updates": num_adaptation,
            "adaptation.calibration": num_adaptation // 10,
        }
    surrogate = kaffee.Surrogate(settings=settings, progress=not settings).fit(known.recordings[0])

    forecast = surrogate.forecast(HORIZON)
    x = future.recordings[0][:HORIZON]
    spread = surrogate.reconstruction_.scaler.scale
    error = np.sqrt((((forecast.mean - x) / spread) ** 2).mean(axis=1))
    inside = ((forecast.quantile(0.05) <= x) & (x <= forecast.quantile(0.95))).mean()
    print(f"held-out log-likelihood per entry: {surrogate.score(future.recordings[0]):.3f} (higher is better)")
    near, far = error[:10].mean(), error.mean()
    print(f"error of the forecast, in units of the data's spread: {near:.2f} over 10 steps, {far:.2f} over {HORIZON}")
    print(f"entries inside the 90 % band: {100 * inside:.0f} %")

    free = surrogate.simulate(5_000, shell=False, start=known.recordings[0][-1], transient=0)
    peaks = [count_peaks(values) for values in (free[:, 0], known.recordings[0][:, 0])]
    print(f"beats per 1000 rows: {peaks[0]:.1f} of the surrogate on its own, {peaks[1]:.1f} of the heart")
    return surrogate.reconstruction_


def count_peaks(x: np.ndarray) -> float:
    """Upward crossings of two standard deviations, the R waves, per 1000 rows."""
    above = (x - np.nanmean(x)) / np.nanstd(x) > 2.0
    return 1000 * float((above[1:] & ~above[:-1]).sum()) / len(x)


if __name__ == "__main__":
    main(*sys.argv[1:2])
