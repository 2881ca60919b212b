"""Axis 1 against loops: ensemble scores at every start, and G_tan from a textbook filter and the true Jacobians."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import textbook_filter
from scipy.stats import spearmanr

from kaffee.certification.card import measure_grounding, score_ensembles
from kaffee.errors import ConfigError
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.rollout import forecast_ensemble

from .truth import LATENT, OBSERVED, PROTOCOL, embed, flow, standardised

B = np.eye(OBSERVED, LATENT)


def noise(model):
    """(Gamma, Lambda)."""
    logs = model.shell.log_process_std, model.shell.log_observation_std
    return tuple(np.diag(np.exp(2 * np.asarray(log))) for log in logs)


def surrogate_slopes(weights):
    """The derivative of sigmoid(1.7 z) z at the gates, by which the paper transports covariance in training."""

    def jacobian(z):
        s = 1.0 / (1.0 + np.exp(-1.7 * z[3:]))
        return np.diag(weights.A) + weights.W * np.concatenate([np.ones(3), s + 1.7 * z[3:] * s * (1.0 - s)])

    return jacobian


def filter_rows(model, step, jacobian, x, *, transport=True):
    """Filtered means and covariances of the rows after the first, which anchors the belief."""
    Gamma, Lambda = noise(model)
    seen = np.ones_like(x[1:], bool)
    start = embed(model, x[0])
    return textbook_filter(step, jacobian, B, Gamma, Lambda, start, Gamma, x[1:], seen, transport=transport)[1:]


# --- forecasts ---


def nll_by_loops(members, truth):
    """members (K, S, H, N), truth (S, H, N): the path mean, then the mean over starts."""
    paths = []
    for s in range(truth.shape[0]):
        steps = []
        for h in range(truth.shape[1]):
            terms = []
            for j in range(OBSERVED):
                values = members[:, s, h, j]
                mean = sum(values) / len(values)
                std = max(np.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)), 1e-3)
                terms.append(0.5 * (np.log(2 * np.pi * std**2) + (truth[s, h, j] - mean) ** 2 / std**2))
            steps.append(sum(terms) / OBSERVED)
        paths.append(sum(steps) / len(steps))
    return sum(paths) / len(paths)


def crps_by_loops(members, truth):
    """members (K, S, N), truth (S, N), with the literal double sum."""
    K, total = len(members), 0.0
    for s in range(truth.shape[0]):
        for j in range(OBSERVED):
            x = members[:, s, j]
            total += sum(abs(a - truth[s, j]) for a in x) / K
            total -= sum(abs(a - b) for a in x for b in x) / (2 * K**2)
    return total / truth.size


def rmse_by_loops(members, truth):
    roots = []
    for s in range(truth.shape[0]):
        square = sum((sum(members[:, s, j]) / len(members) - truth[s, j]) ** 2 for j in range(OBSERVED))
        roots.append(np.sqrt(square / OBSERVED))
    return sum(roots) / len(roots)


def evenly_spaced(first, last, count):
    return [first + round((last - first) * i / (count - 1)) for i in range(count)]


def expected_scores(reference, members, starts, h):
    """All numbers at one horizon; `starts` of the test data, of which the paper's few are a part."""
    future = np.array([[reference.test_observations[s + k] for k in range(1, h + 1)] for s in starts])
    some, few = (evenly_spaced(0, len(starts) - 1, n) for n in (PROTOCOL.num_starts, PROTOCOL.num_crps_starts))
    last, truth = members[:, :, h - 1], future[:, h - 1]
    return {
        "nll": nll_by_loops(members[:, some, :h], future[some]),
        "crps": crps_by_loops(last[:, few], truth[few]),
        "rmse": rmse_by_loops(last[:, few], truth[few]),
        "nll_all": nll_by_loops(members[:, :, :h], future),
        "crps_all": crps_by_loops(last, truth),
        "rmse_all": rmse_by_loops(last, truth),
        "rmse_clean": rmse_by_loops(
            standardised(reference, last), standardised(reference, reference.test_states[np.array(starts) + h])
        ),
    }


@pytest.mark.parametrize("start", ["embedding", "filtered"])
def test_scores_are_those_of_loops_over_starts_members_and_steps(start, reference, weights, x64):
    model, x = weights.model(), standardised(reference, reference.test_observations)
    count = PROTOCOL.num_extra_starts if start == "embedding" else PROTOCOL.num_starts
    starts = evenly_spaced(PROTOCOL.warm_up, PROTOCOL.forecast_span - 1, count)
    if start == "embedding":
        origin = jnp.asarray(np.array([embed(model, x[s]) for s in starts]))
    else:
        jacobian = surrogate_slopes(weights)
        runs = [filter_rows(model, weights.step, jacobian, x[s - PROTOCOL.warm_up : s + 1]) for s in starts]
        origin = Belief(*(jnp.asarray(np.array([run[i][-1] for run in runs])) for i in (0, 1)))
    key = jax.random.key(PROTOCOL.seed)
    ensemble = np.asarray(forecast_ensemble(model, origin, 5, PROTOCOL.num_members, key=key))
    members = ensemble * reference.scaler.scale + reference.scaler.mean

    found = score_ensembles(model, Recursion(), reference, PROTOCOL, start)
    assert list(found) == [2, 3, 5]
    for h, scores in found.items():
        expected = expected_scores(reference, members, starts, h)
        for name, value in scores._asdict().items():
            assert value == pytest.approx(expected[name], abs=1e-8), (h, name)


