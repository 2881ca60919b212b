"""A fit as a folder: started once, continued by the same command, never mixed up with another."""

import json

import numpy as np
import pytest
from small import gappy_fit, gappy_series, rotation, same_arrays, small_settings

from kaffee.data.series import Series
from kaffee.errors import CheckpointError
from kaffee.fitting import run as runs
from kaffee.fitting.run import Loaded, Run, Source
from kaffee.records import jsonable

SOURCE = Source(paths=("x.csv",))


def opened(path, settings=None, series=None):
    return Run.start(path, settings or small_settings(), SOURCE, Loaded(series or gappy_series()))


def weights(folder):
    """The content of all array files but training states, which hold an interrupted history as well."""
    return {path.parent.name: path.read_bytes() for path in sorted(folder.rglob("model-*.safetensors"))}


def test_a_run_writes_down_what_it_is(tmp_path):
    record = opened(tmp_path / "run").record
    assert record["format"] == "kaffee-run"
    assert record["data"] == {"source": jsonable(SOURCE), "fingerprint": gappy_series().fingerprint}
    assert record["settings"]["pretraining"]["window"] == 6
    assert "jax" in record["versions"]
    assert record["machine"]["cores"] >= 1


def test_the_same_command_opens_it_again_and_another_may_replace_it_while_nothing_is_saved(tmp_path):
    opened(tmp_path)
    assert opened(tmp_path).settings == Run.open(tmp_path).settings == small_settings()
    assert opened(tmp_path, small_settings("seed=5")).settings.seed == Run.open(tmp_path).settings.seed == 5


def test_other_settings_or_data_are_another_run_and_named(tmp_path):
    opened(tmp_path)
    (tmp_path / "prior").mkdir()
    (tmp_path / "prior" / "training.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds another run \(settings.seed: 0 before, 5 now\). Choose another"):
        opened(tmp_path, small_settings("seed=5"))
    with pytest.raises(CheckpointError, match=r"The data in x.csv changed since this run was started"):
        opened(tmp_path, series=Series.from_arrays(rotation(30)))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    for path in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(CheckpointError, match="exists and is not a run of kaffee"):
            opened(path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_and_the_litter_of_a_killed_start_are_fine(tmp_path):
    (tmp_path / ".run.json.abc123").write_text("{")
    opened(tmp_path)
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is not a run of kaffee"),
        ("[]", "holds list instead of a JSON object"),
        ('{"format": "kaffee-run"', "not a readable run"),
        ('{"format": "kaffee-run", "format_version": 2}', "in format 2; this version of kaffee reads 1. Upgrade"),
        ('{"format": "kaffee-run", "format_version": 1}', "incomplete or was edited"),
        ('{"format": "kaffee-run", "format_version": 1, "settings": {}, "data": []}', "incomplete or was edited"),
        ('{"format": "kaffee-run", "format_version": 1, "settings": {}, "data": {}}', "incomplete or was edited"),
    ],
)
def test_a_damaged_run_is_a_clear_error(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path)


def test_a_missing_run_is_a_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match="There is no run at"):
        Run.open(tmp_path)


def test_stages_come_back_as_they_were(tmp_path):
    folder = opened(tmp_path)
    folder.train()
    for name, stage in (("prior", gappy_fit().prior), ("kaffee", gappy_fit().fitted)):
        back = folder.finished(name)
        assert same_arrays(back.reconstruction.model, stage.reconstruction.model)
        np.testing.assert_array_equal(back.losses, stage.losses)
        assert back[2:] == stage[2:]
    assert folder.finished("blind") is None


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_run_killed_after_any_save_ends_with_the_same_files(tmp_path, monkeypatch, number):
    undisturbed = opened(tmp_path / "a")
    undisturbed.train()
    killed, count, write_record = opened(tmp_path / "b"), [], runs.write_record

    def save_then_die(*arguments):
        write_record(*arguments)
        count.append(1)
        if len(count) == number:
            raise SystemExit

    monkeypatch.setattr(runs, "write_record", save_then_die)
    with pytest.raises(SystemExit):
        killed.train()
    monkeypatch.undo()
    opened(tmp_path / "b").train()
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert len(weights(tmp_path / "a")) == 2
    for stage in ("prior", "kaffee"):
        ours, theirs = (json.loads((tmp_path / x / stage / "training.json").read_text()) for x in "ab")
        assert ours == theirs


def test_a_damaged_training_state_is_a_clear_error_and_not_a_fresh_start(tmp_path, monkeypatch):
    folder = opened(tmp_path)

    def die(*_):
        raise SystemExit

    monkeypatch.setattr(runs, "save", die)
    with pytest.raises(SystemExit):
        folder.train()
    path = next((tmp_path / "prior").glob("training-*"))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="damaged, truncated or exchanged"):
        folder.train()


def test_a_model_that_no_run_wrote_is_not_taken_for_a_stage(tmp_path):
    folder = opened(tmp_path)
    folder.train()
    stage = folder.finished("prior").reconstruction
    runs.save(type(stage)(stage.model, stage.scaler), tmp_path / "prior")
    with pytest.raises(CheckpointError, match="is not a stage of a run: it has no 'training'"):
        folder.train()
