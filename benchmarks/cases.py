"""The cases of the development suite (`benchmarks.suite`): real recordings, data sets of packages, simulations.

A case is a function of a seed that returns a series. Recordings are the same for every seed; simulations are drawn
again. What is not there (files beside the repository, packages of the `bench` extra) raises `Unavailable`.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.signal import lfilter

from kaffee.data.reading import read_series
from kaffee.data.series import Series
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.systems.system import System

SHARED = Path(__file__).parent.parent.parent / "shared" / "data"
MACRO = ("realgdp", "realcons", "realinv", "cpi", "m1")


class Unavailable(Exception):
    """A case whose data are not on this machine; the message says what is missing."""


def _file(path: str, _: int, **options: Any) -> Series:
    """Read a recording beside the repository."""
    if not (SHARED / path).exists():
        raise Unavailable(f"../shared/data/{path} is not there")
    return read_series([str(SHARED / path)], **options)


def _statsmodels(name: str, take: Callable[[Any], np.ndarray], _: int) -> Series:
    try:
        module = importlib.import_module(f"statsmodels.datasets.{name}")
    except ImportError:
        raise Unavailable("statsmodels is not installed (the bench extra)") from None
    return Series.from_arrays(take(module.load_pandas().data), name=name)


def _macro(data: Any) -> np.ndarray:
    """Growth rates of what grows, beside rates that do not."""
    growth = 100.0 * np.diff(np.log(data[list(MACRO)].to_numpy(float)), axis=0)
    return np.hstack([growth, data[["tbilrate", "unemp"]].to_numpy(float)[1:]])


def _aeon(name: str, _: int) -> Series:
    """Read the recordings that ship with aeon, training and test part; the package itself is not imported."""
    found = importlib.util.find_spec("aeon")
    if found is None or not found.submodule_search_locations:
        raise Unavailable("aeon is not installed (pip install --no-deps aeon)")
    folder = Path(found.submodule_search_locations[0]) / "datasets" / "data" / name
    recordings = []
    for part in ("TRAIN", "TEST"):
        path = folder / f"{name}_{part}.ts"
        if not path.exists():
            raise Unavailable(f"this version of aeon does not bring {path.name}")
        lines = path.read_text(encoding="utf-8").split("@data")[1].split("\n")
        for line in filter(None, map(str.strip, lines)):
            # Channels and, last, the class are separated by colons.
            recordings.append(np.array([channel.split(",") for channel in line.split(":")[:-1]], float).T)
    return Series.from_arrays(recordings, name=name)


def _roessler(z: Any) -> Any:
    """Return -y - z;  x + 0.2 y;  0.2 + z (x - 5.7)."""
    x, y, z = z
    return jnp.stack([-y - z, x + 0.2 * y, 0.2 + z * (x - 5.7)])


def _hyper_roessler(z: Any) -> Any:
    """Return -y - z;  x + 0.25 y + w;  3 + x z;  0.05 w - 0.5 z: two positive exponents (Roessler 1979)."""
    x, y, z, w = z
    return jnp.stack([-y - z, x + 0.25 * y + w, 3.0 + x * z, 0.05 * w - 0.5 * z])


# Beside those of the catalogue.
OWN: dict[str, Callable[[], System]] = {
    "roessler": lambda: System(_roessler, [1.0, 1.0, 0.0], 0.1, burn_in=2000),
    "hyper_roessler": lambda: System(_hyper_roessler, [-10.0, -6.0, 0.0, 10.1], 0.02, burn_in=10_000),
    "lorenz96": lambda: get_system("lorenz96", N=10),
}


# Steps of integration for each row, for systems that need small ones.
EVERY = {"hyper_roessler": 5}


def _system(name: str, rows: int, percent: int, seed: int) -> Series:
    system, every = OWN[name]() if name in OWN else get_system(name), EVERY.get(name, 1)
    # Another stretch of the attractor for every seed.
    burn_in = system.burn_in + 5000 * seed
    found = simulate(system, rows * every, seed=seed, observation_noise=percent / 100, burn_in=burn_in)
    return Series.from_arrays(found.observations[::every], times=found.times[::every], name=name)


def mackey_glass(rows: int, percent: int, seed: int) -> Series:
    """dx/dt = 0.2 x(t - 17) / (1 + x(t - 17)^10) - 0.1 x by Runge-Kutta, every third unit of time; scalar."""
    dt, delay, every = 0.1, 170, 30
    rng = np.random.default_rng(seed)
    steps = delay + 20_000 + rows * every
    x = np.empty(steps + 1)
    x[: delay + 1] = 1.2 + 0.1 * rng.standard_normal(delay + 1).cumsum() / delay**0.5

    def slope(now: float, past: float) -> float:
        return 0.2 * past / (1.0 + past**10) - 0.1 * now

    for t in range(delay, steps):
        past, later = x[t - delay], x[t - delay + 1]
        k1 = slope(x[t], past)
        k2 = slope(x[t] + 0.5 * dt * k1, 0.5 * (past + later))
        k3 = slope(x[t] + 0.5 * dt * k2, 0.5 * (past + later))
        k4 = slope(x[t] + dt * k3, later)
        x[t + 1] = x[t] + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    signal = x[-rows * every :: every]
    return Series.from_arrays(signal + percent / 100 * signal.std() * rng.standard_normal(rows), name="mackey_glass")


def _laser(seed: int) -> Series:
    """Square of the first coordinate of Lorenz-63, the intensity of its laser, in 8 bits with one bit of noise."""
    system = get_system("lorenz63", dt=0.04)
    found = simulate(system, 5000, seed=seed, burn_in=system.burn_in + 5000 * seed)
    intensity = found.states[:, :1] ** 2
    noise = np.random.default_rng(seed).standard_normal(intensity.shape)
    return Series.from_arrays(np.clip(np.round(240.0 * intensity / intensity.max() + noise), 0, 255), name="laser_like")


def _oscillations(rng: np.random.Generator, rows: int, periods: Any, damping: Any) -> np.ndarray:
    """Noise-driven oscillators with periods and damping per step, each with variance 1: (rows, oscillators)."""
    parts = []
    for period, r in np.broadcast(periods, damping):
        # A stationary AR(2) after the first rows are gone.
        poles = [1.0, -2.0 * r * np.cos(2.0 * np.pi / period), r**2]
        x = lfilter([1.0], poles, rng.standard_normal(rows + 2000))[2000:]
        parts.append(x / x.std())
    return np.stack(parts, axis=1)


def _fmri(seed: int) -> Series:
    """Three latent oscillations mixed into 20 channels, and noise of the size of half the signal."""
    rng = np.random.default_rng(seed)
    latent = _oscillations(rng, 300, [11.0, 17.0, 29.0], [0.97, 0.96, 0.97])
    signal = latent @ rng.standard_normal((3, 20))
    return Series.from_arrays(signal + 0.5 * signal.std() * rng.standard_normal(signal.shape), name="fmri_like")


def _seasonal(seed: int) -> Series:
    """Fifty years of months: a season with two harmonics, and an AR(1) around it."""
    rng = np.random.default_rng(seed)
    month = 2.0 * np.pi * np.arange(600) / 12.0
    season = 2.0 * np.sin(month + 0.4) + 0.7 * np.cos(2.0 * month)
    return Series.from_arrays(season + lfilter([0.5], [1.0, -0.8], rng.standard_normal(700))[100:], name="seasonal_600")


def _eeg64(seed: int) -> Series:
    """Mix 20 narrow-band oscillators, smooth noise in the channels: a VAR(6) predicts to thousandths of a std."""
    rng = np.random.default_rng(seed)

    def smooth(values: np.ndarray, pole: float) -> np.ndarray:
        filtered = lfilter([(1.0 - pole) ** 2], [1.0, -2.0 * pole, pole**2], values, axis=0)
        return filtered / filtered.std()

    sources = smooth(_oscillations(rng, 10_000, rng.uniform(40.0, 200.0, 20), 0.995), 0.8)
    channels = sources @ rng.standard_normal((20, 64)) / 20**0.5
    channels += 0.02 * smooth(rng.standard_normal(channels.shape), 0.8)
    return Series.from_arrays(channels, name="eeg64_like")


CASES: dict[str, Callable[[int], Series]] = {
    # Short ones first.
    "nile": partial(_statsmodels, "nile", lambda data: data["volume"].to_numpy(float)),
    "macrodata": partial(_statsmodels, "macrodata", _macro),
    "sunspots": partial(_statsmodels, "sunspots", lambda data: data["SUNACTIVITY"].to_numpy(float)),
    "elnino": partial(_statsmodels, "elnino", lambda data: data.to_numpy(float)[:, 1:].ravel()),
    "fmri_like": _fmri,
    "seasonal_600": _seasonal,
    "lorenz63_300_5": partial(_system, "lorenz63", 300, 5),
    "van_der_pol_300_20": partial(_system, "van_der_pol", 300, 20),
    "mackey_glass_300_20": partial(mackey_glass, 300, 20),
    "roessler_1000_5": partial(_system, "roessler", 1000, 5),
    "lorenz63_1000_20": partial(_system, "lorenz63", 1000, 20),
    "chua_1000_50": partial(_system, "chua", 1000, 50),
    "co2": partial(_statsmodels, "co2", lambda data: data["co2"].to_numpy(float)),
    "respiration": partial(_file, "recordings/respiration.csv"),
    "accelerometer": partial(_file, "recordings/accelerometer.csv"),
    "basic_motions": partial(_aeon, "BasicMotions"),
    "japanese_vowels": partial(_aeon, "JapaneseVowels"),
    "laser_like": _laser,
    "mackey_glass_5000_20": partial(mackey_glass, 5000, 20),
    "hyper_roessler_5000_20": partial(_system, "hyper_roessler", 5000, 20),
    "lorenz96_5000_20": partial(_system, "lorenz96", 5000, 20),
    "lorenz63_5000_50": partial(_system, "lorenz63", 5000, 50),
    "ecg": partial(_file, "ecg.npy"),
    "eeg_rest": partial(_file, "recordings/eeg_rest.csv"),
    "heart_two_leads": partial(_file, "recordings/heart_two_leads.csv", time_column=False, columns=["MLII", "V5"]),
    "chua_25000_20": partial(_system, "chua", 25_000, 20),
    "lorenz63_25000_5": partial(_system, "lorenz63", 25_000, 5),
    "eeg64_like": _eeg64,
}
