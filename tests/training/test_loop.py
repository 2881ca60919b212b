"""The training loop: deterministic, resumable at every chunk, one program, honest about what it skipped."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import same_arrays, small_model, standard_series

from kaffee.checkpoint.reconstruction import fill_arrays, named_arrays
from kaffee.data.windows import WindowSampler
from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import Score
from kaffee.filtering.recursion import QUANTITIES
from kaffee.records import read_record, write_record
from kaffee.training.loop import Schedule, Watcher, train
from kaffee.training.optimiser import Optimiser
from kaffee.training.update import initial_state

NO_FAULTS = jnp.zeros((0, 0), jnp.int32)
DECAYING = Optimiser("adam", learning_rate=0.3, final_learning_rate=0.1, clip_norm=5.0)
SCHEDULE = Schedule(num_updates=23, batch_size=3, report_every=4, save_every=10)
# Chunks end at multiples of report_every after the last save, at saves and at the end.
BOUNDARIES = [4, 8, 10, 14, 18, 20, 23]


class Follow(eqx.Module):
    """The shell follows the mean of the batch: a loss that is different for every batch, and cheap to compile."""

    def __call__(self, model, batch, /):
        distance = model.shell.log_observation_std - jnp.mean(batch.observations, axis=(0, 1))
        return Score(jnp.sum(distance**2), NO_FAULTS)


class WhereTheBatchStarts(eqx.Module):
    """A loss that only tells which batch it saw."""

    def __call__(self, model, batch, /):
        return Score(jnp.sum(batch.starts).astype(jnp.float32) + 0.0 * jnp.sum(model.shell.log_process_std), NO_FAULTS)


class Sometimes(eqx.Module):
    """`Follow` whose loss is NaN, or whose gradient is, where the first window starts below `limit`.

    All of it are arrays, so that one program serves every test.
    """

    limit: jax.Array
    in_gradient: jax.Array
    code: jax.Array

    def __init__(self, limit, in_gradient=False, code=0):
        self.limit, self.in_gradient, self.code = jnp.int32(limit), jnp.array(in_gradient), jnp.int32(code)

    def __call__(self, model, batch, /):
        bad = batch.starts[0] < self.limit
        zero = 0.0 * jnp.sum(model.shell.log_process_std)
        # The square root has an infinite slope at 0, so that 0 * inf is NaN in the gradient only.
        steep = jnp.sqrt(jnp.where(bad & self.in_gradient, zero, 1.0))
        loss = Follow()(model, batch).loss + steep + jnp.where(bad & ~self.in_gradient, jnp.nan, 0.0)
        return Score(loss, jnp.zeros((3, 2), jnp.int32).at[1, 1].set(jnp.where(bad, self.code, 0)))


class Tape(Watcher):
    """Writes down what it hears, and presses Ctrl-C when told to."""

    def __init__(self, interrupt_at=None):
        self.events, self.interrupt_at = [], interrupt_at

    def compiling(self, what):
        self.events.append(("compiling", what))

    def advanced(self, update, loss, skipped):
        self.events.append((update, loss, skipped))
        if update == self.interrupt_at:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def sampler():
    return WindowSampler.from_series(standard_series(), 5)


def run(sampler, objective=None, **options):
    options = {"parts": ("shell",), "optimiser": DECAYING, "schedule": SCHEDULE, "seed": 3} | options
    return train(small_model(), objective or Follow(), sampler, **options)


def expected_batches(sampler, seed, count, batch_size=3):
    keys = [jax.random.fold_in(jax.random.key(seed), i) for i in range(count)]
    return np.array([np.asarray(sampler.sample(key, batch_size).starts) for key in keys])


def test_every_update_sees_another_batch(sampler):
    trained = run(sampler, WhereTheBatchStarts(), seed=5)
    starts = expected_batches(sampler, 5, SCHEDULE.num_updates)
    np.testing.assert_array_equal(trained.losses, starts.sum(axis=1))
    assert len({tuple(row) for row in starts}) == SCHEDULE.num_updates


def test_two_identical_runs_give_identical_parameters_and_another_seed_others(sampler):
    first, second, other = run(sampler), run(sampler), run(sampler, seed=4)
    assert same_arrays(first.model, second.model)
    assert same_arrays(first.state, second.state)
    np.testing.assert_array_equal(first.losses, second.losses)
    assert not same_arrays(first.model, other.model)


def test_the_size_of_chunks_changes_neither_the_numbers_nor_the_memory(sampler):
    chunked = run(sampler)
    whole = run(sampler, schedule=Schedule(23, batch_size=3, report_every=10**12, save_every=10**12))
    assert same_arrays(chunked.model, whole.model)
    np.testing.assert_array_equal(chunked.losses, whole.losses)


def test_only_the_chosen_parts_move(sampler):
    before, after = small_model(), run(sampler).model
    assert not same_arrays(before.shell, after.shell)
    assert same_arrays((before.core, before.embedding), (after.core, after.embedding))


def test_the_loss_goes_down(sampler):
    losses = run(sampler).losses
    assert losses[-5:].mean() < 0.3 * losses[:5].mean()


def test_an_unknown_part_is_an_error(sampler):
    with pytest.raises(ConfigError, match=r"Unknown trainable part 'shel'. Did you mean 'shell'"):
        run(sampler, parts=("shel",))


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_an_interrupt_at_any_chunk_goes_on_to_the_same_end(sampler, boundary):
    undisturbed, saved = run(sampler), []
    with pytest.raises(KeyboardInterrupt):
        run(sampler, watcher=Tape(interrupt_at=boundary), save=lambda *parts: saved.append(parts))
    state, losses = saved[-1]
    assert int(state.update) == len(losses) == boundary
    resumed = run(sampler, state=state, losses=losses)
    assert same_arrays(resumed.model, undisturbed.model)
    assert same_arrays(resumed.state, undisturbed.state)
    np.testing.assert_array_equal(resumed.losses, undisturbed.losses)


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_run_goes_on_from_its_last_save_on_disk(sampler, tmp_path, number):
    undisturbed, saved = run(sampler), []
    run(sampler, save=lambda *parts: saved.append(parts))
    state, losses = saved[number]  # all that a killed process leaves behind
    write_record(tmp_path, "training", named_arrays(state), {})
    template = initial_state(small_model(), ("shell",), DECAYING, SCHEDULE.num_updates)
    read = fill_arrays(template, read_record(tmp_path, "training", "training state")[0], "training")
    assert same_arrays(read, state)
    resumed = run(sampler, state=read, losses=losses)
    assert same_arrays(resumed.state, undisturbed.state)
    np.testing.assert_array_equal(resumed.losses, undisturbed.losses)


def test_an_interrupt_before_the_first_chunk_saves_an_empty_run(sampler):
    class Impatient(Watcher):
        def compiling(self, what):
            raise KeyboardInterrupt

    saved = []
    with pytest.raises(KeyboardInterrupt):
        run(sampler, watcher=Impatient(), save=lambda *parts: saved.append(parts))
    assert saved == []


def test_it_saves_every_so_often_and_at_the_end(sampler):
    saved = []
    run(sampler, save=lambda state, losses: saved.append((int(state.update), len(losses))))
    assert saved == [(10, 10), (20, 20), (23, 23)]


def test_the_watcher_hears_of_the_compilation_once_and_of_every_chunk(sampler):
    tape = Tape()
    losses = run(sampler, watcher=tape).losses
    assert tape.events[0] == ("compiling", "one update")
    assert [event[0] for event in tape.events[1:]] == BOUNDARIES
    assert tape.events[1][1] == pytest.approx(losses[:4].mean(), rel=1e-6)
    assert {event[2] for event in tape.events[1:]} == {0}


def test_many_chunks_another_seed_and_a_resumed_run_are_one_program(sampler):
    traces, saved = [], []

    class Counting(eqx.Module):
        def __call__(self, model, batch, /):
            traces.append(1)
            return Follow()(model, batch)

    tape, heard = Tape(), []
    tape.advanced = lambda *_: heard.append(len(traces))
    run(sampler, Counting(), watcher=tape, save=lambda *parts: saved.append(parts))
    first = len(traces)
    assert first >= 1
    assert heard == [first] * len(BOUNDARIES)
    run(sampler, Counting(), seed=9)
    assert len(traces) == first
    run(sampler, Counting(), state=saved[0][0], losses=saved[0][1])
    assert len(traces) == first


def test_no_updates_leave_the_model_alone_and_compile_nothing(sampler):
    tape = Tape()
    trained = run(sampler, schedule=Schedule(0), watcher=tape)
    assert same_arrays(trained.model, small_model())
    assert trained.losses.shape == (0,)
    assert tape.events == []
    assert trained.completed
    assert str(trained) == "0 updates, 0 skipped"


@pytest.mark.parametrize("in_gradient", [False, True])
def test_non_finite_updates_are_skipped_counted_and_reported(sampler, in_gradient):
    trained = run(sampler, Sometimes(20, in_gradient))
    bad = expected_batches(sampler, 3, SCHEDULE.num_updates)[:, 0] < 20
    assert 3 < bad.sum() < 20
    np.testing.assert_array_equal(np.isnan(trained.losses), bad)
    assert trained.skipped == bad.sum()
    assert trained.completed
    assert np.isfinite(trained.model.shell.log_process_std).all()
    assert trained.outcome.quantity == ("gradient" if in_gradient else "predicted mean")
    assert f"{bad.sum()} skipped: the {trained.outcome.quantity} became non-finite" in str(trained)


def test_a_skipped_update_changes_nothing_but_its_count(sampler):
    """All updates are bad: parameters and optimiser are as in the beginning."""
    trained = run(sampler, Sometimes(10**6))
    fresh = initial_state(small_model(), ("shell",), DECAYING, SCHEDULE.num_updates)
    assert same_arrays(trained.state.parameters, fresh.parameters)
    assert same_arrays(trained.state.optimiser, fresh.optimiser)
    assert int(trained.state.skipped) == int(trained.state.update) == 23


def test_the_outcome_names_step_and_window(sampler):
    code = QUANTITIES.index("predicted covariance")
    trained = run(sampler, Sometimes(10**6, code=code))
    assert (trained.outcome.step, trained.outcome.window) == (2, 1)
    assert "predicted covariance became non-finite at step 2 of window 1" in str(trained)


def test_a_run_that_cannot_recover_stops_with_a_clear_outcome(sampler):
    schedule = Schedule(num_updates=23, batch_size=3, report_every=4, save_every=10, patience=6)
    tape, saved = Tape(), []
    save = {"save": lambda *parts: saved.append(parts)}
    trained = run(sampler, Sometimes(10**6), schedule=schedule, watcher=tape, **save)
    assert not trained.completed
    assert len(trained.losses) == 8  # the end of the chunk in which patience ran out
    assert "could not recover and stopped: the predicted mean became non-finite" in str(trained)
    assert np.isnan(tape.events[-1][1])
    again = run(sampler, Sometimes(10**6), schedule=schedule, state=saved[-1][0], losses=saved[-1][1])
    assert not again.completed
    assert len(again.losses) == 8


def test_patience_counts_bad_updates_in_a_row(sampler):
    bad = expected_batches(sampler, 3, SCHEDULE.num_updates)[:, 0] < 20
    longest = max(len(streak) for streak in "".join("x" if b else " " for b in bad).split())
    assert bad.sum() > longest
    schedule = Schedule(23, batch_size=3, report_every=4, save_every=10, patience=longest + 1)
    assert run(sampler, Sometimes(20), schedule=schedule).completed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_updates": -1}, "num_updates lies between 0 and 2147483647, not -1"),
        ({"num_updates": 2**31}, "num_updates lies between"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"report_every": 0}, "report_every must be at least 1"),
        ({"save_every": -5}, "save_every must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
    ],
)
def test_absurd_schedules_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(**{"num_updates": 10, **options})


def test_float64_stays_float64(x64):
    sampler = WindowSampler.from_series(standard_series(), 5, dtype=jnp.float64)
    model = small_model(dtype=jnp.float64)
    trained = train(
        model, Follow(), sampler, parts=("shell",), optimiser=DECAYING, schedule=Schedule(2, batch_size=3), seed=0
    )
    assert trained.model.shell.log_process_std.dtype == jnp.float64
    assert trained.losses.dtype == np.float64
