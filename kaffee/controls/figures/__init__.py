"""The figures of appendix D.2, drawn from cells."""

from kaffee.controls.figures.cycle import nochaos_exp2_rollout as nochaos_exp2_rollout
from kaffee.controls.figures.maps import nochaos_exp2_var20 as nochaos_exp2_var20
from kaffee.controls.figures.spiral import nochaos_exp1_main as nochaos_exp1_main
from kaffee.controls.figures.sweep import nochaos_exp1_sweep as nochaos_exp1_sweep
