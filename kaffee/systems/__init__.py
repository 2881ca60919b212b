"""Ground truth: dynamical systems, their flows and Jacobians, and noisy trajectories of them."""

from kaffee.systems.catalogue import get_system as get_system
from kaffee.systems.catalogue import system_names as system_names
from kaffee.systems.simulation import Simulation as Simulation
from kaffee.systems.simulation import simulate as simulate
from kaffee.systems.system import System as System
from kaffee.systems.system import rk4_step as rk4_step
