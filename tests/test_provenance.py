"""What a result says about where it came from."""

import json
import platform

import jax
import numpy as np

import kaffee
from kaffee.records import machine, versions


def test_versions_of_all_that_decides_the_numbers():
    found = versions()
    assert found["kaffee"] == kaffee.__version__
    assert found["python"] == platform.python_version()
    assert found["jax"] == jax.__version__
    assert found["numpy"] == np.__version__
    assert {"jaxlib", "equinox", "optax", "scipy"} <= set(found)


def test_the_machine_is_json_and_names_its_usable_cores():
    found = machine()
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= 1
    assert found["processor"]
    assert platform.system() in found["system"]
