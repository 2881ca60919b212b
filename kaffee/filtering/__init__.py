"""The extended Kalman filter: one recursion, its adjoint, likelihoods, smoothing and free runs."""
