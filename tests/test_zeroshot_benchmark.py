"""The zero-shot benchmark: scores are what they say, files appear once, and tables judge them."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import zeroshot, zeroshot_baselines, zeroshot_free, zeroshot_speed, zeroshot_tables
from kaffee.errors import DataError
from kaffee.filtering.evaluation import Target
from kaffee.foundation.incontext import ContextSettings


def rotation(rows: int, phase: float = 0.0, speed: float = 0.2) -> np.ndarray:
    t = phase + speed * np.arange(rows)
    return np.stack([np.sin(t), np.cos(t), np.sin(t + 0.7)], axis=1)


def good(context, num_steps):
    """Know the future of `rotation` from the last row, and have a band around it."""
    last = context[-1] if context.shape[1] > 1 else rotation(len(context))[-1]
    t = np.arctan2(last[0], last[1]) + 0.2 * np.arange(1, num_steps + 1)
    point = np.stack([np.sin(t), np.cos(t), np.sin(t + 0.7)], axis=1)[:, : context.shape[1]]
    return zeroshot.Continuation(point, (point - 0.1, point + 0.1))


def test_scores_by_hand() -> None:
    truth, std = np.zeros((60, 2)), np.array([1.0, 2.0])
    point = truth.copy()
    point[20:] = (0.0, 1.2)  # rms error sqrt(0.6^2 / 2) = 0.42 standard deviations
    assert zeroshot.valid_time(truth, point, std) == pytest.approx(20 / 30)
    assert zeroshot.valid_time(truth, np.full_like(truth, np.nan), std) == 0.0
    assert zeroshot.valid_time(truth, truth, std) == 2.0
    assert zeroshot.smape(np.array([[1.0], [0.0], [2.0]]), np.array([[3.0], [0.0], [np.nan]])) == pytest.approx(100.0)


def test_one_that_refuses_counts_as_the_worst() -> None:
    found = zeroshot.summarise([zeroshot.Scores(2.0, 10.0, (1.0, 0.8), 0.1), None, None])
    assert (found["vpt"], found["smape"], found["refused"]) == (0.0, 200.0, 2)
    assert found["coverage"]["10"] == pytest.approx(0.8 / 3)

    def refuse(context, num_steps):
        raise DataError("too short")

    assert zeroshot.score(refuse, rotation(9), rotation(9), np.ones(3)) is None


@pytest.mark.parametrize("coordinates", [1, 3])
def test_baselines_continue_a_cycle(coordinates: int) -> None:
    every = rotation(460, speed=2 * np.pi / 30)[:, :coordinates]
    context, truth = np.split(every, [400])
    methods = zeroshot_baselines.baselines(coordinates, 0.0)
    assert {"context repeat", "nearest neighbour slope", "local linear", "persistence", "climatology"} <= set(methods)
    for name in ("context repeat", "nearest neighbour slope", "local linear"):
        np.testing.assert_allclose(methods[name](context, 60).point, truth, atol=0.02, err_msg=name)
    assert np.ptp(methods["persistence"](context, 60).point, axis=0).max() == 0.0
    low, high = methods["climatology"](context, 60).band
    assert 0.8 < np.mean((truth >= low) & (truth <= high)) < 1.0


def test_local_linear_has_the_jacobian_of_its_map() -> None:
    A = 0.9 * np.array([[0.8, -0.6], [0.6, 0.8]])
    states = np.random.default_rng(0).standard_normal((300, 2))
    pairs = zeroshot_baselines.Pairs(states, lags=(0,))
    pairs.states, pairs.targets = states[:-1], states[:-1] @ A.T + 0.5
    mean, J = zeroshot_baselines.LocalLinear(pairs, 12, 1e-6).linearise(states[:5])
    np.testing.assert_allclose(J, np.broadcast_to(A, (5, 2, 2)), atol=1e-4)
    np.testing.assert_allclose(mean, states[:5] @ A.T + 0.5, atol=1e-4)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Data of two systems and one series, the weights of DynaMix away, and a method that knows the answer."""
    monkeypatch.setattr(zeroshot_baselines, "pretrained", lambda: None)
    monkeypatch.setattr(zeroshot, "in_context", lambda settings: good)
    every = np.stack([rotation(640 + 100, phase) for phase in (0.0, 1.0)])
    flat = every[:, :, [0, 1]]
    arrays = {"A/context": every[:, :640], "A/truth": every[:, 640:]}
    np.savez(tmp_path / "many.npz", **arrays, **{"B/context": flat[:, :640], "B/truth": flat[:, 640:]})
    (tmp_path / "many_scores.json").write_text(json.dumps({"A": {"chronos": {"vpt": 0.5, "smape_1": 30.0}}}))
    np.savez(tmp_path / "one.npz", S=rotation(1199)[:, 0])
    (tmp_path / "one_scores.json").write_text(json.dumps({"S": {"ARIMA": 90.0, "NBEATS": 50.0}}))
    given = ["--data", str(tmp_path / "many.npz"), "--univariate-data", str(tmp_path / "one.npz")]
    return [*given, "--output", str(tmp_path / "out"), "--noise", "0", "10"]


