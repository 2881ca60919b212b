"""The short way: `kaffee.Surrogate().fit(X).forecast(200)`, in the manner of scikit-learn."""

from kaffee.surrogate.estimator import Surrogate as Surrogate
from kaffee.surrogate.parameters import NotFittedError as NotFittedError
