"""Using a trained model: filter, smooth, forecast, simulate, impute; whole recordings or reading by reading."""

from kaffee.inference.estimate import Estimate as Estimate
from kaffee.inference.filtered import FilteredRecordings as FilteredRecordings
from kaffee.inference.filtered import filter_recordings as filter_recordings
from kaffee.inference.forecasting import EnsembleForecast as EnsembleForecast
from kaffee.inference.forecasting import forecast as forecast
from kaffee.inference.free_running import FreeRuns as FreeRuns
from kaffee.inference.free_running import simulate as simulate
from kaffee.inference.imputation import ImputedRecordings as ImputedRecordings
from kaffee.inference.imputation import impute as impute
from kaffee.inference.online import OnlineFilter as OnlineFilter
from kaffee.inference.smoothed import SmoothedRecordings as SmoothedRecordings
from kaffee.inference.smoothed import smooth as smooth
