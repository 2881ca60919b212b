"""Axes 2 and 3 against loops and closed forms; cores that diverge, that come to rest, and truths without a scale."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.certification.fidelity import measure_fidelity
from kaffee.errors import ConfigError
from kaffee.filtering.rollout import DIVERGENCE_BOUND, free_run
from kaffee.metrics.geometry import d_stsp_histogram, d_stsp_mixture
from kaffee.metrics.scores import ensemble_crps, ensemble_nll, ensemble_rmse
from kaffee.metrics.spectra import d_hellinger

from .truth import DT, H_REFERENCE, LATENT, OBSERVED, PROTOCOL, embed, make_reference, scaled, standardised

STEPS, TRANSIENT = PROTOCOL.rollout_steps, PROTOCOL.transient


def found_for(model, reference, *, stochastic=False, protocol=PROTOCOL):
    return measure_fidelity(model, reference, protocol, stochastic=stochastic, h_reference=H_REFERENCE)


def hellinger_by_loops(p_series, q_series, width=20):
    """Explicit Fourier sums, a Gaussian kernel of 4 widths with reflected ends, and the sum of the equation."""
    radius = 4 * width
    kernel = [np.exp(-0.5 * (k / width) ** 2) for k in range(-radius, radius + 1)]

    def spectrum(x):
        T = len(x)
        x = (x - sum(x) / T) / np.sqrt(sum((x - sum(x) / T) ** 2) / T)
        angles = [2 * np.pi * w * np.arange(T) / T for w in range(T // 2 + 1)]
        power = [sum(x * np.cos(a)) ** 2 + sum(x * np.sin(a)) ** 2 for a in angles]
        F, smooth = len(power), []
        for w in range(F):
            places = [(w + k) % (2 * F) for k in range(-radius, radius + 1)]  # ... c b a | a b c ... x y z | z y x ...
            values = [power[i if i < F else 2 * F - 1 - i] for i in places]
            smooth.append(sum(k * v for k, v in zip(kernel, values, strict=True)) / sum(kernel))
        return np.array(smooth) / sum(smooth)

    each = []
    for p, q in zip(p_series.T, q_series.T, strict=True):
        each.append(np.sqrt(1.0 - sum(np.sqrt(spectrum(p) * spectrum(q)))))
    return sum(each) / len(each)


def histogram_by_loops(reference, generated, num_bins=30, smoothing=1e-5):
    margin = 0.1 * reference.std(axis=0)
    low, high = reference.min(axis=0) - margin, reference.max(axis=0) + margin

    def density(points):
        counts = np.zeros((num_bins,) * points.shape[1])
        for point in points:
            place = (point - low) / (high - low) * num_bins
            if ((place >= 0) & (place <= num_bins)).all():
                counts[tuple(np.minimum(place.astype(int), num_bins - 1))] += 1
        return (counts + smoothing) / (counts.sum() + smoothing * counts.size)

    p, q = density(reference).ravel(), density(generated).ravel()
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))


# --- oracles ---


def test_the_deterministic_axis_is_that_of_loops(reference, weights, x64):
    model = weights.model()
    z, states = embed(model, standardised(reference, reference.clean[0])), []
    for _ in range(TRANSIENT + STEPS):
        z = weights.step(z)
        states.append(z)
    states = np.array(states[TRANSIENT:])
    # the same first frame: within so few steps it is not forgotten
    Q, growth, skipped = np.linalg.qr(np.random.default_rng(0).standard_normal((LATENT, LATENT)))[0], [], STEPS // 10
    for z in states:
        Q, R = np.linalg.qr(weights.jacobian(z) @ Q)
        growth.append(np.log(np.abs(np.diag(R))))
    # what does not fill twenty equal blocks is added to the transient
    averaged = (STEPS - skipped) // 20 * 20
    exponents = np.mean(growth[-averaged:], axis=0) / DT

    found, target = found_for(model, reference), standardised(reference, reference.clean)
    generated = states[:, :OBSERVED]
    assert found.d_stsp == pytest.approx(histogram_by_loops(target, generated), abs=1e-8)
    assert found.d_h == pytest.approx(hellinger_by_loops(target, generated), abs=1e-8)
    np.testing.assert_allclose(found.exponents, sorted(exponents, reverse=True), atol=1e-8)
    h = sum(e for e in exponents if e > 0)
    assert h > 0.1
    assert found.h == pytest.approx(h, abs=1e-8)
    assert found.dh == pytest.approx(abs(h - H_REFERENCE), abs=1e-8)
    assert (found.diverged_at, found.diverged) == (0, 0)


def test_the_stochastic_axis_compares_noisy_observations_after_the_transient(reference, weights, x64):
    model = weights.model(process=0.02)
    start = jnp.asarray(embed(model, standardised(reference, reference.test_observations[0])))[None]
    key = jax.random.key(PROTOCOL.seed + 1)
    generated = np.asarray(free_run(model, start, STEPS, key=key, transient=TRANSIENT).observations[0])
    target = standardised(reference, reference.test_observations[TRANSIENT : TRANSIENT + STEPS])
    found = found_for(model, reference, stochastic=True)
    assert found.d_stsp == pytest.approx(histogram_by_loops(target, generated), abs=1e-8)
    assert found.d_h == pytest.approx(hellinger_by_loops(target, generated), abs=1e-8)
    assert found != found_for(model, reference)


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_growth_of_a_linear_map_is_the_sum_of_its_positive_logarithms(stochastic, reference, x64):
    """Eigenvalues 1.01, 1.001, 0.6 of a block, 0.5 and 0.3 behind it; slow, so that the run stays within the bound."""
    rng = np.random.default_rng(4)
    V = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    # Not normal; only the two expanding directions are orthogonal, since it takes long to tell them apart.
    V = V @ np.array([[1.0, 0.0, 0.4], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])
    diagonal, W = np.array([0.0, 0.0, 0.0, 0.5, 0.3]), np.zeros((LATENT, LATENT))
    W[:3, :3] = V @ np.diag([1.01, 1.001, 0.6]) @ np.linalg.inv(V)
    W[3:, :3] = 0.1 * rng.standard_normal((2, 3))
    found = found_for(scaled(diagonal, 0.0, W, process=0.01), reference, stochastic=stochastic)
    h = np.log(1.01 * 1.001) / DT
    assert found.h == pytest.approx(h, abs=1e-8)
    assert found.dh == pytest.approx(abs(h - H_REFERENCE), abs=1e-8)
    assert sum(found.exponents) == pytest.approx(np.log(1.01 * 1.001 * 0.6 * 0.5 * 0.3) / DT, abs=1e-8)
    assert found.diverged_at == 0


def test_no_more_exponents_are_asked_for_than_there_are(reference, x64):
    model = scaled(0.5, 0.1)
    assert len(found_for(model, reference).exponents) == LATENT
    few = replace(PROTOCOL, num_exponents=2)
    assert len(found_for(model, reference, protocol=few).exponents) == 2


# --- cores that leave the attractor ---


@pytest.mark.parametrize("stochastic", [False, True])
def test_a_core_that_diverges_is_flagged_with_its_step(stochastic, reference, x64):
    model = scaled(1.5, process=1e-4)
    found = found_for(model, reference, stochastic=stochastic)
    origin = (reference.test_observations if stochastic else reference.clean)[0]
    largest = np.abs(embed(model, standardised(reference, origin))).max()
    assert found.diverged_at == int(np.ceil(np.log(DIVERGENCE_BOUND / largest) / np.log(1.5)))
    assert found.diverged == PROTOCOL.num_divergence_starts
    assert np.isnan([found.d_stsp, found.dh, found.d_h, found.h]).all()
    assert found.exponents == []


def test_watched_runs_are_counted_when_the_first_one_stays(x64):
    """The first clean state is the fixed point of an expanding map; the other three starts leave."""
    clean = make_reference().clean.copy()
    reference = make_reference(clean=clean)
    clean[0] = reference.scaler.mean
    found = found_for(scaled(1.5), make_reference(clean=clean, scaler=reference.scaler))
    assert (found.diverged_at, found.diverged) == (0, PROTOCOL.num_divergence_starts - 1)
    assert np.isfinite([found.d_stsp, found.dh, found.d_h]).all()


# --- cores that come to rest ---


def test_a_core_at_rest_has_all_metrics(reference, x64):
    found = found_for(scaled(0.5, 0.1), reference)
    assert found.h == 0.0
    assert found.dh == H_REFERENCE
    assert found.d_h == 1.0
    np.testing.assert_allclose(found.exponents, np.log(0.5) / DT, rtol=1e-8)
    # all mass in the bin of the fixed point z = 0.2
    target = standardised(reference, reference.clean)
    assert found.d_stsp == pytest.approx(histogram_by_loops(target, np.full((STEPS, OBSERVED), 0.2)), abs=1e-8)
    assert (found.diverged_at, found.diverged) == (0, 0)


def test_the_flicker_of_a_run_at_rest_is_no_signal():
    """In float32 the last digit of a fixed point may go on changing; what it looks like is not dynamics."""
    reference = np.random.default_rng(0).standard_normal((500, 1)).cumsum(axis=0)
    rest = np.full((500, 1), 0.7, np.float32)
    rest[::2] = np.nextafter(rest[::2], np.float32(1.0))
    assert np.ptp(rest) > 0.0
    assert d_hellinger(reference, rest) == 1.0
    assert d_hellinger(reference, 50.0 * rest) == 1.0
    small = 1e-4 * np.random.default_rng(1).standard_normal((500, 1)).cumsum(axis=0)
    assert d_hellinger(reference, small) < 1.0


# --- references without a scale or with gaps ---


def test_a_constant_coordinate_of_the_truth(x64):
    """Bins and spectra do not exist, which is said; a mixture is as wide there as elsewhere."""
    rng = np.random.default_rng(0)
    reference, generated = rng.standard_normal((60, 3)), rng.standard_normal((50, 3))
    reference[:, 1] = 0.7
    with pytest.raises(ConfigError, match="coordinate of the reference is constant"):
        d_stsp_histogram(reference, generated)
    with pytest.raises(ConfigError, match="constant or non-finite"):
        d_hellinger(reference, generated)
    found = d_stsp_mixture(reference, generated, num_samples=20, seed=3)

    draws = np.random.default_rng(3)
    points = reference[draws.integers(60, size=20)] + draws.standard_normal((20, 3))

    def log_density(x, centres):
        return np.logaddexp.reduce([-0.5 * sum((x - c) ** 2) for c in centres]) - np.log(len(centres))

    assert found == pytest.approx(
        np.mean([log_density(x, reference) - log_density(x, generated) for x in points]), abs=1e-8
    )
    assert np.isfinite(found)


def test_a_constant_coordinate_stops_the_evaluation_with_a_sentence(reference, x64):
    clean = reference.clean.copy()
    clean[:, 2] = 20.0
    with pytest.raises(ConfigError, match="coordinate of the reference is constant"):
        found_for(scaled(0.5, 0.1), make_reference(clean=clean))


@pytest.mark.parametrize("name", ["test_states", "test_observations", "clean"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_truth_with_gaps_is_refused(name, bad, reference):
    values = getattr(reference, name).copy()
    values[[7, 20], 1] = bad
    with pytest.raises(ConfigError, match=rf"reference.{name} has non-finite values in 2 rows, the first is 7"):
        make_reference(**{name: values})


@pytest.mark.parametrize("score", [ensemble_nll, ensemble_crps, ensemble_rmse])
def test_scores_of_a_diverged_ensemble_are_nan_and_of_a_missing_truth_an_error(score):
    members, truth = np.random.default_rng(0).standard_normal((4, 2, 3)), np.zeros((2, 3))
    for bad in (np.nan, np.inf, -np.inf):
        broken = members.copy()
        broken[:2, 1, 0] = bad
        assert np.isnan(score(broken, truth)) or score(broken, truth) == np.inf
        with pytest.raises(ConfigError, match="reference has non-finite values"):
            score(members, np.where(np.eye(2, 3) > 0, bad, truth))
    assert np.isfinite(score(members, truth))
