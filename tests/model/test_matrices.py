"""Structured weights against the same matrices as arrays: products, gradients, cost, and what settings may say."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import OBSERVED, array, flat, make_belief, make_core, make_data, make_model

from kaffee.errors import ConfigError
from kaffee.filtering.filters import parse_filter
from kaffee.filtering.likelihood import window_nll
from kaffee.filtering.recursion import Recursion
from kaffee.model import matrices
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Core
from kaffee.model.matrices import BandedMatrix, LowRankMatrix
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel

SIZE = 7
rng = np.random.default_rng(0)
MATRICES = {
    "lowrank": lambda: LowRankMatrix(*jnp.asarray(rng.standard_normal((2, SIZE, 3)))),
    "banded:1": lambda: BandedMatrix(jnp.asarray(rng.standard_normal((3, SIZE)))),
    # As wide as a band can be: both corners are in it.
    "banded:6": lambda: BandedMatrix(jnp.asarray(rng.standard_normal((13, SIZE)))),
}


def by_diagonals(bands):
    """Build the matrix entry by entry."""
    reach, dense = len(bands) // 2, np.zeros((bands.shape[1],) * 2)
    for i in range(len(dense)):
        for j in range(max(0, i - reach), min(len(dense), i + reach + 1)):
            dense[i, j] = bands[reach + j - i, i]
    return dense


@pytest.mark.parametrize("reach", [1, 3, 6])
def test_a_band_has_the_entries_of_its_diagonals(reach, x64):
    bands = rng.standard_normal((2 * reach + 1, SIZE))
    np.testing.assert_array_equal(BandedMatrix(jnp.asarray(bands)).dense(), by_diagonals(bands))


@pytest.mark.parametrize("kind", MATRICES)
def test_products_are_those_of_the_array(kind, x64):
    for W in (original := MATRICES[kind](), original.T):
        dense = np.asarray(W.dense())
        for shape in ((), (4,)):
            x = jnp.asarray(rng.standard_normal((SIZE, *shape)))
            np.testing.assert_allclose(W @ x, np.tensordot(dense, x, 1), rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(x.T @ W, np.asarray(x.T) @ dense, rtol=1e-12, atol=1e-13)
        d = jnp.asarray(rng.uniform(0.1, 1.0, (4, SIZE)))
        variances = [np.diag(dense @ np.diag(row) @ dense.T) for row in np.asarray(d)]
        np.testing.assert_allclose(matrices.transported_variances(W, d), variances, rtol=1e-12)
        np.testing.assert_allclose(matrices.diagonal(W), np.diag(dense), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(original.T.dense(), original.dense().T, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", MATRICES)
def test_the_cotangent_is_that_of_the_dense_one_on_the_entries_there_are(kind, x64):
    W, (left, right) = MATRICES[kind](), jnp.asarray(rng.standard_normal((2, 5, SIZE)))
    expected = jax.grad(lambda W: jnp.sum((left.T @ right) * W.dense()))(W)
    np.testing.assert_allclose(flat(matrices.cotangent(W, left, right)), flat(expected), rtol=1e-12, atol=1e-13)
    automatic = jax.grad(lambda W: jnp.sum(left * (W @ right.T).T))(W)
    np.testing.assert_allclose(flat(automatic), flat(expected), rtol=1e-12, atol=1e-13)
    if isinstance(W, BandedMatrix):
        reach = len(W.bands) // 2
        for o, band in enumerate(np.asarray(expected.bands), start=-reach):
            ends = np.pad(np.diag(left.T @ right, o), (max(0, -o), max(0, o)))
            np.testing.assert_allclose(band, ends, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("spec", ["ekf", "lowrank:5", "moments", "etkf:8"])
def test_a_banded_core_trains_as_the_dense_one_with_zeros(spec, x64):
    """Loss and gradient by every array of the model, W's on the band; the default has a gradient of its own."""
    model, (x, mask) = make_model("banded"), make_data()
    dense = eqx.tree_at(lambda m: m.core.W, model, model.core.W.dense())
    recursion = Recursion(filter=parse_filter(spec))
    loss = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: window_nll(m, x, mask, recursion, burn_in=1).loss))
    (value, ours), (expected, theirs) = loss(model), loss(dense)
    assert float(value) == pytest.approx(float(expected), rel=1e-10)
    reach, W_bar = len(ours.core.W.bands) // 2, np.asarray(theirs.core.W)
    found = by_diagonals(np.asarray(ours.core.W.bands))
    i, j = np.indices(W_bar.shape)
    np.testing.assert_allclose(found, np.where(np.abs(i - j) <= reach, W_bar, 0.0), rtol=1e-8, atol=1e-8)
    ours, theirs = (eqx.tree_at(lambda m: m.core.W, each, None) for each in (ours, theirs))
    np.testing.assert_allclose(flat(ours), flat(theirs), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["banded", "lowrank"])
