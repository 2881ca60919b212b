"""The controls at a size for tests."""

from kaffee.paper.controls import SpiralSettings, VanDerPolSettings
from kaffee.paper.objectives import Budget

BUDGET = Budget(num_updates=20, scored_per_update=64, scored=8, burn_in=4, report_every=10)
SPIRAL = SpiralSettings(num_steps=200, burn_in=50, shown_steps=10, budget=BUDGET)
VAN_DER_POL = VanDerPolSettings(num_steps=400, measured_steps=600, shown_steps=20, cloud_size=30, budget=BUDGET)
