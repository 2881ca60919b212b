"""Refits: one folder for each seed, the best becomes the run, nothing is repeated, nothing is lost."""

import math
import multiprocessing
from dataclasses import replace

import pytest
from small import gappy_series, small_settings

from kaffee.certification.stability import Candidate
from kaffee.errors import CheckpointError, ConfigError, KaffeeError
from kaffee.fitting import refits
from kaffee.fitting.ladder import describe_rungs, score_rung
from kaffee.fitting.refits import choose_refit, count_refits, fit_refits, load_pool, load_refits
from kaffee.fitting.run import Loaded, Run, Source
from kaffee.training.loop import Watcher


def start(path, *settings, series=None, source=None):
    source = source or Source(paths=("x.csv",))
    return Run.start(path, small_settings(*settings), source, Loaded(series or gappy_series()))


def weights(folder):
    """The content of the models of a run's own stages."""
    return {name: next((folder / name).glob("model-*")).read_bytes() for name in ("prior", "kaffee")}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    run, titles = start(tmp_path_factory.mktemp("refits") / "run", "seed=3"), []

    def watch(title, total):
        titles.append(title)
        return Watcher()

    return run, fit_refits(run, 3, watcher=watch), titles


def test_every_seed_has_a_run_of_its_own_and_the_best_becomes_the_run(done):
    run, candidates, titles = done
    assert [each.seed for each in candidates] == [3, 4, 5]
    assert titles[:3] == ["Seed 3: Pretraining", "Seed 3: Adaptation (kaffee)", "Seed 4: Pretraining"]
    best = min(candidates, key=lambda each: each.validation)
    assert weights(run.path) == weights(run.path / "refits" / f"seed-{best.seed}")
    assert run.fit.fitted.reconstruction.provenance["seed"] == best.seed
    assert Run.open(run.path).model.provenance["seed"] == best.seed
    assert len({weights(run.path / "refits" / f"seed-{seed}")["kaffee"] for seed in (3, 4, 5)}) == 3
    assert not list(run.path.rglob(".*"))


def test_a_fit_from_scratch_is_scored_by_its_last_updates(done):
    run, candidates, _ = done
    losses = Run.open(run.path / "refits" / "seed-4").fitted.losses
    assert candidates[1][:3] == (4, "scratch", pytest.approx(float(losses[-1])))


def test_refits_are_found_again_and_counted(done):
    run, candidates, _ = done
    assert count_refits(run.path) == 3
    assert [each[:3] for each in load_refits(run)] == [each[:3] for each in candidates]
    assert [model.provenance["seed"] for model in load_pool(run.path)] == [3, 4, 5]
    assert load_refits(Run.open(run.path / "refits" / "seed-3")) == []
    with pytest.raises(ConfigError, match=r"has no refits. Make some first: kaffee fit DATA -o .* --seeds 5"):
        load_pool(run.path / "refits" / "seed-3")


def test_the_same_call_repeats_nothing_and_a_fit_that_is_there_is_the_first(tmp_path, monkeypatch):
    run = start(tmp_path / "run")
    alone = run.train()
    trained, train = [], Run.train
    monkeypatch.setattr(Run, "train", lambda self, watcher=None: trained.append(self.path.name) or train(self, watcher))
    first = fit_refits(run, 2)
    assert trained == ["seed-1"]
    assert first[0].reconstruction.provenance == alone.fitted.reconstruction.provenance
    fit_refits(start(tmp_path / "run"), 2)
    assert trained == ["seed-1"]


def test_several_processes_give_what_one_gives(done, tmp_path):
    run, titles = start(tmp_path / "run", "seed=3"), []

    def watch(title, total):
        titles.append(title)
        return Watcher()

    candidates = fit_refits(run, 2, jobs=2, watcher=watch)
    assert [each.validation for each in candidates] == pytest.approx(
        [each.validation for each in done[1][:2]], rel=1e-4
    )
    assert sorted(titles)[0] == "Seed 3: Adaptation (kaffee)"
    assert len(titles) == 4


