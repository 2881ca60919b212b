"""Sphinx settings: Markdown sources, an API reference from docstrings, warnings are errors (see the Makefile)."""

import kaffee
from kaffee import __version__

project = "kaffee"
author = "The kaffee developers"
copyright = "The kaffee developers, Apache-2.0"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"kaffee {release}"
exclude_patterns = ["_build"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True
# Highlighting of TOML and console blocks is not worth failing a build for.
suppress_warnings = ["misc.highlighting_failure"]


def _literal_equations(app, what, name, obj, options, lines):
    """Indented equations and tables in docstrings are shown as they are typed."""
    out, literal = [], None
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        table = line.startswith("|")
        starts = i > 0 and not lines[i - 1].strip() and line.strip() and literal is None
        if starts and (table or indent >= 4) and not line.lstrip().startswith((">>>", "- ")):
            literal = 0 if table else indent
            out += ["::", ""]
        elif literal is not None and line.strip() and indent < max(literal, 1) and not table:
            literal = None
        out.append(f"    {line}" if literal == 0 else line)
    lines[:] = out


def _escape_shapes(app, what, name, obj, options, lines):
    """Stars of shapes in types, such as "*W N", are no emphasis."""
    lines[:] = [line.replace("*", r"\*") if line.startswith(":vartype") else line for line in lines]


def _skip_repeated(app, what, name, obj, skip, options):
    """Skip a name of a subpackage that is already described as a name of kaffee."""
    return True if what == "module" and name in kaffee.__all__ and getattr(kaffee, name) is obj else None


def setup(app):
    """Connect all; equations come before napoleon, which reads the sections and writes the types."""
    app.connect("autodoc-process-docstring", _literal_equations, priority=400)
    app.connect("autodoc-process-docstring", _escape_shapes, priority=600)
    app.connect("autodoc-skip-member", _skip_repeated)
