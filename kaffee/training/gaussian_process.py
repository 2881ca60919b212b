"""Trajectory and map of noisy recordings estimated together: a Gaussian-process state-space model (Laplace).

    x_t ~ N(z_t, R),    z_{t+1} ~ N(f(u_t), Q),    u_t = (z_{t-lag})_lags,    f(u) = W' phi(u),    W ~ N(0, P)

phi are the features of a kernel on some centres, whitened, and a linear part. A regression on smoothed rows takes their
errors for the system's; here the states that a map explains and the map that explains the states are the mode of one
posterior. Gauss-Newton: with the map's tangents J at the present states everything is linear, and

    minimise |x - z - dz|^2 / R + |z_{t+1} + G dz - W' phi(u_t)|^2 / Q + |W|^2 / P    over dz and W

with G dz = dz_{t+1} - J dz_u is a regression of what the readings say of each step, y = z_{t+1} + G (x - z), on phi
with the banded covariance Q + G R G' (errors in variables), and then a smoother. Its determinants give the evidence,
which chooses kernel, length, scale, process noise and observation noise (Rasmussen, Williams 2006, 3.4 and 5.5).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError, eigh
from scipy.spatial.distance import cdist

from kaffee.model.kernel import KERNELS
from kaffee.training.errors_in_variables import RowGroup, Solution, group_rows, solve
from kaffee.training.kernel_regression import KernelRegression

CENTRES, FEWEST_CENTRES = 150, 30
"""Kernels at most and at least; many coordinates afford fewer."""
AFFORDABLE = 1e9
"""Floating-point operations of one solution at most."""
BEGIN = {"gaussian": 2.0, "matern52": 2.0}
"""Kernels that the search begins with, and their lengths, in units of the median distance of two centres."""
SCALE = 10.0
"""Prior variance of the map around its linear part that the search begins with."""
RATIOS = (1.0, 0.3, 0.1, 0.03)
"""Standard deviations of process over observation noise, from loose to strict: each begins where the last ended."""
LEAST_RATIO = 0.003
ROUNDS, STEPS, LAST_STEPS = 6, 2, 4
"""Rounds of the search around the best setting, and Gauss-Newton steps: at each ratio, and for all rows."""
BROAD = 10.0
"""Prior standard deviation of the linear part."""
BEYOND = 0.5
LEAST_VARIANCE = 1e-8
_RANK = 1e-7


Tangents = Callable[[Float[np.ndarray, "T D"]], Float[np.ndarray, "T N D"]]


class Setting(NamedTuple):
    """What the evidence chooses: a kernel, its length, the map's prior variance, sqrt(Q / R)."""

    kernel: str
    length: float
    scale: float
    ratio: float


