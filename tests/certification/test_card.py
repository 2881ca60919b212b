"""The report card as a whole, on simulated Lorenz-63; what it says of broken cores, and a frozen core's."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kaffee.certification.card import evaluate, read_core
from kaffee.certification.fidelity import simulate_reference
from kaffee.errors import ConfigError
from kaffee.systems.catalogue import get_system

from .truth import H_NOISY, H_REFERENCE, PROTOCOL, scaled

METRICS = ("nll", "crps", "g_tan", "d_stsp_stoch", "dh_stoch", "d_stsp_core", "dh_core", "d_h_core")
LOCAL = METRICS[:5]
SPECTRUM_KEYS = {"nll", "crps", "rmse", "nll_all", "crps_all", "rmse_all", "rmse_clean"}


@pytest.fixture(scope="module")
def simulated():
    return simulate_reference(
        get_system("lorenz63"),
        num_train_steps=200,
        process_noise=0.05,
        observation_noise=0.1,
        seed=0,
        protocol=PROTOCOL,
    )


@pytest.fixture(scope="module")
def model(weights):
    return weights.model(np.float32, process=0.005)


@pytest.fixture(scope="module")
def card(model, simulated):
    return evaluate(model, simulated, protocol=PROTOCOL)


@pytest.fixture(scope="module")
def prior_card(model, simulated):
    return evaluate(model, simulated, method="prior", protocol=PROTOCOL)


def numbers(value):
    """All numbers in nested JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value]


def test_a_reference_continues_its_training_data(simulated):
    assert simulated.train.recordings[0].shape == (200, 3)
    # as many test rows as the longest of free runs, forecasts and G_tan needs
    needed = PROTOCOL.transient + PROTOCOL.rollout_steps
    assert simulated.test_states.shape == simulated.test_observations.shape == (needed, 3)
    assert simulated.clean.shape == (PROTOCOL.rollout_steps, 3)
    noise = (simulated.test_observations - simulated.test_states) / simulated.scaler.scale
    assert noise.std() == pytest.approx(0.1, rel=0.1)
    np.testing.assert_allclose(simulated.standard_train.recordings[0].std(axis=0), 1.0, rtol=0.2)
    steps = np.abs(
        np.diff(np.concatenate([simulated.train.recordings[0][-2:], simulated.test_observations[:2]]), axis=0)
    )
    assert (steps < 4.0 * simulated.scaler.scale).all()  # no jump between the two


def test_the_card_says_how_it_was_measured(card):
    found = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    expected = json.loads(json.dumps({**PROTOCOL.to_dict(), "starts": "embedding", "coordinates": "data units"}))
    assert found["protocol"] == expected


def test_the_card_is_finite_and_has_both_starts_and_the_spectrum(card):
    found = card.to_dict()
    assert all(np.isfinite(number) for number in numbers({k: v for k, v in found.items() if k != "protocol"}))
    assert found["diverged_core"] == 0
    extra = found["extra"]
    assert list(extra["spectrum"]) == ["2", "5"]
    for entry in extra["spectrum"].values():
        assert set(entry) == {"embedding", "filtered", "g_tan", "g_tan_within"}
        assert set(entry["embedding"]) == set(entry["filtered"]) == SPECTRUM_KEYS
        assert entry["embedding"]["nll"] != entry["filtered"]["nll"]
    assert {"nll_all_starts", "crps_all_starts", "nll_filtered", "crps_filtered", "g_tan_within"} <= set(extra)
    assert extra["nll_filtered"] != found["nll"]


def test_errors_of_the_growth_rate_are_against_the_deterministic_truth(card, simulated):
    extra = card.extra
    assert extra["h_reference"] == simulated.lyapunov.sum_positive != extra["h_reference_noisy"]
    assert card.dh_core == pytest.approx(abs(extra["h_core"] - extra["h_reference"]), abs=1e-12)
    assert card.dh_stoch == pytest.approx(abs(extra["h_stoch"] - extra["h_reference"]), abs=1e-12)
    noisy = abs(extra["h_stoch"] - extra["h_reference_noisy"])
    assert extra["dh_stoch_noisy_reference"] == pytest.approx(noisy, abs=1e-12)
    positive = [e for e in extra["exponents_core"] if e > 0]
    assert extra["h_core"] == pytest.approx(sum(positive), abs=1e-6)


