"""Window objectives: normalisation, burn-in, anchoring, gradients, segments; the methods of Table 1; the self-test."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import (
    LATENT,
    OBSERVED,
    STEPS,
    WINDOWS,
    directional_differences,
    flat,
    inner,
    make_data,
    make_model,
    matrix_of,
    random_direction,
    textbook_filter,
)

from kaffee.errors import ConfigError
from kaffee.filtering import likelihood
from kaffee.filtering.likelihood import METHODS, get_method, initial_belief, window_nll
from kaffee.filtering.recursion import Recursion
from kaffee.model.maps import Linear
from kaffee.model.observation import LinearObservation
from kaffee.model.statespace import StateSpaceModel

FILTER, OPEN_LOOP = Recursion(), Recursion(assimilate=False)
BURN_IN = 3


@eqx.filter_jit
def loss(model, x, mask, recursion=FILTER, start=None, burn_in=BURN_IN):
    return window_nll(model, x, mask, recursion, burn_in=burn_in, start=start).loss


@eqx.filter_jit
def value_and_gradient(model, x, mask, gradient, segment=None, recursion=FILTER):
    def value(model):
        return window_nll(model, x, mask, recursion, burn_in=BURN_IN, gradient=gradient, segment=segment).loss

    return eqx.filter_value_and_grad(value)(model)


def textbook_terms(model, x, mask, starts, recursion):
    """NLL of every step (W, T) by the textbook filter."""
    Gamma, Lambda = np.diag(model.shell.process_variance()), np.diag(model.shell.observation_variance())
    B = matrix_of(model.observation)
    inverse = np.linalg.pinv(B)

    def first_covariance(seen):
        return Gamma + inverse @ np.diag(1.0 - np.asarray(seen, float)) @ inverse.T

    return np.stack(
        [
            textbook_filter(
                *(model.core, model.core.jacobian, B, Gamma, Lambda, start, first_covariance(mask_w[0])),
                *(x_w[1:], mask_w[1:]),
                assimilate=recursion.assimilate,
                transport=recursion.transport,
            )[0]
            for x_w, mask_w, start in zip(x, mask, starts, strict=True)
        ]
    )


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("recursion", [FILTER, OPEN_LOOP])
def test_loss_of_algorithm_1(recursion, missing, x64):
    """Anchored at the embedded first row, covariance Gamma, mean over scored and observed entries."""
    model, (x, mask) = make_model("smooth"), make_data(missing=missing)
    terms = textbook_terms(model, x, mask, model.embed(x[:, 0]), recursion)
    count = int(np.sum(mask[:, 1 + BURN_IN :]))
    expected = terms[:, BURN_IN:].sum() / count
    assert float(loss(model, x, mask, recursion)) == pytest.approx(expected, rel=1e-10)
    if not missing:
        assert count == WINDOWS * (STEPS - BURN_IN) * OBSERVED


def test_constant_is_that_of_a_normalised_density(x64):
    """With an exact forecast and unit innovation covariance only log(2 pi)/2 per entry is left, and the least Gamma."""
    model = make_model("linear")
    quiet = jax.tree.map(jnp.zeros_like, model.core)
    shell = eqx.tree_at(
        lambda s: (s.log_process_std, s.log_observation_std),
        model.shell,
        (jnp.full(LATENT, -20.0), jnp.zeros(OBSERVED)),
    )
    x = jnp.zeros((WINDOWS, STEPS + 1, OBSERVED))
    value = loss(model.replace(core=quiet, shell=shell), x, jnp.ones(x.shape, bool))
    assert float(value) == pytest.approx(0.5 * np.log(2 * np.pi * (1.0 + np.exp(-20.0))), rel=1e-11)


@pytest.mark.parametrize("transport", [True, False])
def test_open_loop_ignores_data_in_the_burn_in(transport, x64):
    """Nothing is assimilated, so that those rows enter neither the state nor the score; the first row anchors."""
    recursion = Recursion(assimilate=False, transport=transport)
    model, (x, mask) = make_model("smooth"), make_data()
    reference = float(loss(model, x, mask, recursion))
    hidden = slice(1, 1 + BURN_IN)
    assert float(loss(model, x.at[:, hidden].add(10.0), mask, recursion)) == reference
    assert float(loss(model, x, mask.at[:, hidden].set(False), recursion)) == reference
    assert float(loss(model, x.at[:, 0].add(1.0), mask, recursion)) != reference
    assert float(loss(model, x.at[:, 1 + BURN_IN].add(1.0), mask.at[:, 1 + BURN_IN].set(True), recursion)) != reference


def test_filtered_burn_in_is_assimilated_but_not_scored(x64):
    model, (x, mask) = make_model("smooth"), make_data(missing=0.0)
    reference = float(loss(model, x, mask))
    # were the outlier scored, it would cost thousands; its influence through the state fades
    moved = float(loss(model, x.at[:, 1].add(100.0), mask))
    assert moved != reference
    terms = textbook_terms(model, x.at[:, 1].add(100.0), mask, model.embed(x[:, 0]), FILTER)
    assert terms[:, 0].min() > 1000.0
    assert moved == pytest.approx(terms[:, BURN_IN:].mean() / OBSERVED, rel=1e-9)


def test_burn_in_zero_scores_everything(x64):
    model, (x, mask) = make_model("smooth"), make_data(missing=0.0)
    terms = textbook_terms(model, x, mask, model.embed(x[:, 0]), FILTER)
    assert float(loss(model, x, mask, burn_in=0)) == pytest.approx(terms.mean() / OBSERVED, rel=1e-10)


@pytest.mark.parametrize("observation", ["projection", "general"])
def test_given_start_is_forced_onto_the_first_row(observation, x64):
    """z = zbar + B^+ (x - B zbar); entries of the first row that are missing leave zbar alone."""
    model, (x, mask) = make_model("smooth", observation), make_data(missing=0.0)
    mask = mask.at[0, 0, 1].set(False).at[1, 0].set(False)
    x = jnp.where(mask, x, jnp.nan)
    zbar = np.random.default_rng(0).standard_normal((WINDOWS, LATENT))
    B = matrix_of(model.observation)
    gap = np.where(mask[:, 0], x[:, 0] - zbar @ B.T, 0.0)
    starts = zbar + gap @ np.linalg.pinv(B).T
    expected = textbook_terms(model, x, mask, starts, FILTER)[:, BURN_IN:].mean() / OBSERVED
    assert float(loss(model, x, mask, start=jnp.asarray(zbar))) == pytest.approx(expected, rel=1e-10)


def test_missing_first_row_starts_at_the_mean_of_the_data_with_its_spread(x64):
    model, (x, mask) = make_model("smooth"), make_data(missing=0.0)
    x, mask = x.at[:, 0].set(jnp.nan), mask.at[:, 0].set(False)
    starts = model.embed(jnp.zeros_like(x[:, 0]))
    expected = textbook_terms(model, x, mask, starts, FILTER)[:, BURN_IN:].mean() / OBSERVED
    assert float(loss(model, x, mask)) == pytest.approx(expected, rel=1e-10)


@pytest.fixture
def reference_gradient(x64):
    """Loss and gradient of plain automatic differentiation, for a model that trains everything."""
    model, (x, mask) = make_model("smooth", "general"), make_data(rows=7)
    return model, x, mask, *value_and_gradient(model, x, mask, "autodiff")


def test_adjoint_is_autodiff_is_finite_differences_through_the_model(reference_gradient):
    """In core, shell and embedding: the shell acts through Gamma, Lambda and the first covariance at once."""
    model, x, mask, value, autodiff = reference_gradient
    ours, adjoint = value_and_gradient(model, x, mask, "adjoint")
    assert float(ours) == pytest.approx(float(value), rel=1e-13)
    for part in ("core", "shell", "embedding"):
        a, b = flat(getattr(adjoint, part)), flat(getattr(autodiff, part))
        assert np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=part)
    # B has no adjoint: it is trained by automatic differentiation, which is right in B too
    direction = random_direction(model, seed=3)
    difference = directional_differences(lambda m: loss(m, x, mask), model, direction)
    assert inner(autodiff, direction) == pytest.approx(difference, rel=1e-6)


def test_segments_change_memory_only(reference_gradient):
    model, x, mask, *_ = reference_gradient
    whole = value_and_gradient(model, x, mask, "adjoint")
    parts = value_and_gradient(model, x, mask, "adjoint", segment=2)
    assert float(parts[0]) == pytest.approx(float(whole[0]), rel=1e-13)
    np.testing.assert_allclose(flat(parts[1]), flat(whole[1]), rtol=1e-12, atol=1e-12)


def test_segment_must_divide_the_window(x64):
    model, (x, mask) = make_model("smooth"), make_data()
    with pytest.raises(ConfigError, match="segment = 2 does not divide the window of 7 steps"):
        window_nll(model, x, mask, FILTER, burn_in=BURN_IN, segment=2)


def test_junk_in_missing_entries_changes_neither_value_nor_gradient(reference_gradient):
    model, x, mask, *_ = reference_gradient
    mask = mask.at[1, 0, 0].set(False)  # in the anchoring row as well
    results = []
    for junk in (0.0, np.nan, np.inf, 1e30):
        result = value_and_gradient(model, jnp.where(mask, x, junk), mask, "autodiff")
        results.append(np.append(flat(result[1]), float(result[0])))
    assert np.isfinite(results[0]).all()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_windows_without_data_cost_nothing(x64):
    model, (x, mask) = make_model("smooth"), make_data()
    assert float(loss(model, x, jnp.zeros_like(mask))) == 0.0


def test_initial_belief_is_gamma(x64):
    model = make_model("smooth")
    belief = initial_belief(model, jnp.ones((2, LATENT)))
    np.testing.assert_array_equal(belief.covariance[1], np.diag(model.shell.process_variance()))
    assert belief.covariance.shape == (2, LATENT, LATENT)


@pytest.mark.parametrize("burn_in", [-1, 3, 8])
def test_a_window_with_nothing_to_score_is_an_error(burn_in):
    model = StateSpaceModel.create(Linear(jnp.eye(2), jnp.zeros(2)), 1, key=jax.random.key(0))
    x = jnp.zeros((1, 4, 1))
    with pytest.raises(ConfigError, match="burn_in"):
        window_nll(model, x, jnp.ones(x.shape, bool), Recursion(), burn_in=burn_in)


def test_the_adjoint_reaches_the_observation_map_of_a_window(x64):
    """Through the start of the window as well, where the map's pseudo-inverse embeds the first row."""
    B = LinearObservation(jnp.array([[1.0, 0.2]]), jnp.array([0.3]))
    model = StateSpaceModel.create(
        Linear(0.9 * jnp.eye(2), jnp.zeros(2)), 1, key=jax.random.key(0), observation=B, dtype=jnp.float64
    )
    x = jnp.linspace(0.0, 1.0, 6).reshape(1, 6, 1)
    mask = jnp.ones(x.shape, bool)

    def gradient(kind):
        return eqx.filter_grad(lambda m: window_nll(m, x, mask, Recursion(), burn_in=0, gradient=kind).loss)(model)

    ours, theirs = (flat(gradient(kind).observation) for kind in ("adjoint", "autodiff"))
    assert (theirs != 0).all()
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "objective", "transport", "train_core"),
    [
        ("kaffee", "filtered", True, True),
        ("blind", "filtered", False, True),
        ("core_collapse", "open_loop", True, True),
        ("noise_masking", "open_loop", False, True),
        ("frozen_core", "filtered", True, False),
    ],
)
def test_table_of_the_paper(name, objective, transport, train_core):
    method = get_method(name)
    assert dataclasses.astuple(method) == (objective, transport, train_core, "ekf")
    assert method.recursion == Recursion(assimilate=objective == "filtered", transport=transport)
    assert method.filter == Recursion(assimilate=True, transport=transport)
    assert method.trainable_parts == (("core", "shell") if train_core else ("shell",))