class _Features:
    """phi(u), with a prior of variance `scale` for the kernel part and a broad one for the linear part."""

    def __init__(self, kernel: str, length: float, centres: Float[np.ndarray, "K D"]) -> None:
        self.kernel, self.length, self.centres = KERNELS[kernel], length, centres
        values, vectors = eigh(self.kernel.profile(cdist(centres, centres) / length, np))
        kept = values > _RANK * values[-1]
        self.whitening = vectors[:, kept] / np.sqrt(values[kept])
        self.count = self.whitening.shape[1]

    def __call__(self, u: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T F"]:
        profile = self.kernel.profile(cdist(u, self.centres) / self.length, np)
        return np.concatenate([profile @ self.whitening, np.full((len(u), 1), BROAD), BROAD * u], axis=1)

    def regression(self, setting: Setting, W: Float[np.ndarray, "F N"], left_out: Any) -> KernelRegression:
        """Write W' phi as weights of the kernel, with the ridge that its errors and its prior come to."""
        squares = np.mean(left_out**2, axis=0) if len(left_out) else np.full(W.shape[1], np.nan)
        return KernelRegression(
            kernel=setting.kernel,
            length=self.length,
            ridge=float(np.mean(squares)) / setting.scale,
            centres=self.centres,
            weights=self.whitening @ W[: self.count],
            linear=BROAD * W[self.count + 1 :].T,
            offset=BROAD * W[self.count],
            left_out=left_out,
            score=float(np.mean(0.5 * np.log(squares))),
        )

    def prior(self, scale: float) -> Float[np.ndarray, " F"]:
        return np.concatenate([np.full(self.count, scale), np.ones(1 + self.centres.shape[1])])

    def jacobian(self, u: Float[np.ndarray, "T D"], W: Float[np.ndarray, "F N"]) -> Float[np.ndarray, "T N D"]:
        weights, linear = self.whitening @ W[: self.count], BROAD * W[self.count + 1 :].T
        slope = self.kernel.slope(cdist(u, self.centres) / self.length, np) / self.length**2
        # One product for all coordinates: sum_k slope_tk weights_kn centre_kd.
        both = (weights[:, :, None] * self.centres[:, None, :]).reshape(len(weights), -1)
        towards = (slope @ both).reshape(len(u), *linear.shape)
        return linear + (slope @ weights)[:, :, None] * u[:, None, :] - towards


class JointEstimate:
    """The mode, and how sure it is of the map.

    Attributes:
        states: z, one array for each recording.
        map_variance: Of each state: what the uncertainty of the map adds to that of a smoother with this map.
        observation_variance, process_variance: R and Q.
        regression: The map. Its `left_out` are standard deviations of its predictions at the steps of `rows`, with Q.
        recording, row: Where these steps begin.
        evidence: Its logarithm per reading.
    """

    def __init__(self, search: "_Search", mode: "_Mode", lengths: list[int]) -> None:
        solved, N = search.solve(mode, certain=False), mode.states.shape[1]
        features, z = search.features(mode.setting), mode.states
        self._search, self._mode = search, mode
        self.evidence, self.setting = mode.evidence, mode.setting
        self.observation_variance, self.process_variance = mode.variance, mode.setting.ratio**2 * mode.variance
        ends = np.cumsum(lengths)[:-1]
        self.states = np.split(z, ends)
        self.map_variance = np.split(solved.map_variance, ends)
        steps = search.steps
        phi = features(search.features_of(z, steps))
        F = phi.shape[1]
        predicted = [np.sum((phi @ solved.root[:, n * F : (n + 1) * F].T) ** 2, axis=1) for n in range(N)]
        deviation = np.sqrt(np.stack(predicted, axis=1) + self.process_variance)
        self.regression = features.regression(mode.setting, solved.weights, deviation)
        self.recording = np.searchsorted(ends, steps, side="right")
        self.row = steps - np.concatenate([[0], ends])[self.recording]

    def without(self, left: Any) -> KernelRegression | None:
        """Estimate the map again without the readings and steps of some places of `row`; None if it fails."""
        search = self._search.without(self._search.steps[left])
        mode = search.visit(self.setting, self._mode._replace(tangents=np.delete(self._mode.tangents, left, axis=0)), 1)
        if mode is None:
            return None
        features = search.features(self.setting)
        none = np.zeros((0, mode.states.shape[1]))
        return features.regression(self.setting, mode.weights, none)


class _Mode(NamedTuple):
    """States, the map's tangents and weights there, observation variances, and the log evidence per reading."""

    setting: Setting
    states: Float[np.ndarray, "T N"]
    tangents: Float[np.ndarray, "S N D"]
    variance: Float[np.ndarray, " N"]
    evidence: float
    weights: Any = None


def estimate_jointly(
    readings: list[Float[np.ndarray, "T N"]],
    states: list[Float[np.ndarray, "T N"]],
    lags: tuple[int, ...],
    tangents: Tangents,
    variance: Float[np.ndarray, " N"],
    rival: JointEstimate | None = None,
) -> JointEstimate | None:
    """Estimate the states of standardised recordings and the map that they follow; None where it costs too much.

    Args:
        readings: NaN is missing.
        states: A first estimate.
        tangents: Returns a first estimate of the map's Jacobians at features.
        variance: First observation variances.
        rival: An estimate with other lags. The search begins with its kernel, and ends if it has more evidence: None.
    """
    z, groups = np.concatenate(states), group_rows(readings, lags)
    search = _Search(groups, lags, z)
    if len(search.centres) < FEWEST_CENTRES:
        return None
    few = _Search(groups[:1], lags, z, search.centres)
    rows = slice(0, len(groups[0].x))
    variance = np.maximum(variance, LEAST_VARIANCE)
    with np.errstate(all="ignore"):
        kernels = tuple(BEGIN) if rival is None else (rival.setting.kernel,)
        best = few.anneal(z[rows], tangents(few.features_of(z, few.steps)), variance, kernels)
        if best is None or (rival is not None and best.evidence < rival.evidence):
            return None
        best = few.climb(best)
        if len(groups) > 1:
            z[rows] = best.states
            begin = _Mode(best.setting, z, tangents(search.features_of(z, search.steps)), best.variance, -np.inf)
            best = search.visit(best.setting, begin, LAST_STEPS)
        try:
            return None if best is None else JointEstimate(search, best, [len(x) for x in readings])
        except LinAlgError:  # the last step may be the one that fails
            return None


class _Search:
    """Settings with much evidence; features are made once for each kernel and length."""

    def __init__(
        self, groups: list[RowGroup], lags: tuple[int, ...], z: Float[np.ndarray, "T N"], centres: Any = None
    ) -> None:
        self.groups, self.lags = groups, lags
        self.steps = np.concatenate([group.first + group.steps for group in groups])
        self.count = max(sum(int(group.seen.sum()) for group in groups), 1)
        if centres is None:
            u = self.features_of(z, self.steps)
            count = min(_count_affordable(len(groups[0].x), u.shape[1], z.shape[1]), len(u))
            centres = u[np.unique(np.linspace(0, len(u) - 1, max(count, 1)).round().astype(int))]
        self.centres = centres
        distances = cdist(centres, centres)[np.triu_indices(len(centres), 1)]
        self.unit = max(float(np.median(distances)), 1e-6) if distances.size else 1.0
        self.made: dict[tuple[str, float], _Features] = {}
        self.low = np.min([np.nanmin(np.where(g.seen, g.x, np.inf), axis=0) for g in groups], axis=0) - BEYOND
        self.high = np.max([np.nanmax(np.where(g.seen, g.x, -np.inf), axis=0) for g in groups], axis=0) + BEYOND

    def features_of(self, z: Float[np.ndarray, "T N"], steps: Any) -> Float[np.ndarray, "S D"]:
        return np.concatenate([z[steps - lag] for lag in self.lags], axis=1)

    def features(self, setting: Setting) -> _Features:
        key = setting.kernel, setting.length
        if key not in self.made:
            self.made[key] = _Features(setting.kernel, setting.length * self.unit, self.centres)
        return self.made[key]

    def without(self, steps: Any) -> "_Search":
        """Leave steps out, and the readings that they lead to."""
        groups = []
        for group in self.groups:
            left = np.isin(group.first + group.steps, steps)
            seen = group.seen.copy()
            seen[group.steps[left] + 1] = False
            kept = group.steps[~left]
            begun = np.setdiff1d(np.arange(len(group.x)), kept + 1)
            groups.append(group._replace(seen=seen, steps=kept, begun=begun))
        found = _Search(groups, self.lags, self.centres, self.centres)
        found.made, found.unit, found.low, found.high = self.made, self.unit, self.low, self.high
        return found

    def visit(self, setting: Setting, begin: _Mode, steps: int = STEPS) -> _Mode | None:
        """Take some Gauss-Newton steps with a setting; None if they fail."""
        features, mode = self.features(setting), begin._replace(setting=setting)
        try:
            for _ in range(steps):
                mode = self._step(features, mode)
        except LinAlgError:
            return None
        return mode if np.isfinite(mode.evidence) else None

    def solve(self, mode: _Mode, certain: bool = True) -> "Solution":
        features, R = self.features(mode.setting), mode.variance
        phi = features(self.features_of(mode.states, self.steps))
        prior, Q = features.prior(mode.setting.scale), mode.setting.ratio**2 * R
        return solve(self.groups, self.lags, mode.states, mode.tangents, phi, R, Q, prior, certain)

    def _step(self, features: _Features, mode: _Mode) -> _Mode:
        R, solved = mode.variance, self.solve(mode)
        z = np.clip(solved.states, self.low, self.high)
        tangents = features.jacobian(self.features_of(z, self.steps), solved.weights)
        # With R and Q in proportion, the scale at which the cost is what it should be is the likeliest.
        counts = np.maximum(sum(group.seen.sum(axis=0) for group in self.groups), 1)
        squares = np.maximum(solved.squares / counts, 1e-30)
        R = np.maximum(squares / np.mean(squares / R) * solved.cost / self.count, LEAST_VARIANCE)
        return _Mode(mode.setting, z, tangents, R, solved.evidence / self.count, solved.weights)

    def anneal(self, z: Any, tangents: Any, variance: Any, kernels: tuple[str, ...]) -> _Mode | None:
        """Make the map stricter and stricter, with every kernel; the one with most evidence."""
        found = []
        for kernel in kernels:
            first = Setting(kernel, BEGIN.get(kernel, 2.0), SCALE, 1.0)
            mode: _Mode | None = _Mode(first, z, tangents, variance, -np.inf)
            for ratio in RATIOS:
                assert mode is not None
                mode = self.visit(mode.setting._replace(ratio=ratio), mode)
                if mode is None:
                    break
                found.append(mode)
        return max(found, key=lambda mode: mode.evidence, default=None)

    def climb(self, best: _Mode) -> _Mode:
        """Try neighbours of the best setting until none has more evidence."""
        tried = {best.setting}
        for _ in range(ROUNDS):
            before = best
            for setting in _neighbours(best.setting):
                if setting not in tried:
                    tried.add(setting)
                    mode = self.visit(setting, best, 1)
                    best = mode if mode is not None and mode.evidence > best.evidence else best
            if best is before:
                break
        return self.visit(best.setting, best) or best


def _count_affordable(T: int, D: int, N: int) -> int:
    """Count centres K for which T N (N F)^2 operations, F = K + 1 + D, are affordable."""
    return min(CENTRES, int((AFFORDABLE / (T * N)) ** 0.5 / N) - 1 - D)


def _neighbours(setting: Setting) -> Iterator[Setting]:
    """List settings beside one: other lengths, scales, ratios and kernels."""
    for factor in (2.0, 0.5):
        yield setting._replace(length=setting.length * factor)
    for factor in (10.0, 0.1):
        yield setting._replace(scale=setting.scale * factor)
    for factor in (0.3, 3.0):
        if setting.ratio * factor >= LEAST_RATIO:
            yield setting._replace(ratio=setting.ratio * factor)
    for kernel in KERNELS:
        yield setting._replace(kernel=kernel)
