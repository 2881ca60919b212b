"""Compare what kaffee does with what it did when the files of `expected` were written.

The command line and `import kaffee` are all that these tests use, so that they hold wherever modules are moved. After a
change that is meant, write the files again: KAFFEE_REGENERATE=1 python -m pytest tests/golden
"""

import hashlib
import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

EXPECTED = Path(__file__).parent / "expected"
RESULTS = Path(__file__).parents[2] / "results"
REGENERATE = bool(os.environ.get("KAFFEE_REGENERATE"))
# Another processor adds up in another order; training makes more of it.
TOLERANCE = 2e-3
NUMBER = re.compile(r"(?<![\w.])[-+±]*\d[\d.]*(e[-+]?\d+)?")
BOX = re.compile(r"[\u2500-\u257f]")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check(name, found, *, tolerance=TOLERANCE):
    """Compare JSON values with those of a file: numbers to a tolerance, counts and words exactly."""
    path, found = EXPECTED / f"{name}.json", json.loads(json.dumps(found))
    if REGENERATE:
        short = json.loads(
            json.dumps(found), parse_float=lambda text: float(f"{float(text):.7g}" if tolerance else text)
        )
        path.write_text(json.dumps(short, indent=1) + "\n", encoding="utf-8")
    found, expected = flat(found), flat(read(path))
    assert list(found) == list(expected)
    near = partial(pytest.approx, rel=tolerance, abs=tolerance, nan_ok=True)
    pairs = {place: (part, expected[place]) for place, part in found.items()}
    wrong = [f"{k}: {a!r}, not {b!r}" for k, (a, b) in pairs.items() if a != (near(b) if type(a) is float else b)]
    assert not wrong, f"{len(wrong)} values differ from {path.name}:\n" + "\n".join(wrong[:20])


def flat(value, where=""):
    """Return the parts of a JSON value by where they are."""
    if not value or not isinstance(value, dict | list):
        return {where: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {place: part for key, item in items for place, part in flat(item, f"{where}/{key}").items()}


def words(text, **places):
    """Return the words of a printed text, line by line: no numbers, frames or places on this machine."""
    for name, path in places.items():
        text = text.replace(str(path), name)
    lines = (" ".join(NUMBER.sub("#", BOX.sub(" ", line)).split()) for line in text.splitlines())
    return [line for line in lines if line]


def table(path, every):
    """Return columns, number of rows and some of the rows of a CSV file."""
    header, *rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    some = {str(i): [float(cell) for cell in rows[i]] for i in range(0, len(rows), every)}
    return {"columns": header, "rows": len(rows), "some": some}
