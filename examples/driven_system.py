"""A room with a heater: fit with known inputs, then compare two plans for the coming night.

python examples/driven_system.py
"""

import numpy as np

import kaffee

STEP = 0.25  # hours between readings


def weather(num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Outdoor temperature: days, and slow changes of the weather."""
    days = 5.0 - 4.0 * np.cos(2.0 * np.pi * STEP * np.arange(num_rows) / 24.0)
    return days + np.cumsum(0.15 * rng.standard_normal(num_rows))


def live(heater: np.ndarray, outside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Temperatures of the air and of the walls; the radiator gives less to air that is warm already."""
    air, walls, rows = 18.0, 17.0, []
    for power, cold in zip(heater, outside, strict=True):
        flow = 2.5 * power * np.tanh((40.0 - air) / 15.0)
        air += STEP * (flow + 0.8 * (walls - air) + 0.15 * (cold - air)) + 0.05 * rng.standard_normal()
        walls += STEP * (0.1 * (air - walls) + 0.02 * (cold - walls))
        rows.append([air, walls])
    return np.array(rows)


def main(num_pretraining: int = 20_000, num_adaptation: int = 1_000) -> kaffee.Reconstruction:
    """Fit to three weeks of a room, and forecast a night that is heated, and one that is not."""
    rng = np.random.default_rng(0)
    num_rows = 2_000
    # The input of a row is what acted on the way to it.
    heater = np.repeat(rng.integers(0, 3, num_rows // 8), 8) / 2.0
    outside = weather(num_rows + 48, rng)
    air = live(heater, outside[:num_rows], rng)[:, :1] + 0.1 * rng.standard_normal((num_rows, 1))

    settings = {
        "pretraining.schedule.num_updates": num_pretraining,
        "adaptation.schedule.num_updates": num_adaptation,
        "adaptation.calibration": num_adaptation // 10,
    }  # all else follows from the data
    inputs = np.column_stack([heater, outside[:num_rows]])
    surrogate = kaffee.Surrogate(settings=settings).fit(air, inputs=inputs, dt=STEP)
    print(surrogate.fit_.fitted.reconstruction.provenance["rungs"]["chosen"], "model of the air, driven by 2 inputs")

    night = outside[num_rows:]
    for name, power in (("heater off", 0.0), ("heater on", 1.0)):
        plan = np.column_stack([np.full(len(night), power), night])
        forecast = surrogate.forecast(len(night), inputs=plan)
        low, high = (forecast.quantile(level)[-1, 0] for level in (0.05, 0.95))
        print(f"{name}: {forecast.mean[-1, 0]:.1f} degrees after 12 hours ({low:.1f} to {high:.1f})")

    online = surrogate.online()
    for reading, row in zip(air[:5], inputs[:5], strict=True):
        belief = online.step(reading, inputs=row)
    print(f"online, row 5: {belief.mean[0]:.1f} ± {belief.std[0]:.1f}")
    return surrogate.reconstruction_


if __name__ == "__main__":
    main()
