"""The DPC gap (definition 1) as a tool: watch a training run improve its score and damage its dynamics."""

from kaffee.dpc.certify import Certifier as Certifier
from kaffee.dpc.gaps import Entry as Entry
from kaffee.dpc.gaps import Gap as Gap
from kaffee.dpc.gaps import Measured as Measured
from kaffee.dpc.gaps import find_gaps as find_gaps
from kaffee.dpc.log import GapLog as GapLog
from kaffee.dpc.log import fixed_score as fixed_score
