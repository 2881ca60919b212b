"""The examples, the README's Python and the tutorial run as they stand, with fewer updates."""

import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from shortening import shorten_fits

import kaffee

ROOT = Path(__file__).parent.parent
FEWER = {"60_000": "40", "25_000": "1_500", "20_000": "400", "5_000": "300", "Adaptation()": "FEW"}

FEW_UPDATES = {
    "pretraining.schedule.num_updates": 30,
    "adaptation.schedule.num_updates": 3,
    "adaptation.calibration": 0,
}


def python_blocks(path: Path) -> str:
    """All Python of a Markdown file as one program."""
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL))


def shortened(code: str) -> str:
    for long, short in FEWER.items():
        code = code.replace(long, short)
    return code.replace("kaffee.FEW", "kaffee.Adaptation(schedule=kaffee.Schedule(num_updates=4, report_every=2))")


def run(code: str, folder: Path) -> dict:
    before = Path.cwd()
    os.chdir(folder)
    try:
        scope: dict = {}
        exec(compile(code, "docs", "exec"), scope)
        return scope
    finally:
        os.chdir(before)


@pytest.mark.parametrize("name", ["own_core", "missing_values"])
def test_example_runs(name):
    main = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]
    result = main(num_pretraining=30, num_adaptation=3)
    assert result.method == "kaffee"
    assert np.isfinite(np.asarray(result.model.shell.log_process_std)).all()


@pytest.mark.filterwarnings("ignore:.*(left the attractor|diverged):RuntimeWarning")
def test_readme_python_runs(tmp_path):
    code = shortened(python_blocks(ROOT / "README.md")).replace("(seed=0)", f"(seed=0, settings={FEW_UPDATES})")
    scope = run(code, tmp_path)
    assert (tmp_path / "model").is_dir()
    assert scope["surrogate"].forecast(3).mean.shape == (3, 3)


def test_readme_has_eight_lines_of_python():
    lines = [line for line in python_blocks(ROOT / "README.md").splitlines() if line.strip()]
    assert len(lines) <= 8


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
def test_the_ecg_example_runs(capsys):
    example = runpy.run_path(str(ROOT / "examples" / "ecg.py"))
    if not example["DEFAULT"].exists():
        pytest.skip(f"{example['DEFAULT']} is not there: the electrocardiogram is no part of the repository")
    result = example["main"](num_pretraining=30, num_adaptation=3)
    assert result.model.num_observed == 5
    assert "of the heart" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*(left the attractor|diverged):RuntimeWarning")
def test_the_page_on_surrogates_runs(tmp_path):
    code = python_blocks(ROOT / "docs" / "surrogate.md").replace("(seed=1)", f"(seed=1, settings={FEW_UPDATES})")
    scope = run(code, tmp_path)
    assert scope["surrogate"].settings_.adaptation.schedule.num_updates == 3
    assert scope["filled"].notna().all(axis=None)
    assert (tmp_path / "model" / "prior" / "model.json").exists()


def test_tutorial_runs(tmp_path):
    scope = run(shortened(python_blocks(ROOT / "docs" / "tutorial.md")), tmp_path)
    assert scope["same"].columns == ("x1", "x2", "x3")
    assert scope["filtered"].outcome.ok


def test_a_driven_system_runs(capsys):
    with pytest.MonkeyPatch.context() as patch:
        shorten_fits(patch.setattr)
        result = runpy.run_path(str(ROOT / "examples" / "driven_system.py"))["main"](30, 3)
    assert result.inputs == ("u1", "u2")
    off, on = (float(x) for x in re.findall(r"heater o[fn]+: (-?[\d.]+) degrees", capsys.readouterr().out))
    assert on > off + 5.0


def test_the_page_on_inputs_runs(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        shorten_fits(patch.setattr)
        scope = run(python_blocks(ROOT / "docs" / "inputs.md"), tmp_path)
    assert scope["surrogate"].reconstruction_.inputs == ("u1",)
    assert scope["online"].num_steps == 1


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


def test_no_placeholder_is_left_in_the_docs():
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        found = re.findall(r"\b(?:[A-Z]{3,}_LINE|TODO|FIXME|FINGER|XXX)\b", path.read_text(encoding="utf-8"))
        assert found == [], path


def test_a_foundation_model_that_is_not_dynamix():
    main = runpy.run_path(str(ROOT / "examples" / "own_foundation_model.py"))["main"]
    surrogate = main(num_steps=600, num_updates=2)
    assert surrogate.model.latent_dim == 3
    assert surrogate.provenance["scored"] == 56
