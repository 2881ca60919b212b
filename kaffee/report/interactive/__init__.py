"""Interactive figures of a report: described here as data, drawn in the page by scripts of its own."""

from kaffee.report.interactive.attractor import Attractor as Attractor
from kaffee.report.interactive.calibration import coverage as coverage
from kaffee.report.interactive.calibration import estimates as estimates
from kaffee.report.interactive.calibration import pit_histogram as pit_histogram
from kaffee.report.interactive.fan import Forecast as Forecast
from kaffee.report.interactive.fan import fan as fan
from kaffee.report.interactive.marks import Band as Band
from kaffee.report.interactive.marks import Bars as Bars
from kaffee.report.interactive.marks import Curve as Curve
from kaffee.report.interactive.marks import Points as Points
from kaffee.report.interactive.marks import Span as Span
from kaffee.report.interactive.plot import Axis as Axis
from kaffee.report.interactive.plot import Panel as Panel
from kaffee.report.interactive.plot import Plot as Plot