def test_a_span_without_starts_is_refused():
    with pytest.raises(ConfigError, match=r"forecast_span must exceed warm_up: 9 steps leave no starts after 9"):
        replace(PROTOCOL, forecast_span=9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_members": 0}, "num_members must be at least 1, not 0"),
        ({"spectrum_horizons": (2, 0)}, "spectrum_horizons must all be at least 1"),
        ({"num_extra_starts": 4}, "must not be smaller than the other numbers of starts"),
    ],
)
def test_protocols_that_mean_nothing_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        replace(PROTOCOL, **change)


# --- G_tan ---


def grounding_by_loops(reference, model, step, jacobian, horizon, *, transport):
    """(pooled, within) of the equations, one time and one coordinate after the other."""
    Gamma, _ = noise(model)
    scale, warm_up = reference.scaler.scale, PROTOCOL.warm_up
    rows = warm_up + PROTOCOL.grounding_steps + 1
    means, covariances = filter_rows(
        model, step, jacobian, standardised(reference, reference.test_observations)[:rows], transport=transport
    )
    ours, true = [], []
    for t in range(warm_up, len(means)):
        Omega, z, P, product = B @ covariances[t] @ B.T, means[t], covariances[t], np.eye(OBSERVED)
        for h in range(horizon):
            J = jacobian(z) if transport else np.eye(LATENT)
            z, P = step(z), J @ P @ J.T + Gamma
            # the filter's step t ends at row t + 1 of the data
            product = (flow(reference.test_states[t + 1 + h])[1] * scale / scale[:, None]) @ product
        ours.append([np.log((B @ P @ B.T)[j, j]) - np.log(Omega[j, j]) for j in range(OBSERVED)])
        true.append([np.log((product @ Omega @ product.T)[j, j]) - np.log(Omega[j, j]) for j in range(OBSERVED)])
    ours, true = np.array(ours), np.array(true)
    assert ours.shape == (PROTOCOL.grounding_steps, OBSERVED)
    within = [spearmanr(a, b).statistic for a, b in zip(ours.T, true.T, strict=True)]
    return spearmanr(ours.ravel(), true.ravel()).statistic, np.mean(within)


@pytest.mark.parametrize(
    ("gates", "transport"), [("hard", True), ("surrogate", True), ("hard", False)], ids=["hard", "surrogate", "blind"]
)
def test_g_tan_is_that_of_a_textbook_filter_and_the_true_tangents(gates, transport, reference, weights, x64):
    # A small gain: without transport, variances settle in a few hundred steps, and then their last digits are ranked.
    model, protocol = weights.model(process=0.02, observation=1.0), replace(PROTOCOL, gates=gates)
    found = measure_grounding(model, Recursion(transport=transport), reference, protocol, (1, 2, 5))
    assert list(found) == [1, 2, 5]
    jacobian = weights.jacobian if gates == "hard" else surrogate_slopes(weights)
    for horizon, grounding in found.items():
        pooled, within = grounding_by_loops(reference, model, weights.step, jacobian, horizon, transport=transport)
        assert grounding.pooled == pytest.approx(pooled, abs=1e-8), horizon
        assert grounding.within == pytest.approx(within, abs=1e-8), horizon


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_variance_that_has_settled_is_grounded_in_nothing(dtype, reference, weights, x64):
    """Zero by definition, not the correlation of rounding errors."""
    model = weights.model(dtype, process=0.5, observation=0.5)
    protocol = replace(PROTOCOL, warm_up=60, forecast_span=61)
    found = measure_grounding(model, Recursion(transport=False), reference, protocol)[1]
    assert found.within == 0.0
    assert 0.0 < abs(found.pooled) < 1.0  # the levels of different coordinates still differ


def test_true_jacobians_are_in_the_coordinates_of_the_model(reference):
    states, scale = reference.test_states[:4], reference.scaler.scale
    found = reference.jacobians(states)
    for J, state in zip(found, states, strict=True):
        np.testing.assert_allclose(J, np.diag(1 / scale) @ flow(state)[1] @ np.diag(scale), rtol=1e-11, atol=1e-12)
