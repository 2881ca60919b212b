"""What the figures of Table 1 show is what the cells hold; nothing is dropped silently."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from typer.testing import CliRunner

from kaffee.cli.main import app
from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.figures import drawing as make
from kaffee.paper.figures import lorenz96
from kaffee.paper.figures.drawing import FORMATS, make_figures
from kaffee.paper.figures.lorenz96 import (
    _METRICS,
    _PAPER_OFFSET,
    _bootstrap_band,
    _compare_spreads,
    _draw_results,
    _draw_spectrum,
    _draw_taxonomy,
    _entropy_panel,
    _exponents_panel,
    _metric_panel,
    _read_rows,
    _read_true_exponents,
)
from kaffee.paper.figures.rows import Spread
from kaffee.paper.recipe import load_recipe
from kaffee.report.style import COLOURS

from .fake import HORIZONS, LAMBDAS, diverged_core, fill, values

TITLES = ["KAFFEE", "No transport", "OL tied", "OL no transport", "Frozen core", "Prior"]
METHODS = ["kaffee", "blind", "core_collapse", "noise_masking", "frozen_core", "prior"]
NAMES = ["taxonomy", "l96_forecast_skill_spectrum", "l96_forecast_skill_spectrum_filtered", "l96_results"]


@pytest.fixture
def store(tmp_path):
    """Room for five seeds of the paper's rows of Table 1, at the sizes of its smoke preset."""
    recipe = load_recipe("table1", "smoke")
    rows = tuple(row for row in recipe.rows if not row.name.endswith("_plus"))
    return ResultStore(tmp_path, replace(recipe, num_seeds=5, rows=rows))


@pytest.fixture
def axis():
    return Figure().subplots()


@pytest.fixture
def no_models(monkeypatch):
    monkeypatch.setattr(lorenz96, "assimilate_test_data", lambda store, rows, say: None)


def robust_error(found):
    low, high = np.quantile(found, [0.25, 0.75])
    return 0.929 * (high - low) / np.sqrt(len(found))


def all_medians(sample):
    """Of every resample with replacement, not of some drawn ones."""
    return np.median(list(product(sample, repeat=len(sample))), axis=1)


def notes(axis):
    return [text.get_text() for text in axis.texts]


def points(axis):
    """(x, y, x error, face colour) of every marker with an error bar."""
    found = []
    for line, _, (bar,) in axis.containers:
        (low, _), (high, _) = bar.get_segments()[0]
        x, y = line.get_xdata()[0], line.get_ydata()[0]
        found.append((x, y, (high - low) / 2, to_hex(line.get_markerfacecolor())))
    return found


# The bootstrap.


def test_a_band_is_that_of_all_resamples():
    sample = np.array([0.0, 1.0, 3.0, 7.0])
    assert _bootstrap_band(sample, level=0.5) == tuple(np.quantile(all_medians(sample), [0.25, 0.75]))


def test_the_band_of_one_seed_is_its_value_and_of_more_is_repeatable():
    assert _bootstrap_band(np.array([2.5])) == (2.5, 2.5)
    assert np.isnan(_bootstrap_band(np.array([]))).all()
    sample = np.random.default_rng(0).standard_normal(20)
    assert _bootstrap_band(sample) == _bootstrap_band(sample)
    assert np.subtract(*_bootstrap_band(sample, level=0.5)[::-1]) < np.subtract(*_bootstrap_band(sample)[::-1])


# Rows.


def test_rows_have_one_order_and_look(store):
    fill(store)
    rows = _read_rows(store)
    assert [row.title for row in rows] == TITLES
    assert [row.colour for row in rows] == [COLOURS[method] for method in METHODS]
    assert len({row.marker for row in rows}) == len({row.colour for row in rows}) == len(rows)


def with_arm(store):
    """The same recipe with one more row, of the arm "plus"."""
    more = replace(store.recipe.row("kaffee"), name="kaffee_plus", reproduces=False)
    return replace(store, recipe=replace(store.recipe, rows=(*store.recipe.rows, more)))


