"""The Python of README, tutorial and guides runs as it stands, with fewer updates."""

import os
import re
from pathlib import Path

import pytest
from shortening import shorten_fits

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


@pytest.mark.filterwarnings("ignore:.*(left the attractor|diverged):RuntimeWarning")
def test_readme_python_runs(tmp_path):
    code = shortened(python_blocks(ROOT / "README.md")).replace("(seed=0)", f"(seed=0, settings={FEW_UPDATES})")
    scope = run(code, tmp_path)
    assert (tmp_path / "model").is_dir()
    assert scope["surrogate"].forecast(3).mean.shape == (3, 3)


def test_readme_has_eight_lines_of_python():
    lines = [line for line in python_blocks(ROOT / "README.md").splitlines() if line.strip()]
    assert len(lines) <= 8


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


def test_the_page_on_inputs_runs(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        shorten_fits(patch.setattr)
        scope = run(python_blocks(ROOT / "docs" / "inputs.md"), tmp_path)
    assert scope["surrogate"].reconstruction_.inputs == ("u1",)
    assert scope["online"].num_steps == 1


def test_no_placeholder_is_left_in_the_docs():
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        found = re.findall(r"\b(?:[A-Z]{3,}_LINE|TODO|FIXME|FINGER|XXX)\b", path.read_text(encoding="utf-8"))
        assert found == [], path
