"""The guard: cores whose free runs get worse go back, and nobody can tell that a run was interrupted."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import same_arrays, small_model, standard_series
from test_loop import DECAYING, SCHEDULE, Follow, Tape, run

from kaffee.checkpoint.reconstruction import fill_arrays, named_arrays
from kaffee.data.series import Series
from kaffee.data.windows import WindowSampler
from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import FROZEN_CORE, KAFFEE
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import Confined
from kaffee.records import read_record, write_record
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.training.adaptation import Adaptation, build_guard
from kaffee.training.guard import FreeRunGuard, apply_guard
from kaffee.training.guard import _Look as Look
from kaffee.training.loop import Schedule
from kaffee.training.update import initial_state

FULL_LOOKS = True


class Wary:
    """Far from the shell that the run started with is bad: the fourth update on is."""

    def __init__(self, every=6, limit=1.0):
        self.every, self.limit, self.looks = every, limit, []

    def look(self, model):
        moved = jnp.abs(model.shell.log_observation_std - small_model().shell.log_observation_std)
        self.looks.append(float(jnp.max(moved)))
        return Look(0, 100.0 if self.looks[-1] > self.limit else 1.0)


@pytest.fixture(scope="module")
def sampler():
    return WindowSampler.from_series(standard_series(), 5)


def test_a_model_that_gets_worse_goes_back_to_the_last_look(sampler):
    guard = Wary()
    trained = run(sampler, guard=guard)
    assert len(guard.looks) == 1 + 4  # before the first update, after 6, 12, 18 and 23
    assert trained.sent_back == sum(look > guard.limit for look in guard.looks) > 0
    assert guard.look(trained.model).distance == 1.0
    assert f"23 updates, 0 skipped, rolled back {trained.sent_back} times" in str(trained)
    assert np.isfinite(trained.losses).all()
    assert len(trained.losses) == 23


def test_it_goes_back_with_everything_but_the_counts(sampler):
    """All looks but the first are bad: parameters and moments as in the beginning, the rate as at the end."""
    trained = run(sampler, guard=Wary(limit=1e-6))
    assert trained.sent_back == 4
    assert same_arrays(trained.model, small_model())
    before = initial_state(small_model(), ("shell",), DECAYING, SCHEDULE.num_updates, guarded=True)
    floats = [eqx.filter(state.optimiser, eqx.is_inexact_array) for state in (trained.state, before)]
    assert same_arrays(*floats)
    counts = jax.tree.leaves(eqx.filter(trained.state.optimiser, eqx.is_inexact_array, inverse=True))
    assert [int(count) for count in counts] == [23, 23]  # of Adam and of its rate
    assert int(trained.state.update) == 23


def test_a_guard_that_is_content_changes_nothing(sampler):
    free, guarded = run(sampler), run(sampler, guard=Wary(limit=np.inf))
    assert same_arrays(free.model, guarded.model)
    np.testing.assert_array_equal(free.losses, guarded.losses)
    assert guarded.sent_back == 0
    assert str(guarded) == "23 updates, 0 skipped"


@pytest.mark.parametrize("boundary", [4, 6, 10, 18, 20])
def test_an_interrupt_saves_the_last_look_and_goes_on_to_the_same_end(sampler, boundary):
    undisturbed, saved = run(sampler, guard=Wary()), []
    with pytest.raises(KeyboardInterrupt):
        run(sampler, guard=Wary(), watcher=Tape(interrupt_at=boundary), save=lambda *parts: saved.append(parts))
    state, losses = saved[-1]
    assert int(state.update) == len(losses) == boundary // 6 * 6
    resumed = run(sampler, guard=Wary(), state=state, losses=losses)
    assert same_arrays(resumed.state, undisturbed.state)
    np.testing.assert_array_equal(resumed.losses, undisturbed.losses)


def test_a_killed_run_goes_on_from_the_disk(sampler, tmp_path):
    undisturbed, saved = run(sampler, guard=Wary()), []
    run(sampler, guard=Wary(), save=lambda *parts: saved.append(parts))
    assert [int(state.update) for state, _ in saved] == [6, 18, 23]  # the looks before the saves at 10 and 20
    write_record(tmp_path, "training", named_arrays(saved[1][0]), {})
    template = initial_state(small_model(), ("shell",), DECAYING, SCHEDULE.num_updates, guarded=True)
    read = fill_arrays(template, read_record(tmp_path, "training", "training state")[0], "training")
    resumed = run(sampler, guard=Wary(), state=read, losses=saved[1][1])
    assert same_arrays(resumed.state, undisturbed.state)


def test_a_run_that_cannot_recover_is_looked_at_as_well(sampler):
    class Broken(eqx.Module):
        def __call__(self, model, batch, /):
            score = Follow()(model, batch)
            return eqx.tree_at(lambda score: score.loss, score, score.loss * jnp.nan)

    schedule = Schedule(num_updates=23, batch_size=3, report_every=4, save_every=10, patience=5)
    guard = Wary(every=20)
    trained = run(sampler, Broken(), guard=guard, schedule=schedule)
    assert not trained.completed
    assert len(guard.looks) == 2


def circle(num_steps=800, noise=0.05):
    angle = 0.3 * np.arange(num_steps)
    clean = np.sqrt(2.0) * np.stack([np.sin(angle), np.cos(angle)], axis=1)
    return clean + noise * np.random.default_rng(0).standard_normal(clean.shape)


def rotor(growth, centre=0.0, noise=-10.0):
    """Turns by as much as `circle` and grows by so much per step, around a centre on the diagonal."""
    turn = growth * np.array([[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]])
    shell = Shell(jnp.full(2, noise), jnp.full(2, -3.0))
    core = Linear(jnp.asarray(turn, jnp.float32), jnp.asarray((np.eye(2) - turn) @ [centre, centre], jnp.float32))
    return StateSpaceModel(core, shell, Projection(2, 2), jnp.eye(2))


def test_it_tells_the_right_dynamics_from_rest_divergence_and_other_places():
    guard = FreeRunGuard(Series.from_arrays(circle()), every=1)
    right, resting, leaving, beside = (
        guard.look(model) for model in (rotor(1.0), rotor(0.99), rotor(1.01), rotor(1.0, centre=0.1))
    )
    assert right.lost == beside.lost == 0
    assert abs(right.distance) < 0.01 < beside.distance
    assert resting == leaving == Look(40, np.inf, noisy=np.inf)  # with noise off and on


def test_runs_that_diverge_are_lost():
    """The rows of one recording are at rest, where an unstable core stays: half of the runs stay, half leave."""
    values = circle()
    values[:400] = 0.0
    guard = FreeRunGuard(Series.from_arrays([values[:400], values[400:]]), every=1)
    assert guard.look(rotor(1.01)).lost == 10 + 20  # noise leads all of them away


def test_runs_that_only_noise_leads_away_are_lost():
    guard = FreeRunGuard(Series.from_arrays(circle()), every=1)
    kicked = guard.look(rotor(1.0, noise=-3.0))
    assert 15 <= kicked.lost <= 20
    assert kicked.distance == guard.look(rotor(1.0)).distance


def test_runs_that_live_at_the_wall_are_lost():
    """An unstable core in a box: it diverges no more, and is no better for it."""
    model = rotor(1.01)
    box = Confined(model.core, jnp.full(2, -2.0), jnp.full(2, 2.0))
    assert FreeRunGuard(Series.from_arrays(circle()), every=1).look(model.replace(core=box)).lost == 40


def test_a_cycle_is_lost_where_the_data_are_chaotic():
    """Two coordinates of a chaotic system, and a run that goes around once as they do on average."""
    data = simulate(get_system("lorenz63"), 3000).states[:, [0, 2]]
    data = (data - data.mean(axis=0)) / data.std(axis=0)
    guard = FreeRunGuard(Series.from_arrays(data), every=1)
    assert guard.look(rotor(1.0)).lost >= 15


def test_gaps_and_constant_columns_are_left_out():
    values = circle()
    values[::3, 0] = np.nan
    look = FreeRunGuard(Series.from_arrays(values), every=1).look(rotor(1.0))
    assert look.lost == 0
    assert abs(look.distance) < 0.05
    flat = circle()
    flat[:, 1] = 2.0
    assert np.isfinite(FreeRunGuard(Series.from_arrays(flat), every=1).look(rotor(1.0)).distance)


@pytest.mark.parametrize(
    ("look", "worse"),
    [
        (Look(1, 0.1), False),  # one of 40 runs may be chance
        (Look(2, 0.1), True),
        (Look(0, 0.1, nll=0.01), False),
        (Look(0, 0.1, nll=0.03), True),  # forecasts of held-back rows
        (Look(0, 0.44), False),
        (Look(0, 0.46), True),
        (Look(0, np.inf), True),
        (Look(0, np.nan), True),
    ],
)
def test_what_is_worse(look, worse):
    """Than no lost run at 0.1 nats; the first look is never worse than nothing."""

    class Seeing:
        every = 1

        def look(self, model):
            return now

    now = Look(0, 0.1)
    before = initial_state(small_model(), ("shell",), DECAYING, 5, guarded=True)
    first = apply_guard(Seeing(), small_model(), before, before)
    assert int(first.guard.sent_back) == 0
    now = look
    assert int(apply_guard(Seeing(), small_model(), first, first).guard.sent_back) == int(worse)


@pytest.mark.parametrize(
    ("series", "method", "every", "exists"),
    [
        (circle(), KAFFEE, 250, True),
        (circle(), KAFFEE, None, False),
        (circle(), FROZEN_CORE, 250, False),
        (circle(199), KAFFEE, 250, False),
        (np.ones((800, 2)), KAFFEE, 250, False),
    ],
    ids=["wanted", "unwanted", "frozen core", "too short", "constant"],
)
def test_there_is_a_guard_where_one_is_wanted_and_possible(series, method, every, exists):
    found = build_guard(Series.from_arrays(series), method, Adaptation(guard=every))
    assert (found is not None) == exists


def test_a_guard_that_never_looks_is_refused():
    with pytest.raises(ConfigError, match="guard, updates between two looks at free runs, must be at least 1; got 0"):
        Adaptation(guard=0)