def test_an_arm_is_drawn_apart_and_with_the_prior(store):
    store = with_arm(store)
    fill(store)
    assert [row.row.name for row in _read_rows(store)] == METHODS
    assert [row.row.name for row in _read_rows(store, "plus")] == ["kaffee_plus", "prior"]
    with pytest.raises(ConfigError, match=r"Unknown arm 'pluss'\. Did you mean 'plus'"):
        _read_rows(store, "pluss")


# Panels a to f.


@pytest.mark.parametrize("metric", _METRICS)
def test_metrics_are_medians_with_errors_beside_the_paper(store, axis, metric):
    fill(store, changes={("kaffee", 1): {metric: None}, ("kaffee", 3): {metric: None}})
    rows = _read_rows(store)
    _metric_panel(axis, rows, metric, "title")
    expected, dots, has_shell_metric = [], [], metric.endswith("_core")
    for y, row in enumerate(rows):
        found = [value for value in values(store, row.row.name, metric) if value is not None]
        dots.append(found)
        if found:
            expected.append((np.median(found), y, robust_error(found), row.colour.lower()))
        if metric in row.row.paper:
            paper, error = row.row.paper[metric]
            expected.append((paper, y + _PAPER_OFFSET, error, "#ffffff"))
    got = points(axis)
    assert [point[3] for point in got] == [point[3] for point in expected]
    np.testing.assert_allclose([p[:3] for p in got], [p[:3] for p in expected], rtol=1e-6, atol=1e-12)
    drawn = [line.get_xdata().tolist() for line in axis.lines if line.get_gid() == "seeds"]
    assert drawn == dots
    assert notes(axis) == ["2 of 5 diverged", *([] if has_shell_metric else ["no shell"])]
    assert [label.get_text() for label in axis.get_yticklabels()] == TITLES


def test_a_row_that_always_diverged_is_named(store, axis):
    fill(store, changes={("core_collapse", seed): diverged_core() for seed in range(5)})
    rows = _read_rows(store)
    _metric_panel(axis, rows, "d_stsp_core", "title")
    assert notes(axis) == ["5 of 5 diverged"]
    assert len(points(axis)) == 2 * len(rows) - 1


@pytest.mark.parametrize(("outlier", "scale"), [(1.0, "linear"), (500.0, "log")])
def test_wide_ranges_are_logarithmic(store, axis, outlier, scale):
    fill(store, changes={("core_collapse", 0): {"d_stsp_core": outlier}})
    _metric_panel(axis, _read_rows(store), "d_stsp_core", "title")
    assert axis.get_xscale() == scale


def test_exponents_are_medians_with_bands_beside_the_truth(store, axis):
    fill(store, changes={("kaffee", 2): diverged_core()})
    _exponents_panel(axis, _read_rows(store), LAMBDAS, "title")
    lines = {line.get_label(): line for line in axis.lines}
    np.testing.assert_array_equal(lines["Truth"].get_ydata(), LAMBDAS[:6])
    spectra = [found for found in values(store, "kaffee", "extra", "exponents_core") if found]
    assert len(spectra) == 4
    median = np.median(spectra, axis=0)[:6]
    np.testing.assert_allclose(lines["KAFFEE"].get_ydata(), median, rtol=1e-12)
    error = np.array([robust_error(column) for column in np.transpose(spectra)])[:6]
    band = axis.collections[0].get_paths()[0].vertices
    for i in range(6):
        edges = band[band[:, 0] == i + 1, 1]
        np.testing.assert_allclose([edges.min(), edges.max()], [median[i] - error[i], median[i] + error[i]])
    assert notes(axis) == []


def test_collapsed_spectra_are_named_instead_of_flattening_the_others(store, axis):
    fill(store, changes={("core_collapse", s): {"extra__exponents_core": [-9.0] * 8} for s in range(5)})
    _exponents_panel(axis, _read_rows(store), LAMBDAS, "title")
    assert axis.get_ylim()[0] == -LAMBDAS[0]
    assert notes(axis) == ["$\\lambda_1$ below the axis:\nOL tied −9.0"]


