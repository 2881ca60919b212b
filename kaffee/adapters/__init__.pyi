from .forecaster import SurrogateForecaster as SurrogateForecaster
from .inference_data import to_inference_data as to_inference_data
from .publishing import publish as publish
from .publishing import pull as pull
