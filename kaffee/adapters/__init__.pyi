from .forecaster import SurrogateForecaster as SurrogateForecaster