def test_the_same_model_has_the_same_card(card, model, simulated):
    assert evaluate(model, simulated, protocol=PROTOCOL) == card


def test_a_prior_has_the_deterministic_axis_only(card, prior_card):
    found = prior_card.to_dict()
    assert [found[metric] for metric in LOCAL] == [None] * 5
    for metric in ("d_stsp_core", "dh_core", "d_h_core", "diverged_core"):
        assert found[metric] == getattr(card, metric)
    assert "spectrum" not in found["extra"]


def test_a_frozen_core_has_its_priors_numbers(card, prior_card, model, simulated):
    """Through the JSON of the prior's cell, as the benchmark hands it on; a different shell changes the rest only."""
    stored = json.loads(json.dumps(prior_card.to_dict()))
    known = read_core(stored)
    shell = scaled(0.5, dtype=np.float32, process=0.05).shell
    frozen = evaluate(
        model.replace(shell=shell), simulated, method="frozen_core", protocol=PROTOCOL, core_fidelity=known
    ).to_dict()
    for metric in ("d_stsp_core", "dh_core", "d_h_core", "diverged_core"):
        assert frozen[metric] == stored[metric]
    for name in ("h_core", "exponents_core", "diverged_at_core"):
        assert frozen["extra"][name] == stored["extra"][name]
    assert frozen["nll"] != card.nll


@pytest.mark.parametrize("record", [{}, {"error": "OutOfMemory", "traceback": "..."}, {"extra": None}])
def test_a_record_without_a_card_has_no_core(record):
    assert read_core(record) is None


def test_the_read_core_a_diverged_prior_stays_diverged(model, reference):
    prior = evaluate(scaled(1.5, dtype=np.float32), reference, method="prior", protocol=PROTOCOL)
    stored = prior.to_dict()
    again = read_core(json.loads(json.dumps(stored)))
    assert (again.diverged_at, again.diverged) == (stored["extra"]["diverged_at_core"], stored["diverged_core"])
    assert again.diverged_at > 0
    assert np.isnan(again.d_stsp)


@pytest.mark.parametrize("factor", [1.5, 1e30], ids=["slowly", "at once"])
def test_a_core_that_diverges_is_a_row_and_not_a_crash(factor, reference):
    """At 1e30 even the forecasts and the filter overflow; still nothing is raised and nothing is warned of."""
    found = evaluate(scaled(factor, dtype=np.float32), reference, protocol=PROTOCOL).to_dict()
    json.dumps(found, allow_nan=False)
    for metric in ("d_stsp_stoch", "dh_stoch", "d_stsp_core", "dh_core", "d_h_core"):
        assert found[metric] is None
    assert found["diverged_core"] == found["diverged_stoch"] == PROTOCOL.num_divergence_starts
    assert 0 < found["extra"]["diverged_at_core"] < 30
    assert 0 < found["extra"]["diverged_at_stoch"] < 30
    assert found["extra"]["h_core"] is None
    local = [found[metric] for metric in ("nll", "crps", "g_tan")]
    assert local == [None] * 3 if factor == 1e30 else np.isfinite(local).all()


def test_a_core_at_rest_misses_all_growth(reference):
    card = evaluate(scaled(0.5, 0.1, dtype=np.float32), reference, protocol=PROTOCOL)
    assert card.dh_core == card.dh_stoch == H_REFERENCE
    assert card.extra["dh_stoch_noisy_reference"] == H_NOISY
    assert card.d_h_core == 1.0
    assert card.extra["d_h_stoch"] < 1.0  # noise has a spectrum
    assert np.isfinite([card.d_stsp_core, card.d_stsp_stoch, card.nll, card.crps]).all()
    assert card.diverged_core == card.diverged_stoch == 0


def test_an_unknown_method_is_not_taken_for_another(model, reference):
    with pytest.raises(ConfigError, match=r"Unknown method 'kafee'. Did you mean 'kaffee'\?"):
        evaluate(model, reference, method="kafee", protocol=PROTOCOL)


def test_every_horizon_is_scored_once():
    assert PROTOCOL.all_horizons == (2, 3, 5)
    assert replace(PROTOCOL, spectrum_horizons=()).all_horizons == (3,)
    assert replace(PROTOCOL, spectrum_horizons=(9, 3)).all_horizons == (3, 9)
