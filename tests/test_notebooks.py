"""The notebooks run as they stand, with smaller sizes in place of their parameters; they are kept without outputs."""

import json
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
SMALL = {
    "certificate": {
        "ROWS": 300,
        "SETTINGS": {"rung": "linear"},
        "CHECKS": {"num_starts": 20, "members": 20, "divergence_runs": 2, "divergence_steps": 200, "horizons": (1, 2)},
    },
    "imputation": {"ROWS": 120, "GAP": 4},
    "forecasting": {"ROWS": 60, "HORIZON": 8, "MEMBERS": 20, "STRATEGY": {"strategy": "autoregression"}},
    "assimilation": {"ROWS": 60, "FILTERS": ("ekf", "ukf", "etkf:6", "particle:50")},
    "learned": {
        "ROWS": 300,
        "SETTINGS": {
            "rung": "scratch",
            "core.latent_dim": 4,
            "pretraining.schedule.num_updates": 20,
            "adaptation.schedule.num_updates": 3,
            "adaptation.calibration": 0,
            "adaptation.guard": None,
        },
        "ANALYSIS": {"max_order": 1, "num_steps": 200, "num_starts": 10, "grid": None},
    },
}
# What each has computed in the end.
RESULT = {
    "certificate": "ahead",
    "imputation": "inside",
    "forecasting": "band",
    "assimilation": "counts",
    "learned": "found",
}


def read(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def test_every_notebook_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_notebooks_hold_no_outputs_and_say_what_may_be_changed(name):
    cells = read(name)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    (parameters,) = [cell for cell in code if "parameters" in cell["metadata"].get("tags", ())]
    scope: dict = {}
    exec("".join(parameters["source"]), scope)
    assert set(SMALL[name]) == {key for key in scope if key.isupper()}
    assert cells[0]["source"][0].startswith("# ")


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.filterwarnings("ignore:.*(left the attractor|diverged|too few|too short):UserWarning")
@pytest.mark.filterwarnings("ignore:.*(left the attractor|diverged):RuntimeWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning:sktime", "ignore::DeprecationWarning:sktime")
def test_notebook_runs(name, tmp_path, capsys):
    if name == "forecasting":
        pytest.importorskip("sktime", reason="sktime is not installed: pip install 'kaffee[sktime]'")
    before, scope = Path.cwd(), {"__name__": "__main__"}
    os.chdir(tmp_path)
    try:
        for number, cell in enumerate(read(name)["cells"]):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), scope)
                if "parameters" in cell["metadata"].get("tags", ()):
                    scope |= SMALL[name]
    finally:
        os.chdir(before)
    assert RESULT[name] in scope
    assert "nan" not in capsys.readouterr().out
