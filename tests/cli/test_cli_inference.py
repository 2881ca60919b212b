"""`kaffee filter`, `smooth`, `impute`, `forecast` and `run-free` on files, and `filter --follow` in a real pipe."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from small import DT, gappy_series, small_model, small_settings

from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.data.reading import read_series
from kaffee.data.scaler import Scaler
from kaffee.data.writing import write_series
from kaffee.fitting.run import Loaded, Run, Source
from kaffee.inference.recordings import filter_recordings, impute

COMMAND = "from kaffee.cli.main import run\nrun()\n"


@pytest.fixture(scope="session")
def reconstruction():
    series = gappy_series()
    return Reconstruction(small_model(), Scaler.fit(series), series.columns, DT, "kaffee")


@pytest.fixture(scope="session")
def trained(reconstruction, tmp_path_factory):
    """A run whose stages nobody trained."""
    folder = tmp_path_factory.mktemp("inference") / "run"
    Run.start(folder, small_settings(), Source(paths=("gappy.csv",)), Loaded(gappy_series()))
    reconstruction.save(folder / "kaffee")
    return folder


@pytest.fixture(scope="session")
def file(tmp_path_factory):
    return write_series(gappy_series(), tmp_path_factory.mktemp("files") / "gappy.csv")


def test_filter_writes_what_the_library_finds_with_times_and_recordings(
    kaffee, trained, reconstruction, file, tmp_path
):
    output = tmp_path / "out.csv"
    result = kaffee("filter", trained, file, "-o", output, "--quantiles", "0.05,0.5", "--json")
    assert result.exit_code == 0, result.exception
    expected = filter_recordings(reconstruction, gappy_series()).to_series([0.05, 0.5])
    assert read_series(output) == expected
    facts = json.loads(result.stdout)
    assert facts["columns"][:4] == ["left_mean", "left_std", "left_q05", "left_q50"]
    assert (facts["recordings"], facts["steps"], facts["times"]) == (3, 175, True)


def test_impute_keeps_readings_and_the_folder_of_a_model_is_enough(kaffee, trained, reconstruction, file, tmp_path):
    output = tmp_path / "out.parquet"
    result = kaffee("impute", trained / "kaffee", file, "-o", output)
    assert result.exit_code == 0, result.exception
    assert "readings imputed (" in result.stdout
    assert read_series(output) == impute(reconstruction, gappy_series()).to_series()


def test_smooth_takes_columns_in_place_of_the_models_and_npy_drops_times(kaffee, trained, tmp_path):
    series = gappy_series()
    renamed = type(series)(series.recordings[:1], ("a", "b"), series.times[:1])
    path = write_series(renamed, tmp_path / "in.npz")
    result = kaffee("smooth", trained, path, "-o", tmp_path / "out.npy", "--columns", "a,b", "--latent", "--json")
    assert result.exit_code == 0, result.exception
    facts = json.loads(result.stdout)
    assert not facts["times"]
    assert np.load(tmp_path / "out.npy").shape == (90, len(facts["columns"]))
    assert facts["columns"][-1] == "z4_std"


def test_forecast_goes_on_in_time(kaffee, trained, file, tmp_path):
    output = tmp_path / "out.csv"
    result = kaffee("forecast", trained, file, "-o", output, "--steps", 5, "--members", 20, "--at", "5", "--json")
    assert result.exit_code == 0, result.exception
    facts = json.loads(result.stdout)
    assert (facts["recordings"], facts["members"], facts["seed"]) == ([0, 1, 2], 20, 0)
    table = read_series(output)
    assert table.columns[:3] == ("left_mean", "left_std", "left_q05")
    np.testing.assert_allclose(table.times[0], 5 + DT * np.arange(1, 6))


def test_run_free_writes_runs_of_the_model(kaffee, trained, tmp_path):
    output = tmp_path / "out.csv"
    result = kaffee("run-free", trained, "-o", output, "--steps", 30, "--runs", 2, "--no-shell")
    assert result.exit_code == 0, result.exception
    assert "none of 2 rollouts diverged" in result.stdout
    assert read_series(output).lengths == (30, 30)


def test_forecasts_and_free_runs_repeat_what_the_certificate_says(kaffee, trained, file, tmp_path):
    """Of a run that has one: what the model is good for, and that more is asked for."""
    sentence = "Good for: forecasts up to 3 steps (0.75 units of time)."
    purpose = {"horizon": 3, "time": 0.75, "longest": 9, "with_noise": "fail", "without_noise": "pass"}
    run, output = tmp_path / "run", tmp_path / "out.csv"
    shutil.copytree(trained, run)
    (run / "certificate.json").write_text(json.dumps({"purpose": {**purpose, "sentence": sentence}}))
    how = ("-o", output, "--members", 20)
    within = kaffee("forecast", run, file, *how, "--steps", 3).stderr
    assert sentence in within
    assert "warning" not in within
    assert (
        "up to 3 steps (0.75 units of time); 5 steps are beyond that"
        in kaffee("forecast", run, file, *how, "--steps", 5).stderr
    )
    noisy = kaffee("run-free", run, "-o", output, "--steps", 5).stderr
    assert "free runs with noise: by its certificate this model is not good for them" in noisy
    assert "warning" not in kaffee("run-free", run, "-o", output, "--steps", 5, "--no-shell").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smooth", "RUN", "nothing.csv", "-o", "out.csv"], "nothing.csv: no such file"),
        (["smooth", "RUN", "EMPTY", "-o", "out.csv"], "the file is empty"),
        (["smooth", "RUN", "OTHER", "-o", "out.csv"], "the model needs 'left', 'right', but 'left' is not among"),
        (["smooth", "RUN", "SLOW", "-o", "out.csv"], "a row every 1, but one step of the model is 0.25"),
        (["smooth", "RUN", "FILE", "-o", "out.xls"], "cannot write '.xls'"),
        (["smooth", "RUN", "FILE", "-o", "out.csv", "--columns", "left"], "--columns names 1 columns; the model has 2"),
        (["smooth", "RUN", "FILE", "-o", "out.csv", "--quantiles", "5,95"], "quantile level lies between 0 and 1"),
        (["smooth", "RUN", "FILE", "-o", "out.csv", "--quantiles", "low"], "numbers between 0 and 1 are needed"),
        (["smooth", "NOWHERE", "FILE", "-o", "out.csv"], "There is no run at"),
        (["filter", "RUN", "FILE"], "Name a recording and an output"),
        (["filter", "RUN", "SHORT", "-o", "out.csv"], "one row anchors the filter"),
        (["filter", "RUN", "FILE", "--follow"], "leave out files and -o"),
        (["filter", "RUN", "FILE", "-o", "out.csv", "--skip-broken"], "belong to --follow"),
        (["forecast", "RUN", "FILE", "-o", "out.csv", "--at", "noon"], "neither a number nor an ISO 8601 time"),
        (["forecast", "RUN", "FILE", "-o", "out.csv", "--at", "1999-01-01"], "no recording covers the time"),
    ],
)
def test_what_does_not_fit_is_one_sentence(refused, trained, file, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    places = {"RUN": trained, "FILE": file, "NOWHERE": tmp_path / "nowhere"}
    for name, text in (
        ("EMPTY", ""),
        ("OTHER", "up,right\n1,2\n3,4\n"),
        ("SLOW", "t,left,right\n0,1,2\n1,3,4\n"),
        ("SHORT", "left,right\n1,2\n"),
    ):
        places[name] = tmp_path / f"{name.lower()}.csv"
        places[name].write_text(text)
    assert message in refused(*[places.get(argument, argument) for argument in arguments])
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("command", ["filter", "smooth", "impute", "forecast"])
def test_a_recording_is_never_overwritten(refused, trained, file, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    before = file.read_bytes()
    (tmp_path / "link.csv").symlink_to(file)
    for output in (file, file.parent / ".." / file.parent.name / file.name, "link.csv"):
        message = refused(command, trained, file, "-o", output)
        assert f"would overwrite {file}, which is read. Choose another name with -o." in message
    assert file.read_bytes() == before
    assert "would overwrite" in refused("zeroshot", file, "-o", file)


def test_positions_that_decide_are_mentioned(reconstruction, tmp_path):
    replace(reconstruction, columns=("x1", "x2")).save(tmp_path / "model")
    command = [sys.executable, "-c", COMMAND, "filter", str(tmp_path / "model"), "in.csv", "-o", "out.csv"]

    def said(names, *more):
        write_series(replace(gappy_series(), columns=names), tmp_path / "in.csv")
        found = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True, check=False)
        return found.stderr

    note = "warning: in.csv: 'a', 'b' are taken for the model's 'x1', 'x2', by their position."
    assert said(("a", "b")).startswith(note)
    assert said(("a", "b"), "--columns", "a,b") == ""
    assert said(("x2", "b")).startswith("error: in.csv: the model needs 'x1', 'x2', but 'x1' is not among 'x2', 'b'.")


def test_follow_fills_in_what_times_leave_out_and_goes_on_in_time(kaffee, refused, trained, tmp_path):
    lines = ["t,left,right", *(f"{DT * i},{10 + i % 3},{11 - i % 2}" for i in (0, 1, 2, 5, 6, 9))]
    whole = kaffee("filter", trained, "--follow", content="\n".join(lines))
    assert whole.exit_code == 0, whole.exception
    assert [json.loads(line).get("skipped") for line in whole.stdout.splitlines()] == [None, None, None, 2, None, 2]
    assert "skipped: 4" in whole.stderr
    state = tmp_path / "state"
    parts = [
        kaffee("filter", trained, "--follow", "--state", state, content="\n".join([lines[0], *part])).stdout
        for part in (lines[1:4], lines[4:])
    ]
    means = [json.loads(line)["left_mean"] for line in "".join(parts).splitlines()]
    assert means == [json.loads(line)["left_mean"] for line in whole.stdout.splitlines()]
    each = kaffee("filter", trained, "--follow", "--any-step", "--json", content="\n".join(lines))
    assert json.loads(each.stderr)["steps"] == 6
    assert "leave them out with --follow" in refused("filter", trained, "--follow", "--columns", "a,b")


def test_follow_loses_no_row_to_what_comes_between_rows_with_times(kaffee, trained):
    rows = [f"{DT * i},{10 + i % 3},{11 - i % 2}" for i in range(6)]
    clean, mixed, blank = (
        kaffee(
            "filter", trained, "--follow", "--json", content="".join(["t,left,right\n", *(row + end for row in rows)])
        )
        for end in ("\n", "\n### still here\n", "\n\n")
    )
    assert [each.exit_code for each in (clean, mixed, blank)] == [0, 3, 0]
    assert [line.split(":")[0] for line in mixed.stderr.splitlines()[:-1]] == [f"line {n}" for n in range(3, 14, 2)]
    means = [json.loads(line)["left_mean"] for line in clean.stdout.splitlines()]
    for each in (mixed, blank):
        objects = [json.loads(line) for line in each.stdout.splitlines()]
        assert [o["line"] for o in objects] == list(range(2, 14))
        assert [o["left_mean"] for o in objects if "left_mean" in o] == means


def test_follow_writes_the_quantiles_of_the_file_command(kaffee, refused, trained, tmp_path):
    levels = ("--quantiles", "0.025,0.5")
    lines = ["left,right", *(f"{10 + i % 3},{11 - i % 2}" for i in range(30))]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    assert kaffee("filter", trained, tmp_path / "in.csv", "-o", tmp_path / "out.csv", *levels).exit_code == 0
    followed = kaffee("filter", trained, "--follow", *levels, content="\n".join(lines))
    assert followed.exit_code == 0, followed.exception
    table = read_series(tmp_path / "out.csv")
    objects = [json.loads(line) for line in followed.stdout.splitlines()]
    assert sorted(objects[-1]) == sorted([*table.columns, "line"])
    values = [[each[name] for name in ("left_q025", "right_q50")] for each in objects]
    picked = [table.columns.index(name) for name in ("left_q025", "right_q50")]
    np.testing.assert_allclose(values, table.recordings[0][:, picked], rtol=1e-5)
    assert "numbers between 0 and 1" in refused("filter", trained, "--follow", "--quantiles", "many")


def test_follow_reports_broken_lines_and_goes_on_from_its_state(kaffee, trained, tmp_path):
    lines = [f"{10 + i % 3},{11 - i % 2}" for i in range(20)]
    lines[7] = "garbage"
    whole = kaffee("filter", trained, "--follow", "--json", content="\n".join(lines))
    assert whole.exit_code == 3
    assert "line 8: 1 cell, but the model (left, right) has 2" in whole.stderr
    assert json.loads(whole.stderr.splitlines()[-1])["broken"] == 1
    state = tmp_path / "state"
    first = kaffee("filter", trained, "--follow", "--state", state, content="\n".join(lines[:10]))
    second = kaffee("filter", trained, "--follow", "--state", state, content="\n".join(lines[10:]))
    assert (first.exit_code, second.exit_code) == (3, 0)
    means = [json.loads(line)["left_mean"] for line in (first.stdout + second.stdout).splitlines()]
    assert means == [json.loads(line)["left_mean"] for line in whole.stdout.splitlines()]


@pytest.fixture
def pipe(trained):
    """The real thing: a process with pipes at both ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "filter", str(trained), "--follow"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        with suppress(BrokenPipeError):
            stream.close()


