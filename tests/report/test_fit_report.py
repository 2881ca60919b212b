"""The report of a fit, also of fits that went wrong."""

import base64
import json
import re
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from small import gappy_fit, rotation

from kaffee.certification.certificate import CertificationSettings
from kaffee.data.series import Series
from kaffee.report.fit_report import report_fit
from kaffee.systems.simulation import Truth
from kaffee.tables import Table

SMALL = CertificationSettings(num_starts=10, members=10, horizons=(1, 2), divergence_runs=2, divergence_steps=50)
NAMES = ("<script>alert(1)</script>", "$\\frac{ [/red]")


def changed(fit, *, model=None, columns=None, test=None, losses=None):
    """The same fit with some things exchanged in its last stage."""
    found = fit.fitted.reconstruction
    found = replace(found, model=model or found.model, columns=columns or found.columns)
    stage = fit.fitted._replace(reconstruction=found, losses=fit.fitted.losses if losses is None else losses)
    train, test = (replace(part, columns=found.columns) for part in (fit.train, fit.test if test is None else test))
    return replace(fit, fitted=stage, train=train, test=test)


def page_of(fit, **options):
    report = report_fit(fit, title="<b>title</b>", command="kaffee fit 'x & y.csv'", certification=SMALL, **options)
    return report, report.page.to_html()


@pytest.fixture(scope="module")
def plain():
    return page_of(changed(gappy_fit(), columns=NAMES))


def test_all_sections_are_there_with_their_figures(plain):
    report, page = plain
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles[0] == "Result"
    assert titles[-5:] == ["What could not be computed", "Filtering", "Training", "Settings", "Provenance"]
    assert set(report.pictures) == {"attractor", "filtering", "training"}
    images = re.findall("src='data:image/png;base64,(.*?)'", page)
    assert len(images) == 2
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
    assert set(report.checks) == {"prior", "kaffee"}


def test_user_texts_are_escaped_and_nothing_is_loaded(plain):
    page = re.sub("base64,[^']*", "", plain[1])
    assert "<b>title" not in page
    assert "&lt;b&gt;title" in page
    assert "x &amp; y.csv" in page
    assert "<script>alert" not in page
    assert "http://" not in page
    assert "https://" not in page


def test_it_says_where_it_came_from(plain):
    page = plain[1]
    assert gappy_fit().fitted.reconstruction.provenance["fingerprint"] in page
    assert "<dt>seed</dt><dd>0</dd>" in page
    assert "<dt>jax</dt>" in page
    assert "Pretraining: 12 updates, 0 skipped. Adaptation: 6 updates, 0 skipped." in page


def test_the_table_stands_in_the_page_and_is_json(plain):
    report, page = plain
    assert report.table.to_html() in page
    rows = report.table.to_json()
    assert [row["model"] for row in rows] == ["prior", "kaffee"]
    assert json.dumps(rows, allow_nan=False)
    assert rows[0]["diverged"] == "never"


def test_with_the_truth_there_is_a_row_for_a_perfect_model():
    states = rotation(400, noise=0.0)
    report, page = page_of(gappy_fit(), truth=Truth(states[:200], states[200:], rotation(18), 0.5), num_steps=200)
    last = report.table.to_json()[-1]
    assert last["model"] == "truth again"
    assert last["lambda_1"] == 0.5
    assert last["nll"] is None
    assert "200 steps of the clean states" in page


def test_a_model_that_explodes_is_a_row_and_not_a_crash():
    model = gappy_fit().fitted.reconstruction.model
    wild = model.replace(core=eqx.tree_at(lambda c: c.A, model.core, jnp.full(4, -5.0)))
    report, page = page_of(changed(gappy_fit(), model=wild, losses=np.full(6, np.nan, np.float32)))
    row = report.table.to_json()[1]
    assert isinstance(row["diverged"], int)
    assert row["lambda_1"] is None
    assert row["d_stsp"] is None
    assert row["d_h"] is None
    assert page.count("<img") == 2
    assert ">–<" in page
    assert Table(**report.table.to_record()).to_html() == report.table.to_html()
    assert report.certificate.axes[3] in ("fail", "unknown")


def test_few_held_out_rows_leave_distances_out_and_say_why(plain):
    report, page = plain
    assert [(row["d_stsp"], row["d_h"]) for row in report.table.to_json()] == [(None, None)] * 2
    assert "or there are not 200 complete rows that vary to compare it with" in page


def test_hardly_any_held_out_data_leave_out_a_figure():
    report, page = page_of(changed(gappy_fit(), test=Series.from_arrays(rotation(1), columns=["left", "right"])))
    assert "<h2>Filtering" not in page
    assert page.count("<img") == 1
    assert set(report.certificate.axes.values()) == {"unknown"}
    assert report.table.to_json()[0]["d_h"] is None


def test_the_longest_held_out_recording_is_shown_also_without_a_complete_row():
    values = rotation(18)
    values[::2, 0] = values[1::2, 1] = np.nan
    test = Series.from_arrays([rotation(2), values, rotation(3)], columns=["left", "right"])
    report, page = page_of(changed(gappy_fit(), test=test))
    assert page.count("<img") == 2
    assert report.table.to_json()[0]["d_stsp"] is None
    assert np.isfinite(report.checks["kaffee"].nll)
