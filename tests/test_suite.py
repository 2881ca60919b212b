"""The development suite: its baselines are what they say, and its tables find what is worse."""

import numpy as np
import pytest

from benchmarks import baselines, suite, suite_tables
from benchmarks.cases import CASES
from kaffee.data.series import Series


def ar1(rows: int, seed: int = 0, phi: float = 0.9) -> np.ndarray:
    noise, x = np.random.default_rng(seed).standard_normal(rows), np.zeros(rows)
    for t in range(1, rows):
        x[t] = phi * x[t - 1] + noise[t]
    return x[:, None]


def test_autoregression_knows_its_errors() -> None:
    series = Series.from_arrays(ar1(4000))
    task, scaler = suite.make_task(series)
    forecast, chosen = baselines.autoregression(task)
    # Variances of an AR(1) at 1, 4, 16 and 64 steps: (1 - phi^2h) / (1 - phi^2).
    exact = np.sqrt((1 - 0.81 ** np.array(task.horizons)) / (1 - 0.81)) / scaler.scale
    np.testing.assert_allclose(forecast.std[0, :, 0], exact, rtol=0.1)
    assert chosen["order"] <= 4
    for h, found in suite.score(forecast, task).items():
        assert abs(found["coverage"] - 0.9) < 0.1, h


def test_autoregression_is_that_of_statsmodels() -> None:
    models = pytest.importorskip("statsmodels.tsa.api")
    x = np.hstack([ar1(500, 1), ar1(500, 2, 0.5)])
    ours = baselines._regress([x], 3)(0.0)
    theirs = models.VAR(x).fit(3, trend="c")
    np.testing.assert_allclose(ours.A, np.hstack(list(theirs.coefs)), atol=1e-8)
    np.testing.assert_allclose(ours.c, theirs.intercept, atol=1e-8)
    np.testing.assert_allclose(ours.Q, theirs.sigma_u, rtol=1e-6)


def test_all_methods_forecast_recordings_with_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reservoirpy")
    monkeypatch.setattr(baselines, "UNITS", 20)
    monkeypatch.setattr(baselines, "RESERVOIRS", baselines.RESERVOIRS[:2])
    values = [np.hstack([ar1(n, n), ar1(n, n + 1)]) for n in (90, 150, 7)]
    values[1][30:40, 0] = np.nan
    values[1][120:123] = np.nan
    task, _ = suite.make_task(Series.from_arrays(values))
    assert task.horizons == (1, 4, 16)
    for name, (forecast, chosen) in baselines.forecast_all(task, 0).items():
        assert forecast.mean.shape == forecast.std.shape == (len(task.starts.rows), 3, 2), name
        scores = suite.score(forecast, task)
        assert all(np.isfinite(one["nll"]) and 0.4 < one["coverage"] <= 1.0 for one in scores.values()), (name, chosen)


def test_season_is_found_and_used() -> None:
    task, _ = suite.make_task(CASES["seasonal_600"](0))
    assert baselines.find_period(task.train) == 12
    with_season, without = baselines.seasonal_climatology(task), baselines.climatology(task)
    assert suite.score(with_season, task)["16"]["nll"] < suite.score(without, task)["16"]["nll"] - 0.3


def test_local_linear_sees_nonlinearity() -> None:
    x = np.empty(1000)
    x[0] = 0.3
    for t in range(999):
        x[t + 1] = 3.9 * x[t] * (1 - x[t])
    task, _ = suite.make_task(Series.from_arrays(x))
    local, linear = baselines.local_linear(task)[0], baselines.autoregression(task)[0]
    assert suite.score(local, task)["1"]["nll"] < suite.score(linear, task)["1"]["nll"] - 2.0


@pytest.mark.parametrize("name", ["fmri_like", "mackey_glass_300_20", "lorenz63_300_5", "laser_like"])
def test_simulations_follow_their_seed(name: str) -> None:
    first, again, other = (CASES[name](seed).concatenated() for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert np.isfinite(first).all()


def test_a_gap_of_nats_is_no_chance() -> None:
    """A few huge scores have a huge spread, which must not excuse them."""
    best = {"nll": 1.0, "blocks": [1.0] * 5}
    own = {"nll": 100.0, "blocks": [1.0, 1.0, 1.0, 1.0, 496.0]}
    one = suite_tables.Outcome({"forecasts": {"1": own}}, {"methods": {"var": {"1": best}, "climatology": {"1": best}}})
    assert one.is_worse("1")
    close = {"nll": 1.2, "blocks": [1.0, 1.0, 1.0, 1.0, 2.0]}
    assert not one._replace(arm={"forecasts": {"1": close}}).is_worse("1")


def test_tables_mark_what_is_worse() -> None:
    task, _ = suite.make_task(Series.from_arrays(ar1(1500)))
    good, climate = baselines.autoregression(task)[0], baselines.climatology(task)
    sure = baselines.Forecast(climate.mean, climate.std / 10)
    scores = {name: suite.score(one, task) for name, one in {"good": good, "climate": climate, "sure": sure}.items()}
    about = {"case": "nile", "seed": 0, "rows": 1500, "coordinates": 1}
    methods = {name: scores["good" if name == "var" else "climate"] for name in suite_tables.OTHERS}
    fitted = {"cold_start": {"coverage": 0.9}, "free_runs": {"missing": "few rows"}, "seconds": 1.0, "peak_mb": 1.0}
    fitted |= {"linear": None, "core": "ALRNN", "latent_dim": 20}
    records = [
        {**about, "arm": suite_tables.BASELINES, "methods": methods},
        {**about, **fitted, "arm": "before", "forecasts": scores["sure"]},
        {**about, **fitted, "arm": "after", "forecasts": scores["good"]},
        {**about, "arm": "broken", "failed": "too short"},
    ]
    tables = suite_tables.suite_tables(records, ["nile"])
    passed = {row[0]: row[1::2] for row in tables.tables[0].rows}
    assert passed["NLL at 1 step no worse than VAR and climatology"] == ["0 of 1", "1 of 1", "0 of 1"]
    assert passed["a fit at all"] == ["1 of 1", "1 of 1", "0 of 1"]
    assert passed["90 % bands cover 0.80 to 0.96 at 1, 4, 16 steps"] == ["0 of 1", "1 of 1", "0 of 1"]
    assert "too short" in tables.to_markdown()
    assert any(str(cell).endswith("*") for row in tables.tables[1].rows for cell in row)