def test_the_command_writes_files_once_and_shows_them(files: list[str], tmp_path: Path, capsys) -> None:
    zeroshot.main(files)
    folder = tmp_path / "out" / "many"
    assert len(list(folder.glob("*.json"))) == 2 * 2 * 2 * 2
    record = json.loads((folder / "A-10-128-incontext.json").read_text())
    assert record["seed"] == 0
    assert record["starts"] == 20
    assert record["arm"] == "incontext"
    assert {"kaffee", "jax"} <= set(record["versions"])
    clean = json.loads((folder / "A-0-512-incontext.json").read_text())["methods"]["incontext"]
    assert clean["vpt"] == pytest.approx(100 / 30, rel=1e-4)
    assert clean["coverage"] == {"1": 1.0, "10": 1.0, "30": 1.0, "90": 1.0}
    others = json.loads((folder / "A-0-512-baselines.json").read_text())["methods"]
    assert others["chronos"] == {"vpt": 0.5, "smape": 30.0}
    assert "DynaMix" not in others
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")}
    zeroshot.main(files)
    zeroshot.main([*files, "--show", "--by-system"])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json")} == before
    with pytest.raises(SystemExit, match="has other starts"):
        zeroshot.main([*files, "--starts", "1"])
    with pytest.raises(SystemExit, match="has other settings"):
        zeroshot.main([*files, "--set", "passes=1"])
    shown = capsys.readouterr().out
    assert all(
        word in shown for word in ("what was asked for", "Zero-shot forecasts", "Every system", "chronos", "NBEATS")
    )
    tables = zeroshot_tables.zeroshot_tables(tmp_path / "out", dysts="many", univariate="one")
    demands = {row[0]: row[3] for row in tables.tables[0].rows}
    assert demands["VPT, clean, 512 rows: >= 1.5"] == "met"
    assert demands["90 % bands, 0 %, 512 rows: 0.85 to 0.95"] == "missed"  # they cover everything
    assert demands["scalar series, share ahead of the best published: >= 0.7"] == "met"
    assert "| noise, context |" in tables.to_markdown()


def test_missing_data_are_named(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"nowhere\.npz"):
        zeroshot.main([*files, "--data", str(tmp_path / "nowhere.npz")])


def test_our_method_has_bands() -> None:
    context = rotation(60) + 0.1 * np.random.default_rng(0).standard_normal((60, 3))
    point, band = zeroshot.in_context(ContextSettings())(context, 5)
    assert point.shape == (5, 3)
    assert (band[0] <= point).all()
    assert (point <= band[1]).all()


def test_free_runs_are_counted_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeroshot_free, "pretrained", lambda: None)
    size = zeroshot_free.Size(rows=100, starts=2, steps=300, kept=200, stretches=2)
    own = zeroshot_free.measure("lorenz63", "incontext", ContextSettings(), size, 0)
    found = own["methods"]["incontext"]
    assert found["runs"] == 2
    assert 0 <= found["lost"] <= 2
    assert found["lost"] == found["diverged"] + found["trapped"] + found["at_wall"]
    others = zeroshot_free.measure("lorenz63", "baselines", None, size, 0)
    assert set(others["methods"]) == {"context repeat", "truth"}
    about = {"system": "lorenz63", "starts": 2, "steps": 300}
    dynamix = {**others["methods"], "DynaMix": {"d_stsp": np.inf, "d_h": np.inf, "lost": 2, "runs": 2}}
    records = [{**about, "arm": "incontext", **own}, {**about, "arm": "baselines", **others, "methods": dynamix}]
    table = zeroshot_tables.free_table(records)
    assert table.rows[0][2] == "2 of 2"
    demands = {one.text: one.holds for one in zeroshot_tables._free_demands(records, "incontext")}
    assert demands["free runs lost, all systems, with noise and without: 0"] == (
        found["lost"] + found["noisy"]["lost"] == 0
    )


def test_truth_is_close_to_truth() -> None:
    problem = zeroshot_free.make_problem("lorenz63", zeroshot_free.Size(rows=50, steps=3000, kept=2000, stretches=1), 0)
    assert isinstance(problem.target, Target)
    (found,) = problem.target.measure(problem.others)
    still = problem.target.measure([np.zeros_like(problem.others[0])])[0]
    assert found.d_stsp < 0.5 * still.d_stsp


def test_speed_sections_have_the_same_contestants() -> None:
    size = zeroshot_speed.QUICK
    for name, found in (
        ("zeroshot_filter", zeroshot_speed.measure_filter(size, 1)),
        ("zeroshot_forecast", zeroshot_speed.measure_forecast(size, 1)),
    ):
        assert set(found[name]) == set(zeroshot_speed.METHODS)
        assert all(found["ratios"][name][other]["ratio"] > 0 for other in ("dynamix", "local_linear"))
    first = zeroshot_speed.measure_first(size, 1, cold=False)["zeroshot_first"]["60"]
    assert set(first["warm"]) == set(zeroshot_speed.METHODS)
    assert first["met"] == (first["warm"]["kaffee"] <= zeroshot_speed.LIMIT)


def test_the_numpy_filter_follows_the_signal() -> None:
    clean = rotation(500)
    noisy = clean + 0.1 * clean.std(axis=0) * np.random.default_rng(0).standard_normal(clean.shape)
    found = zeroshot_speed.filter_numpy(zeroshot_baselines.Pairs(noisy[:400]), noisy[400:])
    units = zeroshot_baselines.Pairs(noisy[:400])
    error = units.restore(found) - clean[400:]
    assert error.std() < (noisy[400:] - clean[400:]).std()
