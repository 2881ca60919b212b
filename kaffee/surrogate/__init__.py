"""The short way: an estimator, and one without training."""
