"""The proxies of G_tan beside it: for a model that is the truth, and in the committed results."""

from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from certification.oscillator import oscillator, simulated, true_model
from kaffee.certification.fidelity import Protocol, Reference
from kaffee.certification.tangents import try_candidates
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.measurements import _compare_proxies
from kaffee.paper.recipe import load_recipe

RESULTS = Path(__file__).resolve().parents[2] / "results"
SEEDS = range(5)


@pytest.fixture(scope="module")
def reference():
    """The oscillator as a system whose truth is known, in units that need no scaling."""
    states, seen = simulated(5000)
    system = SimpleNamespace(jacobian=jax.jacfwd(oscillator), dt=0.1)
    return Reference(system, Series.from_arrays(seen[:4000]), Scaler.identity(2), states[4000:], seen[4000:], states)


@pytest.fixture(scope="module")
def measured(reference):
    """G_tan and its proxies of the true model, with transport and without."""
    model = true_model()
    protocol = Protocol(warm_up=20, grounding_steps=900, spectrum_horizons=(2,))
    candidates = try_candidates(reference.train.recordings)
    return {
        method: _compare_proxies(
            Reconstruction(model, reference.scaler, method=method), reference, protocol, candidates
        )
        for method in ("kaffee", "blind")
    }


def test_the_proxy_follows_g_tan(measured):
    true, blind = measured["kaffee"], measured["blind"]
    assert true["g_tan_within"] > 0.5
    # What 4000 noisy rows say about tangents bounds what the proxy can say about a model.
    assert true["proxy_validity"] > 0.7
    assert abs(true["proxy_tan"] - true["proxy_validity"] * true["g_tan"]) < 0.1
    assert abs(true["proxy_tan_within"] - true["proxy_validity_within"] * true["g_tan_within"]) < 0.1
    assert true["proxy_method"].startswith("local")  # the oscillator is cubic
    assert blind["g_tan_within"] == blind["proxy_tan_within"] == 0.0
    assert true["spread_rank_within"] > blind["spread_rank_within"] == 0.0


# --- committed results: nothing is computed ---


def records(recipe, system=""):
    """By seed: the records of kaffee, frozen core and blind."""
    store = ResultStore(RESULTS, load_recipe(recipe))
    rows = ("kaffee", "frozen_core", "blind")
    found = [[store.read(Cell(row, seed, system)) for row in rows] for seed in SEEDS]
    assert all(record is not None and record["error"] is None for seed in found for record in seed)
    return found


@pytest.mark.parametrize("metric", ["proxy_tan", "proxy_tan_within", "proxy_tan_local", "proxy_tan_within_local"])
def test_the_proxy_orders_methods_on_lorenz96_as_g_tan_does(metric):
    for kaffee, frozen, blind in records("proxies"):
        assert kaffee["g_tan"] > frozen["g_tan"] > blind["g_tan"]
        assert kaffee[metric] > frozen[metric] + 0.1 > blind[metric] + 0.2


@pytest.mark.parametrize("system", ["lorenz63", "chua", "aizawa"])
def test_the_proxy_tells_transport_from_none_elsewhere(system):
    for *transported, blind in records("proxies_systems", system):
        for record in transported:
            assert record["proxy_tan_within"] > 0.1 > blind["proxy_tan_within"] == 0.0
            assert record["proxy_tan_within_local"] > 0.1
        # Which of the two is better grounded differs between seeds and systems; the proxy says so every time.
        (kaffee, frozen), better = transported, transported[0]["g_tan"] > transported[1]["g_tan"]
        assert (kaffee["proxy_tan"] > frozen["proxy_tan"]) == better
        assert (kaffee["proxy_tan_local"] > frozen["proxy_tan_local"]) == better


def test_spread_tells_transport_from_none_but_not_good_from_better():
    for kaffee, frozen, blind in records("proxies"):
        assert min(kaffee["spread_rank_within"], frozen["spread_rank_within"]) > 0.1
        assert blind["spread_rank_within"] == 0.0
        assert blind["spread_ratio_within"] is None
