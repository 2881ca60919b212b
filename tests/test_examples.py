"""The examples run as they stand, with fewer updates."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from shortening import shorten_fits

import kaffee

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["own_core", "missing_values"])
def test_example_runs(name):
    main = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]
    result = main(num_pretraining=30, num_adaptation=3)
    assert result.method == "kaffee"
    assert np.isfinite(np.asarray(result.model.shell.log_process_std)).all()


@pytest.mark.parametrize("name", ["own_csv", "several_recordings", "online_filtering"])
@pytest.mark.filterwarnings("ignore:.*(left the attractor|diverged):RuntimeWarning")
def test_example_of_a_surrogate_runs(name, capsys):
    main = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]
    result = main(num_pretraining=30, num_adaptation=3)
    assert result.method == "kaffee"
    assert result.dt == pytest.approx(0.02)
    assert "nan" not in capsys.readouterr().out


def test_the_picture_of_a_forecast_is_drawn(tmp_path):
    example = runpy.run_path(str(ROOT / "examples" / "own_csv.py"))
    rows = np.random.default_rng(0).normal(size=(2, example["HORIZON"], 3))
    past, future = (kaffee.Series.from_arrays(x, ["a", "b", "c"], 0.02 * np.arange(len(x))) for x in rows)
    columns = [f"{name}_{kind}" for name in "abc" for kind in ("mean", "q05", "q95")]
    forecast = kaffee.Series.from_arrays(np.repeat(rows[1], 3, axis=1), columns, future.times[0])
    example["draw"](past, future, forecast, tmp_path / "forecast.png")
    assert (tmp_path / "forecast.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore:.*(left the attractor|diverged):RuntimeWarning")
def test_the_ecg_example_runs(capsys, tmp_path):
    example = runpy.run_path(str(ROOT / "examples" / "ecg.py"))
    if not example["DEFAULT"].exists():
        pytest.skip(f"{example['DEFAULT']} is not there: the electrocardiogram is no part of the repository")
    np.save(tmp_path / "ecg.npy", np.load(example["DEFAULT"])[:3_000])
    result = example["main"](tmp_path / "ecg.npy", num_pretraining=30, num_adaptation=3)
    assert result.model.num_observed == 5
    assert "of the heart" in capsys.readouterr().out


def test_a_driven_system_runs(capsys):
    with pytest.MonkeyPatch.context() as patch:
        shorten_fits(patch.setattr)
        result = runpy.run_path(str(ROOT / "examples" / "driven_system.py"))["main"](30, 3)
    assert result.inputs == ("u1", "u2")
    off, on = (float(x) for x in re.findall(r"heater o[fn]+: (-?[\d.]+) degrees", capsys.readouterr().out))
    assert on > off + 5.0


def test_the_portrait_of_the_henon_map_is_the_known_one():
    found = runpy.run_path(str(ROOT / "examples" / "henon_portrait.py"))["main"](num_steps=2000, grid=5)
    assert [cycle.order for cycle in found.cycles] == [1, 1, 2, 4]
    assert found.spectrum.maximal == pytest.approx(0.419, abs=4 * found.spectrum.standard_errors[0])


def test_a_published_score_of_assimilation_is_within_reach():
    main = runpy.run_path(str(ROOT / "examples" / "assimilation.py"))["main"]
    run = main(cycles=150, spin_up=50)
    assert run.members.shape == (150, 24, 40)
    assert run.spread()[50:].mean() == pytest.approx(0.19, abs=0.06)


@pytest.mark.filterwarnings("ignore:.*(left the attractor|diverged):RuntimeWarning")
def test_settings_are_searched_by_scikit_learn(capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'kaffee[dev]'")
    main = runpy.run_path(str(ROOT / "examples" / "grid_search.py"))["main"]
    search = main(num_steps=360, latent_dims=(4,), num_pretraining=20, num_adaptation=3)
    assert search.best_estimator_.reconstruction_.model.latent_dim == 4
    assert np.isfinite(search.best_score_)
    assert "nats per reading on later rows" in capsys.readouterr().out


def test_a_foundation_model_that_is_not_dynamix():
    main = runpy.run_path(str(ROOT / "examples" / "own_foundation_model.py"))["main"]
    surrogate = main(num_steps=600, num_updates=2)
    assert surrogate.model.latent_dim == 3
    assert surrogate.provenance["scored"] == 56
