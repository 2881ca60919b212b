from .ensembles import forecast as forecast
from .ensembles import simulate as simulate
from .online import OnlineFilter as OnlineFilter
from .recordings import filter_recordings as filter_recordings
from .recordings import impute as impute
from .recordings import smooth as smooth
from .results import Estimate as Estimate
from .results import Estimates as Estimates
