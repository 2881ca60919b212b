"""Where data come from: files or a system, as typed and as written down."""

import json

import numpy as np
import pytest
from small import rotation, small_settings

from kaffee.data.series import Series
from kaffee.data.writing import write_series
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.fitting.config import override
from kaffee.fitting.run import Source, parse_source, short_recordings, summarise
from kaffee.fitting.settings import FitSettings
from kaffee.records import jsonable
from kaffee.systems.catalogue import get_system


@pytest.fixture
def csv(tmp_path):
    return str(write_series(rotation(50), tmp_path / "lab.csv"))


def test_files_are_remembered_by_their_full_path(csv, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    source = parse_source(["lab.csv", csv], {}, {"columns": ["x1"]})
    assert source == Source(paths=(csv, csv), options={"columns": ["x1"]})


@pytest.mark.parametrize("name", ["lorenz63", "Lorenz-63", "LORENZ 63"])
def test_a_system_is_known_by_its_name(name):
    assert parse_source([name], {"rho": 30.0}, {}) == Source(system="lorenz63", parameters={"rho": 30.0})


def test_a_system_stays_a_system_beside_a_folder_of_its_name(tmp_path, monkeypatch):
    """Such as the folder of the run that is to be continued: kaffee fit lorenz63 -o lorenz63."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lorenz63").mkdir()
    assert parse_source(["lorenz63"], {}, {}).system == "lorenz63"


def test_sources_survive_json(csv):
    for source in (parse_source([csv], {}, {"time_column": "t"}), Source(system="lorenz96", parameters={"N": 8})):
        assert Source.from_dict(json.loads(json.dumps(jsonable(source)))) == source


@pytest.mark.parametrize("data", [None, {}, [], {"system": None}, {"system": None, "parameters": 3, "paths": []}])
def test_a_source_that_was_edited_is_a_clear_error(data):
    with pytest.raises(CheckpointError, match="does not say where its data came from"):
        Source.from_dict(data)


@pytest.mark.parametrize(
    ("data", "parameters", "options", "kind", "message"),
    [
        (["lorenz36"], {}, {}, DataError, "neither a file nor a system. Unknown system 'lorenz36'. Did you mean"),
        (["zzz"], {"F": 1.0}, {}, DataError, "neither a file nor a system"),
        (["a.csv", "nothing"], {}, {}, DataError, "There is no file nothing"),
        (["lorenz63", "lorenz96"], {}, {}, DataError, "There is no file lorenz63"),
        (["a.csv"], {"F": 1.0}, {}, ConfigError, "--param is for systems; a.csv is a file"),
        (["lorenz63"], {"rhoo": 1.0}, {}, ConfigError, "Unknown parameter of lorenz63 'rhoo'. Did you mean 'rho'"),
        (["lorenz63"], {}, {"columns": ["x1"]}, ConfigError, "columns: for files only; lorenz63 is simulated"),
    ],
)
def test_what_is_neither_is_a_clear_error(data, parameters, options, kind, message):
    with pytest.raises(kind, match=message):
        parse_source(data, parameters, options)


def test_a_folder_of_data_is_a_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"is a folder. Pass the files in it"):
        parse_source([str(tmp_path)], {}, {})


def test_files_are_read_with_their_options(csv):
    loaded = parse_source([csv], {}, {"columns": ["x2"]}).load(small_settings())
    assert loaded.series.columns == ("x2",)
    assert (loaded.dt, loaded.truth) == (None, None)


def test_a_missing_file_is_a_clear_error(tmp_path):
    source = parse_source([str(tmp_path / "nothing.csv")], {}, {})
    with pytest.raises(DataError, match=r"nothing.csv: no such file"):
        source.load(small_settings())


def test_a_simulated_system_knows_its_truth():
    settings = small_settings("simulation.num_steps=50", "simulation.observation_noise=0")
    loaded = Source(system="lorenz63").load(settings)
    assert loaded.series.num_steps == 50
    assert loaded.dt == get_system("lorenz63").dt == pytest.approx(loaded.series.time_step)
    assert loaded.truth.lambda_1 > 0
    # The held-out states are those behind the held-out observations, which have no noise here.
    np.testing.assert_array_equal(loaded.truth.test_states, loaded.series.split(0.8)[1].recordings[0])
    assert loaded.truth.states.shape == loaded.truth.again.shape == (20_000, 3)
    again = Source(system="lorenz63").load(settings)
    assert again.series.fingerprint == loaded.series.fingerprint


@pytest.mark.parametrize(
    ("setting", "message"),
    [("simulation.num_steps=0", "num_steps = 0"), ("simulation.process_noise=-1", "process_noise = -1.0")],
)
def test_absurd_simulations_are_clear_errors(setting, message):
    with pytest.raises(ConfigError, match=message):
        Source(system="lorenz63").load(small_settings(setting))


def test_changed_data_are_noticed(csv):
    source = parse_source([csv], {}, {})
    series = source.load(small_settings()).series
    source.check_unchanged(series, series.fingerprint)
    with pytest.raises(CheckpointError, match=r"lab.csv changed since this run was started .* Restore the file"):
        source.check_unchanged(series, "0" * 64)


def test_a_series_in_one_line():
    values = rotation(50)
    assert summarise(Series.from_arrays(values)) == "50 steps x 2 coordinates"
    values[0, 0] = np.nan
    two = Series.from_arrays([values, rotation(30)])
    assert summarise(two) == "80 steps in 2 recordings of 30-50 x 2 coordinates, 0.6 % missing"


def test_recordings_too_short_for_a_window_are_named():
    series = Series.from_arrays([np.random.default_rng(0).standard_normal((n, 2)) for n in (200, 20)])
    notes = short_recordings(series, FitSettings())
    assert notes == [
        "pretraining does not use recording 1: shorter than its windows of 51 rows",
        "adaptation does not use recording 1: shorter than its windows of 41 rows",
    ]
    short_windows = override(FitSettings(), ["pretraining.window=5", "adaptation.scored=2"])
    assert short_recordings(series, short_windows) == []
