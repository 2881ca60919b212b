"""What is advised: less freedom for what was learnt by heart, more for what was not learnt."""

from types import SimpleNamespace

import numpy as np
import pytest

from kaffee.certification.certificate import Losses
from kaffee.certification.remedies import suggest_remedies
from kaffee.certification.verdicts import Verdict


def certificate(*failed, nis=1.0, nll=0.0, trained=None, weights=100, core=None, prior=None, rungs=None):
    """What a certificate says that remedies look at."""
    names = ("calibration", "whiteness", "skill", "spread", "stochastic run", "core")
    losses = () if trained is None else (Losses("Adaptation", "NLL", np.arange(20), np.full(20, trained)),)

    def run(d_stsp):
        return None if d_stsp is None else SimpleNamespace(typical=SimpleNamespace(d_stsp=d_stsp))

    return SimpleNamespace(
        verdicts=[Verdict(1, name, "fail" if name in failed else "pass", 1.0, "", "") for name in names],
        residuals=SimpleNamespace(nis=nis, nis_band=(0.9, 1.1), nll_standard=nll),
        agreement=None if core is None else SimpleNamespace(core=run(core), prior_core=run(prior)),
        training=losses,
        page={} if rungs is None else {"rungs": rungs},
        about={"weights": weights, "train": {"steps": 300}, "columns": ["a", "b"]},
    )


def test_all_is_well():
    assert suggest_remedies(certificate(nis=5.0, nll=4.0, trained=0.0, weights=10_000)) == []


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        ({"nll": 2.4, "trained": -1.5}, "NLL -1.50 on training windows, 2.40 held out"),
        ({"nis": 7.0, "weights": 5000}, "5000 weights for 600 training readings; bands too narrow"),
        ({"nis": 7.0, "nll": 2.4, "trained": -1.5, "weights": 5000}, "bands too narrow on held-out rows"),
    ],
)
@pytest.mark.parametrize("failed", [("calibration",), ("whiteness", "skill"), ("calibration", "whiteness", "core")])
def test_overfitting_is_not_answered_with_a_larger_core(signs, words, failed):
    (advice,) = suggest_remedies(certificate(*failed, **signs, core=1.0, prior=1.0))
    assert words in advice
    assert "smaller core" in advice
    assert "makes it worse" in advice


def test_what_was_not_learnt_needs_more():
    (bands,) = suggest_remedies(certificate("calibration", nis=1.5, nll=0.1, trained=0.0))
    assert "too narrow: more updates of the shell" in bands
    wide, more = suggest_remedies(certificate("calibration", "whiteness", nis=0.5, nll=0.1, trained=0.0, weights=9999))
    assert "too wide" in wide
    assert "a larger core" in more


def test_free_runs():
    assert "frozen_core" in suggest_remedies(certificate("core", core=3.0, prior=1.0))[0]
    assert "more pretraining" in suggest_remedies(certificate("core", core=1.0, prior=1.0))[0]
    assert "--no-shell" in suggest_remedies(certificate("stochastic run", core=1.0))[0]


@pytest.mark.parametrize(
    ("rungs", "other"), [({}, "--rung auto tries"), ({"alrnn": {"latent_dim": 20}}, "--rung alrnn keeps")]
)
def test_a_linear_model_is_not_advised_by_what_was_trained_beside_it(rungs, other):
    """The losses are of an AL-RNN that was not kept."""
    every = ("calibration", "whiteness", "skill", "core", "stochastic run")
    signs = {"nis": 7.0, "nll": 2.4, "trained": -1.5, "weights": 5000, "core": 3.0, "prior": 1.0}
    bands, more, free = suggest_remedies(certificate(*every, **signs, rungs={"chosen": "linear", **rungs}))
    assert "too narrow" in bands
    assert "more rows" in bands
    assert other in more
    assert "comes to rest without noise" in free
    for wrong in ("by heart", "pretrain", "latent_dim", "adaptation.", "frozen_core"):
        assert wrong not in f"{bands} {more} {free}"
    assert suggest_remedies(certificate(**signs, rungs={"chosen": "linear", **rungs})) == []
    assert "by heart" in suggest_remedies(certificate(*every, **signs, rungs={"chosen": "alrnn", **rungs}))[0]


def test_without_one_step_predictions():
    found = certificate("core", core=1.0)
    found.residuals = None
    assert "more pretraining" in suggest_remedies(found)[0]
