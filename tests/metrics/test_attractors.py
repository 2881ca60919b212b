"""Runs that are trapped: far from the data, or at rest where the data never are."""

import numpy as np
import pytest

from kaffee.metrics.attractors import AttractorDistances, Extent, measure_distances
from kaffee.metrics.geometry import d_stsp_histogram, d_stsp_kernel, d_stsp_mixture
from kaffee.metrics.spectra import d_hellinger
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate

SHORT = 240


def noise(*shape, scale=0.1):
    return scale * np.random.default_rng(0).standard_normal(shape)


def judged(data, runs, length=SHORT):
    """What `kaffee.certification` does: runs against all that the data cover."""
    return Extent.measure([data[:-length], data[-length:]], length).find_trapped(np.array(runs)).tolist()


@pytest.fixture(scope="module")
def short_recording():
    """A few turns around each wing: its fifths are nats away from each other."""
    found = simulate(get_system("lorenz63"), 1200 + 1000, observation_noise=0.1)
    return found.observations[:1200], found.states[1200:]


def test_a_fixed_point_is_trapped_however_far_pieces_are_from_each_other(short_recording):
    data, clean = short_recording
    flat = [np.broadcast_to(point, clean.shape) for point in (data.mean(axis=0), data[0], data[1000])]
    small_cycle = data.mean(axis=0) + 0.05 * (clean - clean.mean(axis=0))
    found = judged(data, [*flat, small_cycle, clean, 0.5 * clean + 0.5 * data.mean(axis=0)])
    assert found == [True, True, True, True, False, False]


def test_far_from_the_data_is_trapped_however_much_a_run_varies(short_recording):
    extent = Extent.measure([short_recording[0]], SHORT)
    moving = short_recording[1]
    away = moving + 5.0 * moving.std(axis=0)
    assert extent.find_trapped(np.stack([moving, moving[::-1], away])).tolist() == [False, False, True]


@pytest.mark.parametrize("scale", [0.0, 0.1, 0.3], ids=["exact", "noisy", "very noisy"])
def test_data_that_rest_themselves_excuse_a_run_at_rest(scale):
    """Bursts after rests of two pieces, as of an excitable system; the readings of a rest may be noisy."""
    time = np.arange(3000)
    burst = np.where(time % 800 < 500, 0.0, 2.0 * np.sin(0.3 * time))
    data = 0.1 + np.stack([burst, np.roll(burst, 5)], axis=1) + noise(3000, 2, scale=scale)
    assert judged(data, [np.zeros((1000, 2))]) == [False]


def test_data_that_rest_for_less_than_a_piece_do_not_excuse_it():
    time = np.arange(3000)
    burst = np.where(time % 200 < 100, 0.0, 2.0 * np.sin(0.3 * time))
    assert judged(np.stack([burst, np.roll(burst, 5)], axis=1), [np.zeros((1000, 2))]) == [True]


def test_one_coordinate_that_rests_excuses_nothing():
    """A switch that hardly ever moves beside a coordinate that does all the time."""
    time = np.arange(3000)
    data = np.stack([np.sin(0.3 * time), np.where(time == 2900, 1.0, 0.0)], axis=1)
    still = np.zeros((1000, 2))
    turning = np.stack([np.sin(0.3 * time[:1000]), np.zeros(1000)], axis=1)
    assert judged(data, [still, turning]) == [True, False]


def test_a_cycle_and_delay_coordinates_are_no_rest():
    time = np.arange(1200)
    wave = np.sin(0.02 * time)
    data = np.stack([np.roll(wave, lag) for lag in (0, 10, 20)], axis=1) + noise(1200, 3, scale=0.05)
    cycle = np.stack([np.roll(0.5 * np.sin(0.02 * np.arange(1000)), lag) for lag in (0, 10, 20)], axis=1)
    assert judged(data, [cycle, np.zeros((1000, 3))]) == [False, True]


def test_rows_that_do_not_follow_from_each_other_are_no_rest():
    """A chaotic map looks like noise, but its readings are as far apart in every piece."""
    x = [0.3]
    for _ in range(1999):
        x.append(3.99 * x[-1] * (1 - x[-1]))
    data = np.array(x)[:, None]
    assert judged(data, [np.full((1000, 1), 0.75), data[-1000:]]) == [True, False]


def test_data_shorter_than_a_piece_are_taken_as_a_whole():
    extent = Extent.measure([np.sin(np.arange(100.0))[:, None]], 240)
    assert extent.find_trapped(np.zeros((1, 240, 1))).tolist() == [True]
    assert extent.find_trapped(np.zeros((0, 240, 1))).tolist() == []


def test_many_short_recordings_may_each_be_elsewhere():
    t, rng = np.arange(80.0), np.random.default_rng(0)
    centres = rng.standard_normal((30, 2)) * 5.0
    recordings = [c + np.stack([np.sin(0.3 * t), np.cos(0.3 * t)], axis=1) for c in centres]
    extent = Extent.measure(recordings, 1000)
    long = np.arange(1000.0)
    like_one = centres[3] + np.stack([np.sin(0.3 * long), np.cos(0.3 * long)], axis=1)
    far, at_rest = like_one + 40.0, np.broadcast_to(centres[3], (1000, 2))
    assert extent.find_trapped(np.array([like_one, far, at_rest])).tolist() == [False, True, True]


@pytest.mark.parametrize(("dim", "estimator"), [(3, "histogram"), (4, "mixture")])
def test_the_estimator_is_chosen_by_the_number_of_coordinates_and_named(dim, estimator):
    x, y = (np.random.default_rng(seed).standard_normal((300, dim)) for seed in (0, 1))
    direct = {"histogram": d_stsp_histogram, "mixture": d_stsp_mixture}[estimator](x, y)
    assert measure_distances(x, [y]) == [AttractorDistances(direct, d_hellinger(x, y), estimator)]
    (by_kernel,) = measure_distances(x, [y], estimator="kernel", spectra=False)
    assert (by_kernel.d_stsp, by_kernel.estimator) == (d_stsp_kernel(x, [y])[0], "kernel")
    assert np.isnan(by_kernel.d_h)
    assert measure_distances(x, []) == []
