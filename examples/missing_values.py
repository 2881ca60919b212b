"""Several recordings of unequal length with missing values, from files to a filtered series.

python examples/missing_values.py
"""

import tempfile
from pathlib import Path

import numpy as np

import kaffee


def write_recordings(folder: Path) -> list[Path]:
    """Three recordings of Lorenz-63 with 20 % of the entries missing."""
    rng = np.random.default_rng(0)
    paths = []
    for i, num_steps in enumerate((4_000, 2_500, 3_000)):
        data = kaffee.simulate(kaffee.get_system("lorenz63"), num_steps, seed=i, observation_noise=0.1)
        gappy = np.where(rng.random(data.observations.shape) < 0.2, np.nan, data.observations)
        path = folder / f"recording{i}.csv"
        kaffee.write_series(kaffee.Series.from_arrays(gappy, times=data.times), path)
        paths.append(path)
    return paths


def main(num_pretraining: int = 20_000, num_adaptation: int = 100) -> kaffee.Reconstruction:
    """Fit all recordings together."""
    with tempfile.TemporaryDirectory() as folder:
        series = kaffee.read_series(write_recordings(Path(folder)))
    print(series)
    settings = kaffee.override(
        kaffee.FitSettings(),
        [
            "pretraining.forcing.interval=10",
            f"pretraining.schedule.num_updates={num_pretraining}",
            f"adaptation.schedule.num_updates={num_adaptation}",
        ],
    )
    result = kaffee.fit(series, settings)
    print(kaffee.check(result.fitted.reconstruction, result.test))
    return result.fitted.reconstruction


if __name__ == "__main__":
    main()
