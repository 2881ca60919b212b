"""From a series to a surrogate: gaps, several recordings, interruptions at every save."""

import jax
import numpy as np
import pytest
from small import DT, gappy_fit, gappy_series, rotation, same_arrays, small_settings

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError, KaffeeError
from kaffee.fitting.config import override
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import FitSettings
from kaffee.fitting.stages import StageStore
from kaffee.training.loop import Watcher


class Memory(StageStore):
    """Keeps stages in memory and is killed right after its n-th write."""

    def __init__(self):
        self.stages, self.progress, self.writes, self.dies_after = {}, {}, [], None

    def _written(self, what):
        self.writes.append(what)
        if len(self.writes) == self.dies_after:
            raise SystemExit

    def finished(self, name):
        return self.stages.get(name)

    def interrupted(self, name, template):
        if name in self.progress:
            assert jax.tree.structure(self.progress[name][0]) == jax.tree.structure(template)
        return self.progress.get(name)

    def save_progress(self, name, state, losses):
        self.progress[name] = state, losses
        self._written((name, int(state.update)))

    def save_stage(self, name, stage):
        self.stages[name] = stage
        self._written((name, "done"))


WRITES = [("prior", 8), ("prior", 12), ("prior", "done"), ("kaffee", 4), ("kaffee", 6), ("kaffee", "done")]


def test_a_gappy_series_of_several_recordings_can_be_fitted():
    found, series = gappy_fit(), gappy_series()
    assert 0.25 < series.missing_fraction < 0.35
    assert len(set(series.lengths)) == 3
    for stage in (found.prior, found.fitted):
        assert np.isfinite(stage.losses).all()
        assert stage.completed
        assert stage.skipped == 0
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(stage.reconstruction.model))
    assert len(found.prior.losses) == 12
    assert len(found.fitted.losses) == 6


def test_the_result_carries_all_that_ties_it_to_the_data():
    fitted, series = gappy_fit().fitted.reconstruction, gappy_series()
    assert fitted.columns == ("left", "right")
    assert fitted.dt == pytest.approx(DT)
    assert fitted.method == "kaffee"
    assert fitted.scaler == Scaler.fit(series.split(0.8)[0])
    assert fitted.provenance["fingerprint"] == series.fingerprint
    assert fitted.provenance["seed"] == 0
    assert fitted.provenance["settings"]["core"]["latent_dim"] == 4
    assert fitted.provenance["training"] == {"skipped": 0, "completed": True, "report": "6 updates, 0 skipped"}


def test_the_time_step_is_that_of_the_series_unless_given():
    none = small_settings("pretraining.schedule.num_updates=0", "adaptation.schedule.num_updates=0")
    series = gappy_series()
    timeless = Series.from_arrays(list(series.recordings))
    assert fit(series, none).prior.reconstruction.dt == pytest.approx(DT)
    assert fit(series, none, dt=3.0).prior.reconstruction.dt == 3.0
    assert fit(timeless, none).prior.reconstruction.dt == 1.0


def test_held_out_data_are_the_end_of_every_recording_and_do_not_leak():
    series = gappy_series()
    changed = [values.copy() for values in series.recordings]
    changed[0][-3:] += 100.0
    none = small_settings("pretraining.schedule.num_updates=0", "adaptation.schedule.num_updates=0")
    one = fit(series, none)
    other = fit(Series.from_arrays(changed, times=list(series.times), columns=series.columns), none)
    assert one.train == other.train
    assert one.test != other.test
    assert same_arrays(one.fitted.reconstruction.model, other.fitted.reconstruction.model)
    assert one.train.lengths == (72, 48, 20)
    assert one.test.lengths == (18, 12, 5)


def test_stages_are_saved_in_order():
    store = Memory()
    fit(gappy_series(), small_settings(), store=store)
    assert store.writes == WRITES


@pytest.mark.parametrize("number", range(1, len(WRITES) + 1))
def test_a_fit_killed_after_any_write_goes_on_to_the_same_end(number):
    store = Memory()
    store.dies_after = number
    with pytest.raises(SystemExit):
        fit(gappy_series(), small_settings(), store=store)
    store.dies_after = None
    resumed, undisturbed = fit(gappy_series(), small_settings(), store=store), gappy_fit()
    for ours, theirs in ((resumed.prior, undisturbed.prior), (resumed.fitted, undisturbed.fitted)):
        assert same_arrays(ours.reconstruction.model, theirs.reconstruction.model)
        np.testing.assert_array_equal(ours.losses, theirs.losses)
        assert ours.report == theirs.report
    assert store.writes[-1] == ("kaffee", "done")


def test_a_finished_fit_is_not_trained_again():
    store = Memory()
    fit(gappy_series(), small_settings(), store=store)
    count = len(store.writes)
    fit(gappy_series(), small_settings(), store=store, watcher=lambda *_: pytest.fail("something is trained"))
    assert len(store.writes) == count


def test_watchers_are_told_the_stage_and_its_length():
    asked = []

    def watcher(title, total):
        asked.append((title, total))
        return Watcher()

    fit(gappy_series(), small_settings(), watcher=watcher)
    assert asked == [("Pretraining", 12), ("Adaptation (kaffee)", 6)]


def test_pretraining_that_cannot_recover_stops_with_its_reason_and_stays_stopped():
    store = Memory()
    wild = small_settings("pretraining.optimiser.learning_rate=1e30", "pretraining.schedule.patience=2")
    for _ in range(2):
        with pytest.raises(
            KaffeeError, match=r"Pretraining: 4 updates, 3 skipped; the run could not recover and stopped: "
        ):
            fit(gappy_series(), wild, store=store)
    assert store.stages == {}


@pytest.mark.parametrize(
    ("values", "settings", "kind", "message"),
    [
        (rotation(40), (), DataError, "32 steps, but a window needs 51"),
        (rotation(4), (), DataError, "3 steps, but a window needs 51"),
        (rotation(40), ("pretraining.window=5",), DataError, "32 steps, but a window needs 41"),
        (rotation(100), ("core.latent_dim=1",), ConfigError, "smaller than the 2 observed"),
        (rotation(100), ("core.num_gates=21",), ConfigError, "num_gates must lie between"),
        (np.ones((100, 2)), (), DataError, "constant columns 'x1', 'x2'"),
        (rotation(1), (), DataError, "leaves an empty train or test part"),
    ],
)
def test_data_that_cannot_be_fitted_are_refused_before_any_training(values, settings, kind, message):
    class Refusing(StageStore):
        def finished(self, name):
            raise AssertionError("training was about to start")

    with pytest.raises(kind, match=message):
        fit(Series.from_arrays(values), override(FitSettings(), settings), store=Refusing())
