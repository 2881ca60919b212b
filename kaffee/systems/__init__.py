"""Ground truth: dynamical systems, their flows and Jacobians, and noisy trajectories of them."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