def test_moments_of_a_gaussian_through_a_structured_core(kind, x64):
    core, belief = make_core(kind), make_belief()
    dense = eqx.tree_at(lambda c: c.W, core, core.W.dense())
    for ours, expected in zip(core.propagate_gaussian(*belief), dense.propagate_gaussian(*belief), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)
    z = jnp.asarray(rng.standard_normal((4, core.latent_dim)))
    np.testing.assert_allclose(core.stepper()(z), Core.stepper(core)(z), rtol=1e-12, atol=1e-13)


def operations(structure, size):
    """Count floating-point operations of the loss and its gradient through a low-rank filter, without compiling it."""
    core = ALRNN(array(np.ones(size), "f4"), matrices.blank(size, structure), array(np.ones(size), "f4"), size // 2)
    shell = Shell.from_std(np.ones(size), np.ones(OBSERVED), np.float32)
    embedding = array(np.ones((size, OBSERVED)), "f4")
    model, (x, mask) = StateSpaceModel(core, shell, Projection(OBSERVED, size), embedding), make_data(dtype="f4")
    recursion = Recursion(filter=parse_filter("lowrank:4"))
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: window_nll(m, x, mask, recursion, burn_in=1).loss))
    return gradient.lower(model).lowered.cost_analysis()["flops"]


@pytest.mark.parametrize(("structure", "power"), [("banded:2", 1), ("lowrank:4", 1), (None, 2)])
def test_training_a_structured_core_is_linear_in_its_size(structure, power):
    """Twice the latents: twice the operations with a structure, and nearly four times as many without one."""
    ratio = operations(structure, 2000) / operations(structure, 1000)
    assert 1.9 < ratio < 2.1 if power == 1 else ratio > 3.5


def test_drawn_matrices_have_the_entries_that_they_say():
    for structure in (None, "lowrank:8", "banded:8"):
        core = ALRNN.create(200, 100, key=jax.random.key(0), structure=structure)
        W = np.asarray(matrices.as_dense(core.W))
        i, j = np.indices(W.shape)
        inside = np.abs(i - j) <= 8 if structure == "banded:8" else np.ones_like(W, bool)
        assert (W[~inside] == 0.0).all()
        # Five standard errors; entries of a product of factors are not independent, 2 M k numbers are.
        assert abs(W[inside].std() - 0.01) < 5 * 0.01 / np.sqrt(min(inside.sum(), 3200))
        assert matrices.describe_structure(core.W) == structure


@pytest.mark.parametrize(
    "text", ["banded", "banded:0", "banded:65", "banded:x", "lowrank:0", "lowrank:10001", "lowrank", "diagonal:3", ""]
)
def test_a_misspelt_structure_is_refused(text):
    with pytest.raises(ConfigError, match=r"core.structure is lowrank:K.*or banded:K.*not "):
        matrices.parse_structure(text)


def test_a_band_beyond_the_matrix_is_refused():
    with pytest.raises(ConfigError, match="banded:5 reaches beyond 5 latent coordinates; K is at most 4"):
        ALRNN.create(5, 2, key=jax.random.key(0), structure="banded:5")
