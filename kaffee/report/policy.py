"""What a report may do in a browser: run its own script, show its own pictures, and nothing else."""

import base64
import hashlib
from functools import cache

from kaffee.report.interactive.markup import asset
from kaffee.report.style import COLOURS


@cache
def page_style_sheet() -> str:
    """The style of all pages, with the colours of kaffee's figures as variables."""
    # The truth is black on paper and must not be so on a dark screen.
    variables = "".join(f"--{name}:{colour};" for name, colour in COLOURS.items())
    return f":root{{{variables}--grey:#6b6b6b;}}\n{asset('style.css')}"


def content_security_policy(style: str, script: str) -> str:
    """Forbids every request and every script and style but these two, which are known by their hashes.

    Data elements (`application/json`) are not run and need no permission.
    """
    allowed = f"'{_hash(script)}'" if script else "'none'"
    return (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
