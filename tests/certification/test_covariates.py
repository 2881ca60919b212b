"""What inputs bring, in a certificate: a fit with inputs by the command line, its line, its section, its folder."""

import numpy as np
import pandas as pd
import pytest
from shortening import shorten_fits
from typer.testing import CliRunner

from kaffee.certification.certificate import Certificate, CertificationSettings, certify
from kaffee.cli.main import app
from kaffee.fitting.run import Run, recorded_inputs
from kaffee.report.sections import lay_out_certificate

SMALL = CertificationSettings(num_starts=60, members=8, horizons=(1, 4), divergence_runs=3, divergence_steps=60)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """x' = 0.9 x + u + noise of 0.2, u of variance 1: without the input the noise of a step is five times larger."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("driven")
    u, x = rng.standard_normal(1300), np.zeros(1300)
    for t in range(1, 1300):
        x[t] = 0.9 * x[t - 1] + u[t] + 0.2 * rng.standard_normal()
    pd.DataFrame({"t": np.arange(1300), "x": x, "stim": u}).to_csv(folder / "data.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        shorten_fits(patch.setattr)
        words = ["fit", folder / "data.csv", "--inputs", "stim", "--rung", "linear", "--no-certify", "-q", "-o"]
        done = CliRunner().invoke(app, [str(word) for word in (*words, folder / "run")])
    assert done.exit_code == 0, done.exception
    return Run.open(folder / "run")


@pytest.fixture(scope="module")
def certificate(run):
    fit = run.fit
    with pytest.MonkeyPatch.context() as patch:
        shorten_fits(patch.setattr)
        model = fit.fitted.reconstruction
        return certify(model, fit.train, fit.test, linear=fit.linear.reconstruction, settings=SMALL)


def test_a_run_keeps_its_inputs(run):
    assert run.model.inputs == ("stim",)
    assert run.loaded.series.columns == ("x",)
    assert recorded_inputs(run.path, run.model).num_steps == 1040


def test_the_certificate_says_what_inputs_bring(certificate):
    gain = certificate.inputs
    assert gain.names == ("stim",)
    assert [row.horizon for row in gain.model] == [1, 4]
    # log of the ratio of standard deviations, sqrt(1 + 0.04) / 0.2, by theory; 260 rows: standard error 0.06
    first = gain.linear[0]
    assert first.gain == pytest.approx(np.log(np.sqrt(1.04) / 0.2), abs=0.25)
    assert first.gain == pytest.approx(first.nll_without - first.nll_with)
    assert first.rmse_without > 3.0 * first.rmse_with
    # One that does not know that it lacks them is worse still: (1 + 0.04) / (2 * 0.04) nats of squared errors.
    assert gain.model[0].gain > 2.0 * first.gain
    assert gain.describe().startswith("The inputs stim bring ")
    assert "over one fitted without inputs" in gain.describe()


def test_free_runs_are_driven_by_recorded_inputs(certificate):
    free = certificate.agreement
    assert free.core.lost == 0
    assert free.core.typical.d_stsp < 0.2 * free.at_rest.d_stsp


def test_it_is_stored_and_shown(certificate):
    back = Certificate.from_dict(certificate.to_dict(), certificate.arrays())
    assert back.inputs.describe() == certificate.inputs.describe()
    page = lay_out_certificate(back)
    section = next(each for each in page.sections if each.title == "Inputs")
    assert len(section.tables[0].rows) == 4
