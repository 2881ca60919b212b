"""The settings of a fit: absurd values are refused before any work is done."""

import jax
import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.fitting.config import override
from kaffee.fitting.settings import CoreSettings, FitSettings
from kaffee.model.alrnn import ALRNN
from kaffee.model.maps import Linear, Polynomial, ResidualMLP


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed=-1", "seed lies between 0 and 4294967295, not -1"),
        ("seed=4294967296", "seed lies between"),
        ("method=kaffe", "Unknown method 'kaffe'. Did you mean 'kaffee'"),
        ("method=", "Unknown method ''"),
        ("test_fraction=0", "test_fraction lies between 0 and 1, not 0.0"),
        ("test_fraction=1", "test_fraction lies between 0 and 1, not 1.0"),
        ("test_fraction=2", "test_fraction lies between 0 and 1, not 2.0"),
        ("test_fraction=-0.5", "test_fraction lies between"),
        ("test_fraction=nan", "test_fraction lies between"),
        ("core.latent_dim=0", "core.latent_dim lies between 1 and 10000, not 0"),
        ("core.latent_dim=100000000", "core.latent_dim lies between"),
        ("core.structure=banded", "core.structure is lowrank:K"),
        ("core.structure=lowrank:0", "core.structure is lowrank:K"),
        ("core.type=lstm", "core.type = 'lstm' does not fit; it must be 'alrnn' or"),
        ("shell.alpha=0", "shell.alpha lies between 0 and 1, not 0.0"),
        ("shell.alpha=1", "shell.alpha lies between"),
        ("shell.residuals=dense", "shell.residuals = 'dense' does not fit"),
        ("pretraining.window=0", "window of pretraining has at least 1 step"),
        ("pretraining.schedule.num_updates=-1", "num_updates lies between"),
        ("pretraining.schedule.batch_size=0", "batch_size must be at least 1"),
        ("pretraining.forcing.interval=0", "forcing interval is at least 1"),
        ("pretraining.forcing.alpha=2", r"alpha lies in \[0, 1\]"),
        ("pretraining.optimiser.learning_rate=-1", "learning_rate must be positive"),
        ("pretraining.optimiser.algorithm=adamm", "Did you mean 'adam'"),
        ("adaptation.scored=0", "scored >= 1"),
        ("adaptation.burn_in=-1", "burn_in >= 0"),
        ("adaptation.segment=7", "segment must divide"),
        ("adaptation.start=middle", "'embedding' or 'forced'"),
        ("adaptation.gradient=numeric", "'adjoint' or 'autodiff'"),
        ("adaptation.optimiser.clip_norm=0", "clip_norm must be positive"),
    ],
)
def test_absurd_values_are_refused_at_once(text, message):
    with pytest.raises(ConfigError, match=message):
        override(FitSettings(), [text])


@pytest.mark.parametrize("rung", ["auto", "linear", "alrnn"])
def test_rungs_are_for_kaffee_alone(rung):
    assert override(FitSettings(), [f"rung={rung}"]).rung == rung
    with pytest.raises(ConfigError, match=f"rung = {rung} chooses by forecasts of method = kaffee; .*--rung scratch"):
        override(FitSettings(), ["method=frozen-core", f"rung={rung}"])


def test_a_structured_core_is_an_alrnn_from_random_weights():
    core = CoreSettings(latent_dim=6, structure="lowrank:2").create(3, key=jax.random.key(0))
    assert isinstance(core, ALRNN)
    assert core.hyperparameters()["structure"] == "lowrank:2"
    with pytest.raises(ConfigError, match=r"for core\.type = alrnn, not mlp"):
        CoreSettings(type="mlp", structure="lowrank:2")
    with pytest.raises(ConfigError, match="whose W is dense"):
        FitSettings(rung="auto", core=CoreSettings(structure="lowrank:2"))


def test_methods_are_known_by_one_spelling():
    assert override(FitSettings(), ["method=Core-Collapse"]).method == "core_collapse"


@pytest.mark.parametrize(
    ("settings", "num_observed", "expected"),
    [
        (CoreSettings(), 3, 20),
        (CoreSettings(), 20, 100),
        (CoreSettings("mlp"), 1, 20),
        (CoreSettings("linear"), 3, 3),
        (CoreSettings("polynomial"), 2, 2),
        (CoreSettings(latent_dim=3), 3, 3),
    ],
)
def test_the_latent_dimension(settings, num_observed, expected):
    assert settings.resolved_dim(num_observed) == expected


def test_fewer_latent_than_observed_coordinates_are_refused():
    with pytest.raises(ConfigError, match=r"core.latent_dim = 2 is smaller than the 3 observed coordinates"):
        CoreSettings(latent_dim=2).resolved_dim(3)


@pytest.mark.parametrize(
    ("name", "kind"), [("alrnn", ALRNN), ("linear", Linear), ("polynomial", Polynomial), ("mlp", ResidualMLP)]
)
def test_every_core_can_be_made(name, kind):
    core = CoreSettings(name, latent_dim=3, hidden_dim=5).create(2, key=jax.random.key(0))
    assert type(core) is kind
    assert core.latent_dim == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (CoreSettings(latent_dim=4, num_gates=5), "num_gates must lie between 0 and latent_dim = 4, not 5"),
        (CoreSettings(latent_dim=4, num_gates=-1), "num_gates must lie between"),
        (CoreSettings("mlp", depth=0), "depth and hidden_dim must be at least 1"),
        (CoreSettings("polynomial", degree=1), "needs degree >= 2"),
    ],
)
def test_cores_that_cannot_be_made_are_clear_errors(settings, message):
    with pytest.raises(ConfigError, match=message):
        settings.create(2, key=jax.random.key(0))


def test_keys_are_different_from_each_other_and_between_seeds():
    keys = [np.asarray(jax.random.key_data(k)) for s in (0, 1) for k in FitSettings(seed=s).keys().values()]
    assert len({tuple(k.tolist()) for k in keys}) == 6
