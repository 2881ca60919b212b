"""Contexts that a careless user may give: a clear error or a sane, wide answer; never a narrow band around nonsense."""

import numpy as np
import pytest
from typer.testing import CliRunner

import kaffee
from kaffee.cli.main import app
from kaffee.data.writing import write_series
from kaffee.errors import KaffeeError

STEPS = 20
WIDTH = 3.2897  # of a 90 % band in standard deviations
RNG = np.random.default_rng(0)
T = np.arange(300)


def walk(num_rows, num_columns):
    return np.cumsum(np.random.default_rng(1).normal(size=(num_rows, num_columns)), axis=0)


def noisy_waves(num_columns, num_rows=300):
    phases = np.linspace(0.0, 3.0, num_columns)
    return np.sin(T[:num_rows, None] / 7.0 + phases) + 0.1 * RNG.normal(size=(num_rows, num_columns))


def almost_empty():
    values = np.full((300, 2), np.nan)
    rows = np.linspace(0, 299, 10).astype(int)
    values[rows] = noisy_waves(2)[rows]
    return values


def jumping():
    values = noisy_waves(2)
    values[150:] += 50.0
    return values


CONTEXTS = {
    "three rows": noisy_waves(2)[:3],
    "constant": np.ones((100, 2)),
    "one constant column": np.column_stack([noisy_waves(1)[:, 0], np.ones(300)]),
    "periodic": np.sin(2 * np.pi * T[:, None] / 20 + np.array([0.0, 1.0])),
    "two values": np.tile([[0.0], [1.0]], (50, 1)),
    "one coordinate": noisy_waves(1),
    "more coordinates than rows": walk(75, 200),
    "ten rows in gaps": almost_empty(),
    "jump": jumping(),
    "random walk": walk(300, 1),
    "short recordings": [noisy_waves(2)[:4], noisy_waves(2)[:5]],
}
EXACT = {"periodic", "two values"}  # without noise, and foreseen exactly by whoever finds the period


def naive_width(context):
    """Of a 90 % band at each step: the narrower of random walk and climatology."""
    recordings = context if isinstance(context, list) else [context]
    stacked = np.concatenate(recordings)
    differences = np.concatenate([np.diff(x, axis=0) for x in recordings])
    with np.errstate(all="ignore"):
        step, spread = np.nanstd(differences, axis=0), np.nanstd(stacked, axis=0)
    step = np.where(np.isfinite(step), step, spread)
    ahead = np.sqrt(np.arange(1, STEPS + 1))[:, None]
    return WIDTH * np.minimum(ahead * step, spread)


def assert_sane(context, low, high):
    values = np.concatenate(context if isinstance(context, list) else [context])
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    middle, spread = (low + high) / 2, np.nanstd(values, axis=0)
    assert (np.abs(middle - np.nanmean(values, axis=0)) < 10 * spread + 1e-9).all()
    return np.median((high - low) / naive_width(context))


def answer(context):
    """The forecast, or the sentence that refuses it."""
    try:
        return kaffee.zero_shot(context, STEPS)
    except KaffeeError as error:
        return str(error)


@pytest.mark.parametrize("name", list(CONTEXTS))
def test_a_context_is_refused_in_words_or_answered_with_wide_bands(name):
    context = CONTEXTS[name]
    forecast = answer(context)
    if isinstance(forecast, str):
        assert len(forecast) > 30
        return
    for each, rows in zip(
        forecast if isinstance(context, list) else [forecast],
        context if isinstance(context, list) else [context],
        strict=True,
    ):
        share = assert_sane(rows, each.quantile(0.05), each.quantile(0.95))
        if name in EXACT:
            later = np.sin(2 * np.pi * (300 + np.arange(STEPS))[:, None] / 20 + np.array([0.0, 1.0]))
            truth = later if name == "periodic" else np.tile([[0.0], [1.0]], (STEPS // 2, 1))
            inside = (each.quantile(0.05) - 0.05 <= truth) & (truth <= each.quantile(0.95) + 0.05)
            assert inside.mean() > 0.8
        elif name not in ("one coordinate", "one constant column"):  # which are waves that can be foreseen
            assert share > 0.5
        else:
            assert share > 0.1


@pytest.mark.parametrize("name", ["three rows", "constant", "ten rows in gaps", "jump"])
def test_the_command_ends_in_words_or_in_a_forecast(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_series(CONTEXTS[name], "odd.csv")
    result = CliRunner().invoke(app, ["zeroshot", "odd.csv", "--steps", str(STEPS), "-o", "out.csv"])
    if result.exit_code:
        assert isinstance(result.exception, KaffeeError), repr(result.exception)
        assert not (tmp_path / "out.csv").exists()
    else:
        assert np.isfinite(kaffee.read_series("out.csv").recordings[0]).all()
