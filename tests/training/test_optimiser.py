"""Optimisers: rates and their decay, clipping, averaged iterates, shared shell scales, equal settings one object."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from models import LATENT, OBSERVED, make_model
from small import small_model, small_settings, standard_series

from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import FROZEN_CORE, KAFFEE
from kaffee.model.statespace import trainable
from kaffee.model.wrappers import Confined
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.guard import _roll_back
from kaffee.training.loop import Schedule, Watcher
from kaffee.training.optimiser import Optimiser, _label_parts
from kaffee.training.update import initial_state


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax multiplies integer counts by floats, as the training loop allows it to."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def steps(optimiser, gradients, num_updates):
    """The moves that an optimiser makes of a list of gradients."""
    transformation, parameters = optimiser.build(num_updates), jnp.zeros(len(gradients[0]))
    state, moves = transformation.init(parameters), []
    for gradient in gradients:
        move, state = transformation.update(jnp.asarray(gradient, jnp.float32), state, parameters)
        moves.append(np.asarray(move))
    return np.array(moves)


def test_the_learning_rate_decays_exponentially_to_its_final_value():
    optimiser = Optimiser("sgd", learning_rate=1e-1, final_learning_rate=1e-3)
    moves = steps(optimiser, [[1.0]] * 11, num_updates=10)[:, 0]
    np.testing.assert_allclose(-moves, 0.1 * 0.01 ** (np.arange(11) / 10), rtol=1e-5)


def test_without_a_final_rate_it_is_constant():
    moves = steps(Optimiser("sgd", learning_rate=0.5), [[2.0]] * 3, num_updates=3)
    np.testing.assert_array_equal(moves, [[-1.0]] * 3)


def test_the_global_norm_is_clipped_and_the_direction_kept():
    optimiser = Optimiser("sgd", learning_rate=1.0, clip_norm=2.0)
    moves = steps(optimiser, [[30.0, -40.0], [0.3, 0.4]], num_updates=2)
    np.testing.assert_allclose(moves, [[-1.2, 1.6], [-0.3, -0.4]], rtol=1e-6)


@pytest.mark.parametrize("name", ["adam", "radam"])
def test_the_algorithms_are_those_of_optax(name):
    gradients = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    reference = getattr(optax, name)(5e-3)
    state, parameters = reference.init(jnp.zeros(3)), jnp.zeros(3)
    for gradient, move in zip(gradients, steps(Optimiser(name), gradients, 4), strict=True):
        expected, state = reference.update(jnp.asarray(gradient), state, parameters)
        np.testing.assert_array_equal(move, expected)


def test_equal_settings_build_the_same_object_so_that_nothing_compiles_twice():
    assert Optimiser("adam", 0.1).build(10) is Optimiser("adam", 0.1).build(10)
    assert Optimiser("adam", 0.1).build(10) is not Optimiser("adam", 0.2).build(10)


def test_no_updates_are_no_division_by_zero():
    assert Optimiser(final_learning_rate=1e-5).build(0).init(jnp.zeros(1)) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "adamm"}, "Unknown optimiser 'adamm'. Did you mean 'adam'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, not nan"),
        ({"learning_rate": float("inf")}, "learning_rate must be positive and finite, not inf"),
        ({"final_learning_rate": -1e-5}, "final_learning_rate must be positive"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
    ],
)
def test_absurd_optimisers_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Optimiser(**options)


def parameters_of(model, parts=("core", "shell")):
    return eqx.filter(model, trainable(model, parts))


def random_gradient(parameters, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.standard_normal(p.shape), p.dtype), parameters)


def run(optimiser, model, num_updates, parts=("core", "shell")):
    """Parameters after each update with random gradients, and the final optimiser state."""
    parameters = parameters_of(model, parts)
    transformation = optimiser.build(num_updates)
    state, path = transformation.init(parameters), []
    for i in range(num_updates):
        updates, state = transformation.update(random_gradient(parameters, i), state, parameters)
        parameters = eqx.apply_updates(parameters, updates)
        path.append(parameters)
    return path, state


def test_the_average_is_the_weighted_sum_of_the_iterates():
    optimiser = Optimiser("adam", learning_rate=0.1, averaging=0.7)
    path, state = run(optimiser, make_model("hard", dtype=np.float32), 6)
    weights = 0.3 * 0.7 ** np.arange(6)[::-1] / (1 - 0.7**6)
    expected = sum(w * np.asarray(p.core.W, np.float64) for w, p in zip(weights, path, strict=True))
    np.testing.assert_allclose(optimiser.result(state, path[-1]).core.W, expected, rtol=1e-5)
    assert abs(weights.sum() - 1) < 1e-12


def test_before_the_first_update_the_result_is_the_start():
    optimiser, parameters = Optimiser(averaging=0.9), parameters_of(make_model("hard", dtype=np.float32))
    state = optimiser.build(5).init(parameters)
    assert optimiser.result(state, parameters) is parameters


def test_an_average_that_is_rolled_back_is_that_of_the_last_look():
    optimiser, model = Optimiser("adam", learning_rate=0.1, averaging=0.7), make_model("hard", dtype=np.float32)
    schedule = {"parts": KAFFEE.trainable_parts, "optimiser": optimiser, "num_updates": 9}
    first = initial_state(model, guarded=True, **schedule)
    (kept_path, kept), (path, later) = run(optimiser, model, 3), run(optimiser, model, 9)
    then, now = (
        eqx.tree_at(lambda each: (each.parameters, each.optimiser), first, (parameters[-1], state))
        for parameters, state in ((kept_path, kept), (path, later))
    )
    back = _roll_back(now, then)
    expected = optimiser.result(kept, kept_path[-1])
    np.testing.assert_array_equal(optimiser.result(back.optimiser, back.parameters).core.W, expected.core.W)


def test_averaging_does_not_change_the_iterates():
    model = make_model("hard", dtype=np.float32)
    plain, _ = run(Optimiser("adam", learning_rate=0.1), model, 4)
    averaged, _ = run(Optimiser("adam", learning_rate=0.1, averaging=0.5), model, 4)
    np.testing.assert_array_equal(plain[-1].core.W, averaged[-1].core.W)


def test_a_shared_shell_moves_as_three_numbers():
    model = make_model("hard", dtype=np.float32)
    path, _ = run(Optimiser("adam", learning_rate=0.1, shell_scales="shared"), model, 5)
    process = np.asarray(path[-1].shell.log_process_std - model.shell.log_process_std)
    noise = np.asarray(path[-1].shell.log_observation_std - model.shell.log_observation_std)
    for moved, size in ((process[:OBSERVED], OBSERVED), (process[OBSERVED:], LATENT - OBSERVED), (noise, OBSERVED)):
        assert moved.shape == (size,)
        np.testing.assert_allclose(moved, moved[0], atol=1e-6)
    assert len({round(float(v), 4) for v in (process[0], process[-1], noise[0])}) == 3


def test_without_a_projection_all_process_noise_is_one_group():
    model = make_model("hard", "general", dtype=np.float32)
    path, _ = run(Optimiser("adam", learning_rate=0.1, shell_scales="shared"), model, 3)
    process = np.asarray(path[-1].shell.log_process_std - model.shell.log_process_std)
    np.testing.assert_allclose(process, process[0], atol=1e-6)


def test_the_shell_has_its_own_learning_rate_and_the_same_relative_decay():
    model = make_model("hard", dtype=np.float32)
    both = Optimiser("sgd", learning_rate=0.1, final_learning_rate=0.01, shell_learning_rate=0.5)
    path, _ = run(both, model, 2)
    gradients = [random_gradient(parameters_of(model), i) for i in range(2)]
    decay = 0.1 ** (1 / 2)
    for part, rate in (("core", 0.1), ("shell", 0.5)):
        pick = lambda tree, part=part: tree.core.W if part == "core" else tree.shell.log_process_std  # noqa: E731
        expected = -rate * (np.asarray(pick(gradients[0])) + decay * np.asarray(pick(gradients[1])))
        np.testing.assert_allclose(pick(path[-1]) - pick(parameters_of(model)), expected, rtol=1e-4, atol=1e-6)


def test_labels_name_the_shell_and_call_everything_else_core():
    labels = _label_parts(parameters_of(make_model("hard", dtype=np.float32), ("core", "shell", "embedding")))
    assert labels.shell.log_process_std == labels.shell.log_observation_std == "shell"
    assert labels.core.W == labels.embedding == "core"


PLUS = Optimiser(learning_rate=2e-3, shell_learning_rate=1e-2, shell_scales="shared", averaging=0.9, clip_norm=2.0)


def adaptation(optimiser=PLUS, **more):
    schedule = Schedule(num_updates=4, batch_size=3, report_every=2, save_every=2)
    return Adaptation(scored=4, burn_in=1, optimiser=optimiser, schedule=schedule, **more)


@pytest.mark.parametrize("method", [KAFFEE, FROZEN_CORE])
def test_all_of_it_trains_any_row(method):
    model, series = small_model(), standard_series()
    trained = adapt(model, series, method, adaptation(), seed=0)
    assert trained.completed
    assert np.isfinite(trained.losses).all()
    shift = np.asarray(trained.model.shell.log_observation_std - model.shell.log_observation_std)
    np.testing.assert_allclose(shift, shift[0], atol=1e-6)
    assert abs(shift[0]) > 1e-4
    same = np.array_equal(trained.model.core.W, model.core.W)
    assert same == (not method.train_core)


def test_a_resumed_run_keeps_its_average():
    model, series = small_model(), standard_series()
    saved = []
    whole = adapt(model, series, KAFFEE, adaptation(), seed=0, save=lambda *a: saved.append(a))
    state, losses = saved[0]
    assert int(state.update) == 2
    rest = adapt(model, series, KAFFEE, adaptation(), seed=0, state=state, losses=losses)
    np.testing.assert_array_equal(whole.model.core.W, rest.model.core.W)


def test_confine_puts_a_box_around_the_trained_core():
    model, series = small_model(), standard_series()
    free = adapt(model, series, KAFFEE, adaptation(), seed=0).model
    boxed = adapt(model, series, KAFFEE, adaptation(confine=0.25), seed=0).model
    assert isinstance(boxed.core, Confined)
    np.testing.assert_array_equal(boxed.core.inner.W, free.core.W)


def test_a_watcher_visits_the_model_from_the_start_to_the_end():
    class Visits(Watcher):
        def __init__(self):
            self.seen = {}

        def visited(self, update, model):
            self.seen[update] = np.asarray(model.core.W)

    model, visits = small_model(), Visits()
    trained = adapt(model, standard_series(), KAFFEE, adaptation(), seed=0, watcher=visits)
    assert list(visits.seen) == [0, 2, 4]
    np.testing.assert_array_equal(visits.seen[0], model.core.W)
    np.testing.assert_array_equal(visits.seen[4], trained.model.core.W)


def test_mistakes_are_explained():
    with pytest.raises(ConfigError, match="averaging"):
        Optimiser(averaging=1.0)
    with pytest.raises(ConfigError, match="shell_learning_rate"):
        Optimiser(shell_learning_rate=-1.0)
    with pytest.raises(ConfigError, match="confine"):
        Adaptation(confine=-0.1)
    assert small_settings("adaptation.optimiser.shell_scales=shared").adaptation.optimiser.shell_scales == "shared"
