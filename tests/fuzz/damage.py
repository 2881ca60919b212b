"""Files that went wrong, and what must hold for each: a valid result, or one sentence that names the file and a remedy.

The suite runs few examples, the same on every machine. To search for more: KAFFEE_FUZZ=5000 pytest tests/fuzz
"""

import os
import re

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kaffee.errors import KaffeeError

WANTED = int(os.environ.get("KAFFEE_FUZZ", "0"))
# What to do next, in the imperative, or what is allowed.
WORDS = """
    add bring check choose convert correct copy delete fetch fill fix give install leave load mark name pass read remove
    rename replace resample restore run save select set sort split stack start train try upgrade use write
"""
ADVICE = re.compile(
    rf"\b({'|'.join(WORDS.split())}|must|allowed|did you mean|lies? (?:between|in)|needs|at least|positive|divide)\b",
    re.IGNORECASE,
)


def fuzz(max_examples):
    """Settings of a property with so many examples in the suite."""
    return settings(
        max_examples=WANTED or max_examples,
        derandomize=not WANTED,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def result_or_advice(call, *names):
    """What `call` returns; None if it refuses in a sentence that holds all `names` and says what to do.

    Any other exception is a failure of the test, and so is a warning: pytest makes errors of them.
    """
    try:
        return call()
    except KaffeeError as error:
        text = str(error)
    for name in names:
        assert name in text, text
    assert ADVICE.search(text), text
    assert len(text) < 20_000, text[:3_000]  # names may be long, but no file is printed
    return None


@st.composite
def damaged(draw, content):
    """Bytes with a few flipped, overwritten, inserted, removed or repeated; or cut off."""
    damage = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(damage) - 1, 0)))
        length = draw(st.sampled_from([1, 2, 4, 8, 30]))
        match draw(st.sampled_from(["flip", "overwrite", "insert", "remove", "repeat", "cut", "extreme"])):
            case "flip" if damage:
                damage[at] ^= 1 << draw(st.integers(0, 7))
            case "overwrite":
                damage[at : at + length] = draw(st.binary(min_size=length, max_size=length))
            case "insert":
                damage[at:at] = draw(st.binary(min_size=1, max_size=length))
            case "remove":
                del damage[at : at + length]
            case "repeat":
                damage[at:at] = damage[at : at + length] * draw(st.integers(1, 20))
            case "cut":
                del damage[at:]
            case "extreme":
                damage[at : at + length] = draw(st.sampled_from([b"\x00", b"\xff", b"\x7f"])) * length
    return bytes(damage)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1, 2**31, 2**63, -(2**63), 10**9, 10**30, 10**400])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "alrnn", "none", "\x00", "../../x", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
"""Any value that JSON can hold."""


def paths(value, prefix=()):
    """The keys to every value of nested dictionaries and lists."""
    yield prefix
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths(child, (*prefix, key))


@st.composite
def edited(draw, tree):
    """A copy of nested values with one to three of them exchanged, removed or joined by strangers."""
    import copy

    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = [path for path in paths(tree) if path]
        if not places:
            break
        path = draw(st.sampled_from(places))
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        match draw(st.sampled_from(["exchange", "exchange", "remove", "join"])):
            case "exchange":
                parent[path[-1]] = draw(JSON)
            case "remove":
                del parent[path[-1]]
            case "join" if isinstance(parent, dict):
                parent[draw(st.text(max_size=5))] = draw(JSON)
            case _:
                parent[path[-1]] = [parent[path[-1]]]
    return tree
