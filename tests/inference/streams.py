"""Streams of lines for the tests of `follow`, and what comes back for them."""

import io
import json

import numpy as np

from kaffee.inference.stream import follow


class Dripping(io.BytesIO):
    """A pipe that gives a few bytes at a time."""

    def read1(self, size=-1):
        return super().read1(7)


def followed(online, content, *, stream=io.BytesIO, **options):
    """(objects, reports, counts) of a stream."""
    target, reports = io.StringIO(), []
    counts = follow(online, stream(content), target, reports.append, **options)
    return [json.loads(line) for line in target.getvalue().splitlines()], reports, counts


def followed_lines(online, lines, *, header="t,left,right", **options):
    """(objects, reports, counts) of lines under a header."""
    return followed(online, "".join(f"{line}\n" for line in (header, *lines)).encode(), **options)


def rows(times, seed=0):
    """(lines, values) of readings at these times."""
    values = 10.0 + np.random.default_rng(seed).standard_normal((len(times), 2))
    return [f"{t},{a},{b}" for t, (a, b) in zip(times, values, strict=True)], values
