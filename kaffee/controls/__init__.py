"""The non-chaotic controls of appendix D.2: what noisy-state attenuation does to a core, and what filtering changes."""

from kaffee.controls.objectives import OBJECTIVES as OBJECTIVES
from kaffee.controls.objectives import Budget as Budget
from kaffee.controls.objectives import ControlObjective as ControlObjective
from kaffee.controls.objectives import get_objective as get_objective
from kaffee.controls.objectives import noisy_state as noisy_state
from kaffee.controls.spiral import SpiralSettings as SpiralSettings
from kaffee.controls.spiral import spiral_cell as spiral_cell
from kaffee.controls.spiral import spiral_truth as spiral_truth
from kaffee.controls.summary import spiral_summary as spiral_summary
from kaffee.controls.van_der_pol import VanDerPolSettings as VanDerPolSettings
from kaffee.controls.van_der_pol import van_der_pol_cell as van_der_pol_cell
from kaffee.controls.van_der_pol import van_der_pol_truth as van_der_pol_truth
