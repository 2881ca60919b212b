from .catalogue import get_system as get_system
from .catalogue import system_names as system_names
from .kuramoto_sivashinsky import KuramotoSivashinsky as KuramotoSivashinsky
from .simulation import Simulation as Simulation
from .simulation import Truth as Truth
from .simulation import simulate as simulate
from .system import System as System
from .system import rk4_step as rk4_step
