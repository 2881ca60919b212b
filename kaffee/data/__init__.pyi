from .reading import read_series as read_series
from .scaler import Scaler as Scaler
from .series import Series as Series
from .timeaxis import regularise_time as regularise_time
from .windows import WindowBatch as WindowBatch
from .windows import WindowSampler as WindowSampler
from .writing import write_series as write_series
