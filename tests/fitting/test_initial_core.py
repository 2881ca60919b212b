"""Fits that start from an existing surrogate: a checkpoint, the user's own function, a foundation model."""

import numpy as np
import pytest
from small import gappy_fit, gappy_series, same_arrays, small_settings, standard_series

from kaffee.data.series import Series
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.fitting.initial_core import _context_rows, absolute, is_own
from kaffee.fitting.pipeline import fit
from kaffee.fitting.run import Loaded, Run, Source

OWN = """
import equinox as eqx
import jax.numpy as jnp

class Damped(eqx.Module):
    rate: object
    {attributes}

    def __call__(self, z):
        return z - 0.1 * self.rate * jnp.tanh(z)

def make(num_observed):
    return Damped(jnp.ones({size}))

number = 3
"""


@pytest.fixture
def own(tmp_path):
    def write(attributes="", size="num_observed"):
        path = tmp_path / "mine.py"
        path.write_text(OWN.format(attributes=attributes, size=size))
        return f"{path}:make"

    return write


def started(start, series, *more):
    return fit(series, small_settings(f"core.start={start}", "pretraining.schedule.num_updates=0", *more))


def test_a_checkpoint_goes_on_from_its_core_in_its_units(tmp_path):
    earlier = gappy_fit().prior.reconstruction
    earlier.save(tmp_path / "model")
    moved = Series.from_arrays([3.0 * values + 1.0 for values in gappy_series().recordings])
    result = started(tmp_path / "model", moved)
    assert result.prior.reconstruction.scaler == earlier.scaler
    assert same_arrays(result.prior.reconstruction.model.core, earlier.model.core)
    assert not same_arrays(result.fitted.reconstruction.model.core, earlier.model.core)
    assert len(result.prior.losses) == 0


def test_a_users_function_is_a_core_in_standard_units(own):
    result = started(own(), standard_series())
    model = result.fitted.reconstruction.model
    assert model.latent_dim == 2
    assert result.fitted.completed
    assert not np.allclose(model.core.function.rate, 1.0)


def test_a_users_function_may_be_in_data_units_with_hidden_coordinates(own):
    start = own("units: str = eqx.field(static=True, default='data')\n    latent_dim: int = 3", "3")
    prior = started(start, standard_series()).prior.reconstruction
    assert prior.scaler.scale.tolist() == [1.0, 1.0]
    assert prior.model.latent_dim == 3


def test_a_run_with_a_users_core_is_found_finished_again(own, tmp_path):
    start, series = own(), standard_series()
    settings = small_settings(f"core.start={start}", "pretraining.schedule.num_updates=0")
    run = Run.start(tmp_path / "run", settings, Source(paths=("x.csv",)), Loaded(series), core=start)
    first, again = run.train(), run.train()
    assert same_arrays(first.fitted.reconstruction.model, again.fitted.reconstruction.model)


@pytest.mark.parametrize(
    ("name", "attributes", "size", "message"),
    [
        ("other", "", "num_observed", "has no function 'other'; it has: Damped, make"),
        ("number", "", "num_observed", "has no function 'number'"),
        ("make", "units: str = 'metres'", "num_observed", "'standard' or 'data', not 'metres'"),
        ("make", "", "num_observed + 1", r"cannot be applied to a state of shape \(2,\)"),
        ("make", "latent_dim: int = 1", "1", "has 1 latent coordinates, fewer than the 2 observed ones"),
    ],
)
def test_a_users_function_that_does_not_fit_is_a_clear_error(own, name, attributes, size, message):
    path = own(attributes, size).rpartition(":")[0]
    with pytest.raises(ConfigError, match=message):
        started(f"{path}:{name}", standard_series())


def test_what_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        started(f"{tmp_path}/none.py:make", standard_series())
    with pytest.raises(CheckpointError, match="neither the folder of a kaffee model"):
        started("nowhere", standard_series())
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no finished prior yet"):
        started(tmp_path, standard_series())


def test_columns_must_be_those_of_the_checkpoint(tmp_path):
    gappy_fit().prior.reconstruction.save(tmp_path / "model")
    three = Series.from_arrays(np.random.default_rng(0).standard_normal((300, 3)), columns=["a", "b", "c"])
    with pytest.raises(DataError, match="the model needs"):
        started(tmp_path / "model", three)


def test_paths_are_absolute_and_names_stay(tmp_path, monkeypatch, own):
    own()
    monkeypatch.chdir(tmp_path)
    assert absolute("mine.py:make") == f"{tmp_path}/mine.py:make"
    assert absolute("dynamix-3d-alrnn-v1.0") == "dynamix-3d-alrnn-v1.0"
    assert is_own("a/b.py:f")
    assert not is_own("a/b.py")
    assert not is_own(None)


def test_a_context_is_the_longest_complete_stretch():
    values = np.arange(20.0)[:, None].repeat(2, axis=1)
    values[[3, 12], [0, 1]] = np.nan
    assert _context_rows(Series.from_arrays(values))[:, 0].tolist() == [4.0, 5, 6, 7, 8, 9, 10, 11]
    with pytest.raises(DataError, match="no row is complete"):
        _context_rows(Series.from_arrays([[1.0, np.nan], [np.nan, 2.0], [3.0, np.nan]]))
