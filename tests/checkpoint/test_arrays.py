"""Pytrees as named arrays and back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import same_arrays, small_model

from kaffee.checkpoint.reconstruction import fill_arrays, named_arrays
from kaffee.errors import CheckpointError

TREE = {"a": jnp.ones((1, 1)), "b": [jnp.float32(2.0), {"c": jnp.arange(3)}], "text": "kept", "none": None}


def test_names_are_paths():
    assert sorted(named_arrays(TREE)) == ["a", "b.0", "b.1.c"]
    assert set(named_arrays(small_model())) == {
        "core.A",
        "core.W",
        "core.h",
        "shell.log_process_std",
        "shell.log_observation_std",
        "embedding",
    }


def test_arrays_go_back_where_they_came_from():
    blank = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if eqx.is_array(leaf) else leaf, TREE)
    back = fill_arrays(blank, named_arrays(TREE), "here")
    assert back["text"] == "kept"
    assert same_arrays(eqx.filter(back, eqx.is_array), eqx.filter(TREE, eqx.is_array))
    assert back["a"].shape == (1, 1)
    assert back["b"][0].shape == ()


def test_shapes_alone_are_a_template():
    template = eqx.filter_eval_shape(small_model)
    assert same_arrays(fill_arrays(template, named_arrays(small_model()), "here"), small_model())


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("z", np.ones((1, 1), np.float32), r"here: arrays missing: \['a'\]; not expected: \['z'\]"),
        ("a", np.ones(1, np.float32), r"here: a has shape \(1,\) but should have \(1, 1\)"),
        *[("a", np.ones((1, 1), kind), r"a is of type .* but should be float32") for kind in (np.int32, "c8", bool)],
    ],
)
def test_another_name_shape_or_kind_of_number_is_an_error(name, array, message):
    others = {key: value for key, value in named_arrays(TREE).items() if key != "a"}
    with pytest.raises(CheckpointError, match=message):
        fill_arrays(TREE, others | {name: array}, "here")


def test_two_arrays_of_one_name_are_not_lost_silently():
    with pytest.raises(CheckpointError, match="same name"):
        named_arrays({"a.b": jnp.zeros(1), "a": {"b": jnp.ones(1)}})


def test_float64_is_kept_where_jax_has_it_and_narrowed_where_not(x64):
    wide = {"a": np.array([1 / 3])}
    assert fill_arrays({"a": jnp.zeros(1)}, wide, "here")["a"].dtype == jnp.float64
    with jax.enable_x64(False):
        narrow = fill_arrays({"a": jnp.zeros(1)}, wide, "here")["a"]
    assert narrow.dtype == jnp.float32