def test_every_line_is_answered_at_once_and_ctrl_c_ends_well(pipe):
    for n, line in enumerate((b"10,11\n", b"nan,11\n"), start=1):
        pipe.stdin.write(line)
        pipe.stdin.flush()
        assert json.loads(pipe.stdout.readline())["line"] == n
    pipe.send_signal(signal.SIGINT)
    assert pipe.wait(timeout=120) == 0
    assert pipe.stderr.read() == b""


def test_a_reader_that_leaves_ends_well(pipe):
    pipe.stdout.close()
    with suppress(BrokenPipeError):
        pipe.stdin.write(b"10,11\n" * 20_000)
        pipe.stdin.close()
    assert pipe.wait(timeout=120) == 0
    assert pipe.stderr.read() == b""


@pytest.mark.parametrize("name", ["lowrank:4", "ukf", "enkf:50"])
def test_another_filter_is_one_option_away(kaffee, trained, reconstruction, file, tmp_path, name):
    output = tmp_path / "out.csv"
    result = kaffee("filter", trained, file, "-o", output, "--quantiles", "0.5", "--filter", name)
    assert result.exit_code == 0, result.exception
    ours = reconstruction.with_filter(name)
    assert read_series(output) == filter_recordings(ours, gappy_series()).to_series([0.5])
    assert load(ours.save(tmp_path / "model")).filter_name == name


def test_particles_that_collapsed_are_a_warning(kaffee, trained, file, tmp_path):
    result = kaffee("filter", trained, file, "-o", tmp_path / "few.csv", "--filter", "particle:2")
    assert "warning: the particles collapsed: in " in result.stderr
    result = kaffee("filter", trained, file, "-o", tmp_path / "dense.csv", "--filter", "ekf")
    assert "collapsed" not in result.stderr
    rows = file.read_text().splitlines()
    for name, words in (("particle:2", "warning: the particles collapsed: in "), ("ekf", '"collapsed": null')):
        result = kaffee(
            "filter", trained, "--follow", "--any-step", "--json", "--filter", name, content="\n".join(rows)
        )
        assert result.exit_code == 0, result.exception
        assert words in result.stderr


def test_a_misspelt_filter_is_refused_before_the_work(refused, trained, file, tmp_path):
    message = refused("forecast", trained, file, "-o", tmp_path / "out.csv", "--filter", "kalman")
    assert "kalman" in message
    assert "lowrank" in message
