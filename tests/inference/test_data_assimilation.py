"""Assimilation with a known flow: known answers, flows of time, nonlinear observations, and errors."""

import jax.numpy as jnp
import numpy as np
import pytest

import kaffee
from kaffee.errors import ConfigError, DataError
from kaffee.inference.data_assimilation import assimilate


def test_a_random_walk_is_filtered_as_by_hand():
    """P = P + Q, K = P / (P + R): the scalar Kalman filter, with a gap in the middle."""
    x = np.random.default_rng(0).normal(size=(30, 1)).cumsum(axis=0)
    x[10:15] = np.nan
    mean, variance, expected = 0.0, 4.0, []
    for reading in x[:, 0]:
        variance += 0.25
        if np.isfinite(reading):
            gain = variance / (variance + 1.0)
            mean, variance = mean + gain * (reading - mean), (1.0 - gain) * variance
        expected.append((mean, np.sqrt(variance)))
    run = assimilate(lambda z: z, x, start=[0.0], start_std=2.0, observation_std=1.0, process_std=0.5)
    np.testing.assert_allclose(np.stack([run.mean[:, 0], run.std[:, 0]], axis=1), expected, rtol=1e-4, atol=1e-5)
    assert np.all(run.nll[10:15] == 0.0)
    assert run.covariances is None


def test_a_flow_may_depend_on_time():
    """z' = z + t, from t = 3: known to the end if the start is."""
    run = assimilate(
        lambda z, t: z + t, np.full((4, 1), np.nan), start=[1.0], start_std=0.0, observation_std=1.0, time=3.0, dt=1.0
    )
    np.testing.assert_allclose(run.mean[:, 0], [4.0, 8.0, 13.0, 19.0], rtol=1e-5)
    assert run.mean.shape == (4, 1)


@pytest.mark.parametrize("name", ["ekf", "iekf:4", "enkf:200", "etkf:200", "particle:2000"])
def test_a_nonlinear_observation_is_inverted(name):
    """A constant seen through exp(z): all filters that can find it."""
    rng = np.random.default_rng(1)
    x = np.exp(0.7) + 0.1 * rng.normal(size=(60, 1))
    run = assimilate(
        lambda z: z, x, start=[0.4], start_std=0.3, observation_std=0.1, process_std=0.01, observed=jnp.exp, filter=name
    )
    assert run.mean[-1, 0] == pytest.approx(0.7, abs=0.06)


def test_an_ensemble_keeps_members_and_ranks():
    system = kaffee.get_system("lorenz63")
    data = kaffee.simulate(system, 120, observation_noise=0.1, seed=0)
    options = {"start": data.observations[0], "start_std": 2.0, "observation_std": 1.0, "filter": "etkf:20"}
    run = assimilate(system, data.observations, keep_members=True, keep_covariances=True, **options)
    assert run.members.shape == (120, 20, 3)
    ranks = run.ranks(data.states)
    assert ranks.min() >= 0
    assert ranks.max() <= 20
    np.testing.assert_allclose(np.sqrt(np.diagonal(run.covariances, axis1=1, axis2=2)), run.std, rtol=1e-3, atol=1e-4)
    assert run.rmse(data.states)[40:].mean() < 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"readings": np.zeros(3)}, r"\(T, N\)"),
        ({"start": [np.nan]}, "finite"),
        ({"observation_std": 0.0}, "positive"),
        ({"process_std": [1.0, 2.0]}, "process_std"),
        ({"observed": [3]}, "observed"),
        ({"flow": 3.0}, "function"),
        ({"filter": "kalman"}, "filter"),
    ],
)
def test_what_cannot_be_assimilated_is_refused(change, words):
    given = {"flow": lambda z: z, "readings": np.zeros((5, 1)), "start": [0.0], "observation_std": 1.0} | change
    flow, readings = given.pop("flow"), given.pop("readings")
    with pytest.raises((ConfigError, DataError), match=words):
        assimilate(flow, readings, **given)


def test_a_twin_experiment_is_compared_with_its_truth():
    """Ranks are flat and spread is error where truth and members are drawn alike; noise may differ at every reading."""
    rng = np.random.default_rng(0)
    truth = 0.5 * rng.standard_normal((400, 1)).cumsum(axis=0)
    noise = rng.uniform(0.5, 2.0, truth.shape)
    x = truth + noise * rng.standard_normal(truth.shape)
    how = {"start": [0.0], "start_std": 0.5, "process_std": 0.5, "filter": "particle:200", "keep_members": True}
    scores = assimilate(lambda z: z, x, observation_std=noise, **how).compare(truth, skip=20)
    assert scores.rmse.shape == scores.spread.shape == (380,)
    assert np.sqrt(np.mean(scores.rmse**2)) == pytest.approx(np.sqrt(np.mean(scores.spread**2)), rel=0.2)
    assert scores.spread_skill[-1, 0] > 1.3 * scores.spread_skill[0, 0]  # readings differ in what they tell
    assert np.abs(scores.rank_histogram - 1.0).max() < 0.6
    with pytest.raises(DataError, match="truth has shape"):
        assimilate(lambda z: z, x, observation_std=1.0, **how).compare(truth[:5])
    with pytest.raises(ConfigError, match="need observation_std"):
        assimilate(lambda z: z, x, **how)
    with pytest.raises(DataError, match="positive"):
        assimilate(lambda z: z, x, observation_std=0.0 * noise, **how)


def test_counts_are_assimilated():
    rng = np.random.default_rng(1)
    rate = 3.0
    counts = rng.poisson(rate, size=(80, 2)).astype(float)
    counts[3, 0] = np.nan
    for name in ("ekf", "particle:500"):
        how = {"start": [0.0, 0.0], "process_std": 0.02, "likelihood": "poisson", "filter": name}
        run = assimilate(lambda z: z, counts, **how)
        np.testing.assert_allclose(run.mean[-1], np.log(rate), atol=0.35)
    with pytest.raises(ConfigError, match="have no observation_std"):
        assimilate(lambda z: z, counts, observation_std=1.0, **how)
    with pytest.raises(DataError, match="whole numbers"):
        assimilate(lambda z: z, counts + 0.5, **how)


def test_particles_that_collapsed_are_a_warning():
    """Far readings of much precision leave one particle; many particles of rough readings all count."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    x[::4] = np.nan
    options = {"start": np.zeros(3), "process_std": 0.5, "start_std": 1.0}
    with pytest.warns(UserWarning, match=r"the particles collapsed: in \d+% of the rows fewer than two count"):
        few = assimilate(lambda z: z, x, observation_std=0.05, filter="particle:20", **options)
    assert few.collapsed_fraction > 0.1
    many = assimilate(lambda z: z, x, observation_std=2.0, filter="particle:500", **options)
    assert many.collapsed_fraction == 0.0
    assert np.array_equal(np.isnan(many.effective_particles), np.isnan(x[:, 0]))
    seen = many.effective_particles[~np.isnan(x[:, 0])]
    assert 50.0 < np.median(seen) <= 500.0
    counts = assimilate(lambda z: z, np.ones((5, 3)), likelihood="poisson", filter="particle:500", **options)
    assert counts.collapsed_fraction == 0.0
    dense = assimilate(lambda z: z, x, observation_std=2.0, **options)
    assert dense.effective_particles is None
    assert dense.collapsed_fraction is None
    nothing = assimilate(lambda z: z, np.full((3, 3), np.nan), observation_std=1.0, filter="particle:20", **options)
    assert nothing.collapsed_fraction is None