def test_the_entropy_stands_beside_the_true_one(store, axis):
    fill(store)
    _entropy_panel(axis, _read_rows(store), LAMBDAS, "h")
    h = LAMBDAS[:6].sum()
    assert axis.lines[-1].get_xdata() == [h, h]
    assert f"{h:.2f}" in axis.get_title(loc="left") + axis.get_title()
    np.testing.assert_allclose(points(axis)[0][0], np.median(values(store, "kaffee", "extra", "h_core")))


def test_the_panels_share_one_figure(store):
    fill(store)
    figure = _draw_results(_read_rows(store), LAMBDAS, None)
    assert [axis.get_title(loc="left")[0] for axis in figure.axes] == list("abcdefg")
    assert notes(figure.axes[-1]) == ["no trained model at hand"]


# The forecast-skill spectrum.


@pytest.mark.parametrize("start", ["embedding", "filtered"])
def test_the_spectrum_is_medians_with_bootstrap_bands(store, start):
    fill(store)
    figure = _draw_spectrum(_read_rows(store), start)
    assert len(figure.axes) == 3
    for axis, path in zip(figure.axes, [(start, "nll"), (start, "crps"), ("g_tan",)], strict=True):
        lines = [line for line in axis.lines if line.get_label() in TITLES]
        assert [line.get_label() for line in lines] == TITLES[:5]
        for method, line, band in zip(METHODS, lines, axis.collections, strict=False):
            np.testing.assert_allclose(line.get_xdata(), np.array(HORIZONS) / 15)
            found = [values(store, method, "extra", "spectrum", str(h), *path) for h in HORIZONS]
            np.testing.assert_allclose(line.get_ydata(), np.median(found, axis=1))
            vertices = band.get_paths()[0].vertices
            for h, sample in zip(HORIZONS, found, strict=True):
                edges = vertices[np.isclose(vertices[:, 0], h / 15), 1]
                # The quantiles are those of one of the five values, so that drawn resamples hit them exactly.
                expected = np.quantile(all_medians(sample), [0.025, 0.975])
                np.testing.assert_allclose([edges.min(), edges.max()], expected)
        assert [label.get_text() for label in axis.get_xticklabels()] == ["0.13", "0.27", "0.60", "1.00"]


def test_the_spectrum_counts_seeds_without_scores(store):
    broken = {str(h): {"embedding": {"nll": None, "crps": None}, "g_tan": None} for h in HORIZONS}
    everywhere = {("blind", seed): {"extra__spectrum": broken} for seed in range(5)}
    fill(store, changes={("kaffee", 0): {"extra__spectrum": broken}, **everywhere})
    (legend,) = _draw_spectrum(_read_rows(store)).legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[:3] == ["KAFFEE (1 of 5 diverged)", "No transport (5 of 5 diverged)", "OL tied"]


# The taxonomy.


def test_judgements_need_two_standard_errors():
    base, near, far = (Spread.over([x, x + 0.1, x + 0.2]) for x in (0.0, 0.1, 5.0))
    assert _compare_spreads(near, base, larger_is_better=True) == "same"
    assert _compare_spreads(far, base, larger_is_better=True) == "better"
    assert _compare_spreads(far, base, larger_is_better=False) == "worse"
    assert _compare_spreads(Spread.over([None]), base, larger_is_better=True) == "worse"
    assert _compare_spreads(base, Spread.over([]), larger_is_better=True) == ""


def test_the_taxonomy_shows_signatures_with_marks(store):
    clearly = {("blind", seed): {"nll": 1.7 + 0.001 * seed} for seed in range(5)}
    fill(store, changes={("core_collapse", 0): diverged_core(), **clearly})
    (axis,) = _draw_taxonomy(_read_rows(store)).axes
    texts = notes(axis)
    assert all(title in texts for title in TITLES)
    assert {"[noise masking]", "[core collapse]", "[blind uncertainty]"} <= set(texts)
    core, prior = (np.median(values(store, row, "d_stsp_core")) for row in ("kaffee", "prior"))
    assert f"{core / prior:.2f}×" in texts
    error = robust_error(values(store, "kaffee", "g_tan"))
    assert f"{np.median(values(store, 'kaffee', 'g_tan')):.3f}±{error:.3f}" in texts
    assert "1 of 5\ndiverged" in texts
    # KAFFEE all better; blind: core better, NLL and G_tan worse; both open-loop rows all worse; frozen like the prior.
    assert (texts.count("✓"), texts.count("✗"), texts.count("≈")) == (6, 10, 2)


