"""The card of appendix C.5.1 and the sparse filter, on a small AL-RNN whose parts are tested elsewhere."""

import json
from dataclasses import replace

import numpy as np
import pytest
from certification.truth import PROTOCOL, Weights, make_reference, scaled, standardised

from kaffee.certification.card import evaluate, measure_grounding, score_ensembles
from kaffee.certification.fidelity import measure_fidelity, simulate_reference
from kaffee.filtering.recursion import Recursion
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.paper.context_card import assimilate_sparsely, evaluate_in_context
from kaffee.records import jsonable
from kaffee.systems.catalogue import get_system

HERE = replace(PROTOCOL, spectrum_horizons=(1, 3), gates="surrogate")


@pytest.fixture(scope="module")
def reference():
    return make_reference()


@pytest.fixture(scope="module")
def model():
    return Weights().model(np.float32)


@pytest.fixture(scope="module")
def card(model, reference):
    return evaluate_in_context(model, reference, protocol=HERE)


def test_columns_are_those_of_their_functions(card, model, reference):
    scores = score_ensembles(model, Recursion(), reference, HERE, "filtered")
    assert card["nll"] == scores[1].nll_all
    assert card["rmse"] == scores[3].rmse_clean
    assert card["nll"] - card["nll_standard"] == pytest.approx(np.log(reference.scaler.scale).mean())
    tangent = measure_grounding(model, Recursion(), reference, HERE)[1]
    assert (card["g_tan"], card["g_tan_within"]) == (tangent.pooled, tangent.within)
    core = measure_fidelity(model, reference, HERE, stochastic=False, h_reference=None)
    assert (card["d_stsp_core"], card["d_h_core"], card["diverged_core"]) == (core.d_stsp, core.d_h, core.diverged)
    full = evaluate(model, reference, protocol=HERE)
    assert (full.d_stsp_core, full.d_h_core) == (core.d_stsp, core.d_h)


def test_standardised_nll_is_that_of_standardised_numbers(model, reference):
    """An affine change of units shifts the Gaussian NLL by the mean log scale, and by nothing else."""
    card = evaluate_in_context(model, reference, protocol=HERE)
    unit = replace(
        reference,
        scaler=replace(reference.scaler, mean=np.zeros(3), scale=np.ones(3)),
        test_observations=standardised(reference, reference.test_observations),
        test_states=standardised(reference, reference.test_states),
        clean=standardised(reference, reference.clean),
    )
    scores = score_ensembles(model, Recursion(), unit, HERE, "filtered")
    assert card["nll_standard"] == pytest.approx(scores[1].nll_all, abs=1e-6)


def test_the_ratio_is_to_the_base(model, reference):
    base = measure_fidelity(model, reference, HERE, stochastic=False, h_reference=None)
    itself = evaluate_in_context(model, reference, method="prior", protocol=HERE)
    assert itself["d_stsp_ratio"] == 1.0
    assert json.loads(json.dumps(jsonable(itself), allow_nan=False))["nll"] is None
    half = evaluate_in_context(
        model, reference, method="prior", protocol=HERE, base=base._replace(d_stsp=2.0 * base.d_stsp)
    )
    assert half["d_stsp_ratio"] == pytest.approx(0.5)
    known = evaluate_in_context(model, reference, method="frozen_core", protocol=HERE, base=base, core_fidelity=base)
    assert (known["d_stsp_ratio"], known["d_h_core"]) == (1.0, base.d_h)


def test_a_wider_shell_covers_more(card, model, reference):
    wide = evaluate_in_context(
        model.replace(shell=scaled(0.5, dtype=np.float32, process=3.0, observation=3.0).shell), reference, protocol=HERE
    )
    assert 0.0 <= card["coverage_50"] <= card["coverage_80"] <= card["coverage_95"] <= 1.0
    assert wide["coverage_50"] > card["coverage_50"]
    assert wide["nis"] < card["nis"]


# --- sparse observations ---


def test_rows_of_the_sparse_run_belong_together(model, reference):
    """With everything shown and a tiny Lambda the belief is the measurement itself."""
    sure = model.replace(shell=scaled(0.5, dtype=np.float32, process=1.0, observation=1e-3).shell)
    run = assimilate_sparsely(sure, reference, Recursion(), num_steps=40, warm_up=9, every=1)
    assert run.seen.all()
    assert run.mean.shape == run.truth.shape == (40, 3)
    np.testing.assert_array_equal(run.truth, reference.test_states[10:50])
    np.testing.assert_array_equal(run.observations, reference.test_observations[10:50])
    np.testing.assert_allclose(run.mean, run.observations, atol=1e-3 * reference.scaler.scale.max())


def test_what_is_hidden_does_not_matter(model, reference):
    first = assimilate_sparsely(model, reference, Recursion(), num_steps=40, warm_up=9, every=4, hidden=(2,))
    spoiled = np.full_like(reference.test_observations, 1e3)
    spoiled[::4, :2] = reference.test_observations[::4, :2]
    other = replace(reference, test_observations=spoiled)
    second = assimilate_sparsely(model, other, Recursion(), num_steps=40, warm_up=9, every=4, hidden=(2,))
    np.testing.assert_array_equal(first.mean, second.mean)
    np.testing.assert_array_equal(first.std, second.std)
    assert not first.seen[:, 2].any()
    assert first.seen[:, 0].sum() == 10
    shown = assimilate_sparsely(model, reference, Recursion(), num_steps=40, warm_up=9, every=4)
    assert first.std[:, 2].mean() > shown.std[:, 2].mean()


def test_the_true_linear_filter_is_calibrated():
    """A linear system filtered with its own map: 95 % bands cover 95 % of true states, seen or not."""
    system = get_system("linear_spiral")
    small = replace(HERE, warm_up=50, grounding_steps=2_000, rollout_steps=2_200, transient=10, forecast_span=100)
    truth = simulate_reference(
        system,
        num_train_steps=2_000,
        process_noise=0.5,
        observation_noise=0.3,
        seed=0,
        protocol=small,
        scaler="observations",
    )
    scale = truth.scaler.scale
    J = np.asarray(truth.jacobians(np.zeros((1, 2)))[0])
    offset = (J - np.eye(2)) @ (truth.scaler.mean / scale)
    noise = np.sqrt(np.mean((truth.test_observations - truth.test_states) ** 2, axis=0)) / scale
    steps = truth.test_states[1:] - truth.test_states[:-1] @ np.asarray(system.jacobian(np.zeros(2))).T
    model = StateSpaceModel(
        core=Linear(np.asarray(J, np.float32), np.asarray(offset, np.float32)),
        shell=Shell.from_std(steps.std(axis=0) / scale, noise, np.float32),
        observation=Projection(2, 2),
        embedding=np.eye(2, dtype=np.float32),
    )
    run = assimilate_sparsely(model, truth, Recursion(), num_steps=2_000, warm_up=50, every=3, hidden=(1,))
    assert run.coverage(0.95) == pytest.approx(0.95, abs=0.025)
    assert run.coverage(0.5) == pytest.approx(0.5, abs=0.08)
    assert run.nis == pytest.approx(1.0, abs=0.15)
