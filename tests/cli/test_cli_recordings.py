"""Recordings as users have them: dates, labels, sensors that are dead, times that jitter."""

import subprocess
import sys

import numpy as np
import pytest
from small import DT, gappy_series, small_model

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.reading import read_series
from kaffee.data.scaler import Scaler

COMMAND = "from kaffee.cli.main import run\nrun()\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    series = gappy_series()
    reconstruction = Reconstruction(small_model(), Scaler.fit(series), series.columns, DT, "kaffee")
    return reconstruction.save(tmp_path_factory.mktemp("model") / "model")


def dated(path, num_rows=30, jitter=0.0):
    """A file of two labelled recordings with dates, a row of each missing."""
    rng = np.random.default_rng(0)
    lines = ["who,when,left,right"]
    for who, day in (("Ada", 1), ('"B, the second"', 2)):
        for i in range(num_rows):
            second = DT * i + jitter * DT * (i % 2)
            if i != 7:
                left, right = (10 + rng.standard_normal(2)).tolist()
                lines.append(f"{who},2024-03-0{day} 12:00:{second:06.3f},{left},{right}")
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("command", ["filter", "smooth", "impute", "forecast"])
def test_dates_and_labels_come_back_in_every_command(kaffee, model, tmp_path, command):
    path = dated(tmp_path / "in.csv")
    options = ("--recording-column", "who", "--time-column", "when")
    result = kaffee(command, model, path, "-o", tmp_path / "out.csv", *options)
    assert result.exit_code == 0, result.exception
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0].startswith("who,when,left")
    first = "12:00:07.500" if command == "forecast" else "12:00:00.000"
    assert lines[1].startswith(f"Ada,2024-03-01 {first},")
    assert sum(line.startswith(f'"B, the second",2024-03-02 {first},') for line in lines) == 1
    if command == "impute":
        assert lines[8].startswith("Ada,2024-03-01 12:00:01.750,")  # the row that was missing


@pytest.mark.parametrize("command", ["filter", "smooth", "impute", "forecast"])
def test_a_sensor_that_is_dead_is_missing_and_no_error(kaffee, model, tmp_path, command):
    rows = "".join(f"{DT * i},,{10 + i % 3}\n" for i in range(40))
    (tmp_path / "dead.csv").write_text("t,left,right\n" + rows)
    result = kaffee(command, model, tmp_path / "dead.csv", "-o", tmp_path / "out.csv")
    assert result.exit_code == 0, result.exception
    found = read_series(tmp_path / "out.csv")
    band = found.columns.index("left_std")
    assert (found.recordings[0][:, band] > 0).all()


def test_jitter_needs_a_tolerance_and_errors_speak_of_options(model, tmp_path):
    path = dated(tmp_path / "in.csv", jitter=0.2)
    command = [sys.executable, "-c", COMMAND, "smooth", str(model), str(path), "-o", "out.csv", "--time-column", "when"]
    for options, words in (
        ([], "error: "),
        (["--recording-column", "who"], "raise --time-tolerance if it is jitter; for a file, --time-column none says"),
        (["--recording-column", "who", "--time-tolerance", "0.45"], ""),
    ):
        found = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert words in found.stderr
        assert (found.returncode == 0) == (words == "")
    assert "time_" not in found.stderr


def test_a_time_can_be_refused_and_a_folder_must_be_there(kaffee, refused, model, tmp_path):
    rows = "".join(f"{i**1.5},{10 + i % 2},{10 + i % 3}\n" for i in range(20))
    (tmp_path / "in.csv").write_text("t,left,right\n" + rows)
    assert "irregular sampling" in refused("smooth", model, tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    result = kaffee("smooth", model, tmp_path / "in.csv", "-o", tmp_path / "out.csv", "--time-column", "none")
    assert result.exit_code == 0, result.exception
    nowhere = tmp_path / "nowhere" / "out.csv"
    assert "there is no folder" in refused("smooth", model, tmp_path / "in.csv", "-o", nowhere)


def test_what_parquet_needs_is_said_before_the_work(refused, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = dated(tmp_path / "in.csv")
    monkeypatch.setattr("kaffee.inference.recordings.smooth", lambda *args, **kwargs: pytest.fail("the work was done"))
    sentence = refused("smooth", model, path, "-o", tmp_path / "out.parquet", "--time-column", "when")
    assert sentence.endswith("parquet files need pyarrow. Install it with: pip install 'kaffee[parquet]'")