def test_the_taxonomy_names_rows_that_are_missing(store):
    fill(store, rows=["prior", "kaffee"])
    (axis,) = _draw_taxonomy(_read_rows(store)).axes
    assert notes(axis).count("no finished cells") == 4


# Files and messages.


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_cells_give_the_same_file(store, no_models, format):
    fill(store)
    folder = store.folder / "figures"
    path = next(make_figures(store, folder, format=format))
    assert path == folder / f"taxonomy.{format}"
    content = path.read_bytes()
    assert len(content) > 10_000
    assert next(make_figures(store, folder, format=format)).read_bytes() == content


def test_few_cells_give_what_they_allow(store, no_models):
    fill(store, rows=["prior"], seeds=[3])
    store.write(Cell("kaffee", 0), {"error": "ValueError: no"})
    said = []
    paths = list(make_figures(store, store.folder / "figures", say=said.append))
    assert [path.stem for path in paths] == ["taxonomy", "l96_results"]
    assert "prior: 4 of 5 cells are not finished and not drawn." in said
    assert "kaffee: 5 of 5 cells are not finished and not drawn." in said
    assert sum("is left out. No finished cell" in text for text in said) == 2


def test_one_seed_of_one_row_is_drawn(store, no_models):
    fill(store, rows=["noise_masking"], seeds=[0])
    assert len(list(make_figures(store, store.folder / "figures"))) == 4


def test_an_arm_has_files_of_its_own(store, no_models, monkeypatch):
    monkeypatch.setattr(make, "_render", lambda figure, format: b"")
    store = with_arm(store)
    fill(store, rows=["prior"])
    with pytest.raises(KaffeeError, match="no finished cells of the arm 'plus'"):
        list(make_figures(store, store.folder, arm="plus"))
    fill(store)
    assert [path.stem for path in make_figures(store, store.folder, arm="plus")] == [f"{name}_plus" for name in NAMES]


def test_impossible_wishes_are_explained(store):
    with pytest.raises(KaffeeError, match=r"holds no finished cells .* kaffee bench run"):
        list(make_figures(store, store.folder))
    with pytest.raises(ConfigError, match="Unknown format 'jpg'"):
        list(make_figures(store, store.folder, format="jpg"))
    with pytest.raises(ConfigError, match=r"no figures of 'table9'.*table1"):
        list(make_figures(replace(store, recipe=replace(store.recipe, name="table9")), store.folder))


def test_the_true_spectrum_is_computed_once(store, tmp_path, monkeypatch):
    settings, path = store.recipe.row("prior").settings, tmp_path / "reference.json"
    first = _read_true_exponents(settings, path)
    assert first.shape == (20,)
    assert json.loads(path.read_text())["num_steps"] == settings.protocol.rollout_steps

    def refuse(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr("kaffee.metrics.lyapunov.lyapunov_spectrum", refuse)
    np.testing.assert_array_equal(_read_true_exponents(settings, path), first)
    longer = replace(settings, protocol=replace(settings.protocol, rollout_steps=600))
    with pytest.raises(AssertionError, match="computed again"):
        _read_true_exponents(longer, path)


def test_the_command_writes_beside_the_results(tmp_path, no_models, monkeypatch):
    store = ResultStore(tmp_path, load_recipe("table1", "smoke"))
    fill(store)
    call = ["bench", "figures", "table1", "--preset", "smoke", "--results", str(tmp_path)]
    result = CliRunner().invoke(app, [*call, "--format", "png"])
    assert result.exit_code == 0, result.exception
    folder = tmp_path / "table1-smoke" / "figures"
    assert result.stderr == ""
    assert result.stdout.split() == [str(folder / f"{name}.png") for name in NAMES]
    monkeypatch.setattr(make, "_render", lambda figure, format: b"")
    other = tmp_path / "elsewhere"
    assert CliRunner().invoke(app, [*call, "--output", str(other)]).exit_code == 0
    assert sorted(path.stem for path in other.glob("*.svg")) == sorted(NAMES)
