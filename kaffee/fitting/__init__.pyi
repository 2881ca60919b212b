from .config import override as override
from .defaults import settings_for as settings_for
from .defaults import suggest as suggest
from .initial_core import starting_point as starting_point
from .pipeline import fit as fit
from .settings import FitSettings as FitSettings
