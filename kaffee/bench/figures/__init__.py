"""The paper's figures of a table, drawn from its cells."""

from kaffee.bench.figures.make import FORMATS as FORMATS
from kaffee.bench.figures.make import make_figures as make_figures
