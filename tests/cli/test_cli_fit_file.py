"""`kaffee fit` on a file: gaps, names that look like markup, progress, certificates later and again."""

import json
import shutil

import numpy as np
import pytest

import kaffee as library
from cli.conftest import TINY, sets
from kaffee.data.writing import write_series


@pytest.fixture(scope="session")
def from_file(kaffee, tiny, values, tmp_path_factory):
    """(folder of the run, data file, result of the command) of data with gaps, times and nasty names; core frozen."""
    place = tmp_path_factory.mktemp("file")
    gappy = values.copy()
    gappy[np.random.default_rng(0).uniform(size=gappy.shape) < 0.3] = np.nan
    columns = ["<script>x</script>", "$\\frac", "z [/red]"]
    path = write_series(gappy, place / "lab [bold] & co.csv", columns=columns, times=0.5 * np.arange(600))
    folder = place / "run [" / "red]"  # printed, it reads like the end of a colour
    return folder, path, kaffee("fit", path, "-o", folder, "--method", "Frozen-Core", *tiny)


def test_a_file_with_gaps_and_nasty_names_is_fitted(from_file):
    folder, path, result = from_file
    assert result.exit_code == 0, result.exception
    assert f"kaffee: {path.name}: 600 steps x 3 coordinates, 29.3 % missing -> {folder}\n" in result.stderr
    fitted = library.load(folder / "frozen_core")
    assert fitted.columns == ("<script>x</script>", "$\\frac", "z [/red]")
    assert fitted.dt == pytest.approx(0.5)  # from the time column
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script>x" not in page
    assert "lab [bold] &amp; co.csv" in page


def test_a_fit_can_be_certified_later(kaffee, from_file, tiny, tmp_path):
    _, path, _ = from_file
    folder = tmp_path / "bare"
    result = kaffee("fit", path, "-o", folder, "--method", "Frozen-Core", "--no-certify", *tiny)
    assert result.exit_code == 0, result.exception
    assert f"Model: {folder}/frozen_core. To certify it: kaffee report {folder}" in result.stdout
    assert (folder / "frozen_core" / "model.json").exists()
    assert not (folder / "report.html").exists()


def test_repeated_it_shows_the_same_with_what_decided_and_without_the_warning(kaffee, from_file, tiny):
    folder, path, first = from_file
    again = kaffee("fit", path, "-o", folder, "--method", "Frozen-Core", *tiny)
    assert "decided by" in again.stdout == first.stdout
    for verdict in json.loads((folder / "certificate.json").read_text())["verdicts"]:
        assert (verdict["sentence"] in first.stdout) == (verdict["status"] != "pass")
    warning = "warning: 120 held-out rows are too few for the certificate: free runs need 200 rows without gaps, of"
    assert 0 < first.stderr.find(warning) < first.stderr.index("Pretraining")
    assert warning not in again.stderr


def test_the_frozen_core_is_that_of_the_prior(from_file):
    prior, fitted = (library.load(from_file[0] / name).model for name in ("prior", "frozen_core"))
    for name in ("A", "W", "h"):
        np.testing.assert_array_equal(getattr(prior.core, name), getattr(fitted.core, name))
    np.testing.assert_array_equal(prior.embedding, fitted.embedding)
    assert not np.array_equal(prior.shell.log_process_std, fitted.shell.log_process_std)


def test_progress_on_stderr_announces_compilation_and_losses(from_file):
    _, _, result = from_file
    for text in (
        "Pretraining: compiling one update",
        "Pretraining: 20/20 updates, loss ",
        "Adaptation (frozen_core): compiling one update",
        "Adaptation (frozen_core): 5/5 updates, loss ",
        "Certifying: free runs",
    ):
        assert text in result.stderr
    assert "Held-out data and free run" in result.stdout
    assert "Report: " in result.stdout.splitlines()[-1]
    assert "\x1b" not in result.output


def test_a_changed_file_is_noticed_on_resume_and_on_the_same_command(refused, from_file, tiny):
    folder, path, _ = from_file
    content = path.read_text()
    try:
        path.write_text(content + "300.0,1.0,2.0,3.0\n")
        for command in (["resume", folder], ["fit", path, "-o", folder, "--method", "frozen_core", *tiny]):
            assert "changed since this run was started" in refused(*command)
        path.unlink()
        assert "no such file" in refused("resume", folder)
    finally:
        path.write_text(content)


def test_another_file_in_the_same_folder_is_another_run(refused, from_file, tiny, tmp_path):
    folder, path, _ = from_file
    other = shutil.copy(path, tmp_path / "other.csv")
    assert "holds another run (data.source.paths" in refused("fit", other, "-o", folder, *tiny)


def test_a_run_that_cannot_recover_says_so_and_has_its_own_exit_code(kaffee, from_file, tmp_path):
    _, path, _ = from_file
    wild = (*TINY, "rung=scratch", "adaptation.optimiser.learning_rate=1e30", "adaptation.schedule.patience=3")
    result = kaffee("fit", path, "-o", tmp_path / "run", "-q", "--json", *sets(*wild))
    assert result.exit_code == 3, result.exception
    assert "error: 5 updates, 4 skipped; the run could not recover and stopped: the " in result.stderr
    assert json.loads(result.stdout)["kaffee"]["diverged_at"] > 0
    assert (tmp_path / "run" / "report.html").exists()