def test_the_table_has_no_other_rows():
    assert len(METHODS) == 5
    assert len(set(METHODS.values())) == 5


def test_names_are_forgiving_and_errors_helpful():
    assert get_method("Core-Collapse") is METHODS["core_collapse"]
    with pytest.raises(ConfigError, match=r"Unknown method 'kafee'. Did you mean 'kaffee'"):
        get_method("kafee")
    with pytest.raises(ConfigError, match="Allowed: kaffee, blind"):
        get_method("xyz")


def test_the_gradient_is_exact_here():
    assert 0.0 <= likelihood._gradient_error() < likelihood.GRADIENT_TOLERANCE


def test_facts_are_json_and_problems_are_told(monkeypatch):
    monkeypatch.setattr(likelihood, "_gradient_seconds", lambda: 0.01)
    monkeypatch.setattr(likelihood, "_gradient_error", lambda: 1e-12)
    facts, problems = likelihood.examine_installation()
    assert problems == []
    assert json.loads(json.dumps(facts)) == facts
    assert facts["gradient error (float64)"] == 1e-12
    assert "cpu" in facts["devices"].lower()


def test_a_wrong_gradient_is_a_problem_also_if_it_is_nan(monkeypatch):
    monkeypatch.setattr(likelihood, "_gradient_seconds", lambda: 0.01)
    for error in (1e-3, float("nan")):
        monkeypatch.setattr(likelihood, "_gradient_error", lambda error=error: error)
        assert "hand-derived gradient differs" in likelihood.examine_installation()[1][0]