def test_a_process_that_fails_is_named_and_leaves_no_other_behind(tmp_path):
    run = start(tmp_path / "run")
    broken = {seed: refits._start(run, replace(run.settings, seed=seed)) for seed in (0, 1)}
    for each in broken.values():
        (each.path / "run.json").write_text("{")
    with pytest.raises(KaffeeError, match=r"The fit with seed [01] failed: .*run.json is not a readable run"):
        refits._train_beside(broken, [0, 1], 2, lambda title, total: Watcher())
    assert multiprocessing.active_children() == []


def test_a_worker_stops_when_nobody_listens():
    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    ours.close()
    with pytest.raises(KeyboardInterrupt):
        refits._Relay(theirs).advanced(1, 0.5, 0)


def test_all_refits_see_the_same_simulation_and_can_be_opened_alone(tmp_path):
    source = Source(system="lorenz63")
    settings = small_settings("simulation.num_steps=60")
    loaded = source.load(settings)
    run = Run.start(tmp_path / "run", settings, source, loaded)
    other = refits._start(run, replace(settings, seed=7))
    assert other.settings.seed == 7
    assert Run.open(other.path).loaded.series.fingerprint == loaded.series.fingerprint


def test_other_settings_are_refused_while_only_refits_are_saved(tmp_path):
    run = start(tmp_path / "run")
    refits._start(run, run.settings).train()
    with pytest.raises(CheckpointError, match="holds another run"):
        start(tmp_path / "run", "seed=9")


def test_refits_that_are_not_finished_name_the_command_that_goes_on(tmp_path):
    run = start(tmp_path / "run")
    (tmp_path / "run" / "refits").mkdir()
    (tmp_path / "run" / "refits" / "refits.json").write_text('{"seeds": [0, 1]}')
    with pytest.raises(CheckpointError, match=r"no finished fit with seed 0 yet. First: kaffee resume .*run$"):
        load_refits(run)


def test_a_damaged_list_is_an_error(tmp_path):
    (tmp_path / "refits").mkdir()
    (tmp_path / "refits" / "refits.json").write_text('{"seeds": "all"}')
    with pytest.raises(CheckpointError, match="is damaged or was edited"):
        count_refits(tmp_path)


def test_the_choice_does_not_trip_over_missing_scores():
    scores = [math.nan, math.inf, 0.5, 0.2, 0.2]
    candidates = [Candidate(seed, "linear", score, None) for seed, score in enumerate(scores)]
    assert choose_refit(candidates).seed == 3
    assert choose_refit(candidates[:1]).seed == 0


def test_the_score_of_a_rung_is_weighted_as_in_the_fit_and_infinite_if_a_forecast_failed():
    rungs = {"chosen": "alrnn", "linear": {"nll": [1.0, 2.0, 3.0]}, "alrnn": {"nll": [0.0, 1.0, 2.0]}}
    assert score_rung(rungs) == pytest.approx(0.5 * 0.0 + 0.25 * 1.0 + 0.25 * 2.0)
    assert score_rung({**rungs, "chosen": "linear"}) == pytest.approx(1.75)
    assert score_rung({**rungs, "alrnn": {"nll": [0.0, None, 2.0]}}) == math.inf
    unread = {"chosen": "alrnn", "linear": {"nll": [1.0, None]}, "alrnn": {"nll": [0.5, None]}}
    assert score_rung(unread) == 0.5
    assert score_rung({"chosen": "linear", "linear": {"nll": [None]}}) == 0.0


def test_rungs_without_a_comparison_have_their_sentence():
    assert describe_rungs({"chosen": "linear", "structure": "order 2"}) == "A linear model was asked for (order 2)."
    assert "not both can forecast" in describe_rungs({"chosen": "alrnn", "gain": None, "error": 0.0, "structure": ""})
