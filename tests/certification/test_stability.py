"""Fits with several seeds: their numbers are those of a certificate, and errors contain how far they lie apart."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from certification.problems import A, held_out_series, linear_model, reconstruct, series_of, simulated, train_series
from kaffee.certification.certificate import Certificate, CertificationSettings, certify
from kaffee.certification.check import check
from kaffee.certification.free_runs import Exponents, agreement
from kaffee.certification.stability import Candidate, compare_refits, widen_exponents
from kaffee.report.sections import lay_out_certificate, tabulate_refits, tabulate_rungs

SIZE = {"runs": 3, "steps": 400}
SETTINGS = CertificationSettings(num_starts=60, members=20, horizons=(1, 4), divergence_runs=3, divergence_steps=400)


def candidates():
    """The true model and two that are damped more."""
    models = [reconstruct(linear_model(factor * A)) for factor in (1.0, 0.95, 0.9)]
    models = [replace(model, provenance={"seed": seed}) for seed, model in enumerate(models)]
    return [Candidate(seed, "linear", 0.5 + seed, model) for seed, model in enumerate(models)]


@pytest.fixture(scope="module")
def found():
    refits = candidates()
    own = refits[0].reconstruction
    known = {"linear": own, "settings": SETTINGS, "refits": refits}
    stages = []
    return certify(own, train_series(), held_out_series(), watch=stages.append, **known), stages


def test_every_refit_has_the_numbers_of_a_check_and_of_free_runs(found):
    certificate, stages = found
    assert stages[-1] == "refits"
    stability = certificate.refits
    assert (stability.chosen, [each.seed for each in stability.refits]) == (0, [0, 1, 2])
    other = candidates()[2].reconstruction
    free = agreement(other, train_series(), held_out_series(), **SIZE)
    alone = check(other, held_out_series(), free=(free.core, free.exponents, free.num_rows), **SIZE)
    refit = stability.refits[2]
    assert (refit.nll, refit.coverage_90, refit.lambda_1) == (alone.nll, alone.coverage_90, alone.lambda_1)
    assert (refit.d_stsp_core, refit.d_h_core) == (alone.d_stsp_core, alone.d_h_core)
    assert (refit.d_stsp_noisy, refit.lost_noisy) == (free.stochastic.typical.d_stsp, free.stochastic.lost)
    own = certificate.checks["kaffee"]
    assert (stability.refits[0].nll, stability.refits[0].lambda_1) == (own.nll, own.lambda_1)


def test_errors_of_exponents_contain_the_spread(found):
    """The largest exponent of a linear core is the logarithm of its spectral radius."""
    exponents = found[0].agreement.exponents
    true = [math.log(factor * np.abs(np.linalg.eigvals(A)).max()) / 0.5 for factor in (1.0, 0.95, 0.9)]
    assert exponents.refits == 3
    assert exponents.errors[0] == pytest.approx(np.std(true, ddof=1), rel=0.1)


def test_means_and_spreads_leave_out_what_has_no_number(found):
    stability = found[0].refits
    means, spreads = stability.summarise()
    assert (means["validation"], spreads["validation"]) == (1.5, 1.0)
    broken = (stability.refits[0], *(each._replace(nll=math.nan, lost_core=None) for each in stability.refits[1:]))
    means, spreads = replace(stability, refits=broken).summarise()
    assert means["nll"] == stability.refits[0].nll
    assert math.isnan(spreads["nll"])
    assert math.isnan(spreads["lost_core"])


def test_they_are_stored_and_shown_and_older_certificates_can_be_read(found):
    certificate = found[0]
    values = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    again = Certificate.from_dict(values, certificate.arrays())
    assert again.refits.chosen == 0
    assert again.refits.refits[1].rung == "linear"
    table = tabulate_refits(again.refits)
    assert [row[0] for row in table.rows] == ["0 (kept)", "1", "2", "mean", "standard deviation"]
    page = lay_out_certificate(again).to_html()
    assert "The same recording fitted with several seeds" in page
    assert "Errors contain the spread over 3 fits" in page
    del values["refits"]
    del values["agreement"]["exponents"]["refits"]
    older = Certificate.from_dict(values, certificate.arrays())
    assert older.refits is None
    assert older.agreement.exponents.refits == 0
    assert "several seeds" not in lay_out_certificate(older).to_html()


def test_too_few_rows_for_free_runs_leave_the_rest():
    few, refits = series_of(simulated(60, 0)), candidates()[:2]
    stability, exponents = compare_refits(
        refits, 0, (check(refits[0].reconstruction, few, **SIZE), None), train_series(), few, **SIZE
    )
    assert exponents is None
    assert stability.refits[1].lost_core is None
    assert math.isnan(stability.refits[1].d_stsp_noisy)
    assert np.isfinite([stability.refits[1].nll, stability.refits[1].lambda_1]).all()


def test_ranks_that_one_refit_has_alone_keep_their_error():
    own = Exponents(np.array([1.0, -1.0]), np.array([0.3, 0.2]), 1.0, 0.3, 2.0, 10)
    short = own._replace(values=np.array([1.0 + 0.4 * 2**0.5]), sum_positive=1.0 + 0.4 * 2**0.5)
    wide = widen_exponents(own, [own, short])
    np.testing.assert_allclose(wide.errors, [0.5, 0.2])
    assert wide.sum_positive_error == pytest.approx(0.5)
    assert widen_exponents(own, [own]) is own


def test_rungs_are_a_table_also_where_there_are_no_free_runs():
    rung = {"latent_dim": 5, "nll": [0.1, None], "coverage_90": [0.9, 0.8]}
    whole = {**rung, "latent_dim": 20, "lost": 1, "d_stsp": 0.3, "d_stsp_noisy": 0.2}
    table = tabulate_rungs({"chosen": "alrnn", "horizons": [1, 4], "linear": rung, "alrnn": whole})
    assert table.columns == ("on held-back rows", "linear model", "AL-RNN (kept)")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["latent size"] == [5, 20]
    assert rows["NLL, 4 steps"] == [None, None]
    assert rows["coverage of 90 % bands, 1 step"] == [0.9, 0.9]
    assert rows["d_stsp with noise"] == [None, 0.2]
    alone = tabulate_rungs({"chosen": "linear", "horizons": [1], "linear": {"latent_dim": 2, "nll": [0.0]}})
    assert alone.columns[1:] == ("linear model (kept)",)
