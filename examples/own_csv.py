"""A CSV file with a time column: read it, fit a surrogate, forecast, and draw the forecast if a path is given.

python examples/own_csv.py [forecast.png]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import kaffee

HORIZON = 200


def write_csv(path: Path, num_steps: int = 4_200) -> Path:
    """What a lab might have: a time in seconds and three sensors; an empty cell would be a missing value."""
    data = kaffee.simulate(kaffee.get_system("lorenz63"), num_steps, seed=0, observation_noise=0.05)
    rows = np.column_stack([data.times, data.observations])
    np.savetxt(path, rows, fmt="%.4f", delimiter=",", header="time [s],a,b,c", comments="")
    return path


def draw(known: kaffee.Series, truth: kaffee.Series, forecast: kaffee.Series, path: str) -> None:
    """The end of what was known, the forecast with its 90 % band, and what happened."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(known.num_coordinates, sharex=True, figsize=(7, 5), layout="constrained")
    for n, (axis, name) in enumerate(zip(axes, known.columns, strict=True)):
        mean, low, high = forecast.select([f"{name}_mean", f"{name}_q05", f"{name}_q95"]).recordings[0].T
        axis.plot(known.times[0][-HORIZON:], known.recordings[0][-HORIZON:, n], "k.", markersize=2)
        axis.fill_between(forecast.times[0], low, high, alpha=0.3)
        axis.plot(forecast.times[0], mean)
        axis.plot(truth.times[0], truth.recordings[0][:, n], "k", linewidth=0.8)
        axis.set_ylabel(name)
    axes[-1].set_xlabel("time (s)")
    figure.savefig(path)
    plt.close(figure)


def main(
    num_pretraining: int = 20_000, num_adaptation: int = 1_000, figure: str | None = None
) -> kaffee.Reconstruction:
    """Fit all but the last rows of the file and forecast those."""
    with tempfile.TemporaryDirectory() as folder:
        series = kaffee.read_series(write_csv(Path(folder) / "lab.csv"))
    print(series)
    known, truth = series.split(test_steps=HORIZON)
    settings = {
        "pretraining.schedule.num_updates": num_pretraining,
        "adaptation.schedule.num_updates": num_adaptation,
        "adaptation.calibration": num_adaptation // 10,
    }  # all else follows from the data
    surrogate = kaffee.Surrogate(settings=settings).fit(known)
    forecast = surrogate.forecast(HORIZON)  # a Series, as a Series was fitted: columns a_mean, a_std, a_q05, ...
    x = truth.recordings[0]
    mean, low, high = (
        forecast.select([f"{name}_{kind}" for name in known.columns]).recordings[0] for kind in ("mean", "q05", "q95")
    )
    error = np.sqrt(np.mean(((x - mean) / surrogate.reconstruction_.scaler.scale) ** 2, axis=1))
    inside = ((low <= x) & (x <= high)).mean()
    near, far = error[:10].mean(), error[-50:].mean()
    print(f"error of the mean, in units of the data's spread: {near:.2f} over 10 steps, {far:.2f} at the end")
    print(f"readings inside the 90 % band: {100 * inside:.0f} %")
    print(f"held-out log-likelihood per reading: {surrogate.score(truth):.3f} (higher is better)")
    if figure is not None:
        draw(known, truth, forecast, figure)
    return surrogate.reconstruction_


if __name__ == "__main__":
    main(figure=sys.argv[1] if len(sys.argv) > 1 else None)
