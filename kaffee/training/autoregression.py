"""Vector autoregressions by ridge regression: lags, principal lags, differences and harmonics of a period.

    x_t = sum_{k <= p} A_k x_{t-k} + sum_{p < k <= q} C_k U' x_{t-k} + c + H o_t + D u_t + e_t,   e_t ~ N(0, Q)

U holds the leading principal directions of wide data, o_t = (cos 2 pi j t / T, sin 2 pi j t / T), u_t known inputs
(VARX). Differenced, the same holds for x_t - x_{t-1}. The structure is chosen by forecasts of rows that are held back
from the regression.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from jaxtyping import Float

from kaffee.data.series import Series
from kaffee.metrics.scores import gaussian_nll
from kaffee.training.selection import HeldBack, Scored, choose_starts, inputs_ahead

Recordings = list[Float[np.ndarray, "T N"]]

ORDERS = (0, 1, 2, 3, 5, 8, 13, 20, 32)
# In units of the data's variance. The smallest is for coordinates that repeat others, the largest is the climate.
RIDGES = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
# A Kalman filter costs the cube of its latent size.
MOST_LATENT = 100
# Of wide data: latent coordinates beyond the data's own, for lags; and principal directions, whose lags are longer.
WIDE_LATENT = 256
MOST_PRINCIPAL = 24
ROWS_PER_COEFFICIENT = 2
# A series that stays in its range has no growing mode; a forecast that had one would be a baseline of straw.
STABLE = 0.999
# Nor does it come to rest farther from its mean than its rows are, in standard deviations, the root mean square.
FARTHEST_REST = 1.0
CHUNK = 10_000
HARMONICS = (1, 2, 4)
# A period has at least so many cycles in the data, and rows in a cycle.
CYCLES, SHORTEST_PERIOD = 4, 4
LEAST_VARIANCE = 1e-7


@dataclass(frozen=True)
class Structure:
    """What a regression is made of.

    Attributes:
        order, reach, rank: p full lags, and q - p more of `rank` principal directions.
        differenced: Whether x_t - x_{t-1} is regressed instead of x_t.
        period, harmonics: T in rows, and how many multiples of its frequency.
        ridge: Penalty on coefficients of lags, in units of the data's variance.
    """

    order: int = 1
    reach: int = 0
    rank: int = 0
    differenced: bool = False
    period: float = 0.0
    harmonics: int = 0
    ridge: float = 1e-6

    @property
    def memory(self) -> int:
        """Rows before t that the prediction of x_t needs."""
        return max(self.order, self.reach) + self.differenced

    def describe(self) -> str:
        """Say it in words."""
        words = [f"order {self.order}"]
        if self.reach > self.order:
            words.append(f"{self.reach} lags of {self.rank} principal directions")
        if self.differenced:
            words.append("of differences")
        if self.harmonics:
            words.append(f"with {self.harmonics} harmonics of a period of {self.period:.4g} rows")
        return ", ".join(words)


@dataclass(frozen=True, eq=False)
class Autoregression:
    """A fitted regression, in levels: differences are already expanded into lags of x.

    D has no columns without inputs.
    """

    structure: Structure
    A: Float[np.ndarray, "p N N"]
    C: Float[np.ndarray, "r N K"]
    U: Float[np.ndarray, "N K"]
    c: Float[np.ndarray, " N"]
    H: Float[np.ndarray, "N J"]
    Q: Float[np.ndarray, "N N"]
    D: Float[np.ndarray, "N K"] = field(default_factory=lambda: np.zeros((1, 0)))

    @property
    def lags(self) -> Float[np.ndarray, "q N N"]:
        """All coefficients of lags of x, dense."""
        return np.concatenate([self.A, self.C @ self.U.T]) if len(self.C) else self.A

    def forecast(
        self,
        histories: Float[np.ndarray, "S q N"],
        times: Float[np.ndarray, " S"],
        num_steps: int,
        inputs: Float[np.ndarray, "S h K"] | None = None,
    ) -> Float[np.ndarray, "h S N"]:
        """Forecast means from the rows before each start, the latest last, and the time of the first forecast row.

        `inputs` are those of the forecast rows.
        """
        lags, past, means = self.lags, histories, []
        stacked = lags[::-1].transpose(0, 2, 1).reshape(-1, len(self.c)) if len(lags) else None
        for h in range(num_steps):
            step = self.c + harmonics(times + h, self.structure) @ self.H.T
            if inputs is not None:
                step = step + inputs[:, h] @ self.D.T
            if stacked is not None:
                step = step + past[:, -len(lags) :].reshape(len(past), -1) @ stacked
                past = np.concatenate([past[:, 1:], step[:, None]], axis=1)
            means.append(step)
        return np.stack(means)

    def forecast_variances(self, num_steps: int) -> Float[np.ndarray, "h N"]:
        """Compute variances h steps ahead, sum_j diag(Psi_j Q Psi_j') with Psi_j = sum_k A_k Psi_{j-k}."""
        lags, N = self.lags, len(self.c)
        psi, total, out = [np.eye(N)], np.zeros(N), []
        for _ in range(num_steps):
            total = total + np.einsum("ij,jk,ik->i", psi[-1], self.Q, psi[-1])
            out.append(total)
            recent = psi[::-1][: len(lags)]
            psi.append(sum((A_k @ P for A_k, P in zip(lags, recent, strict=False)), np.zeros((N, N))))
        return np.stack(out)

    @property
    def latent_dim(self) -> int:
        """Latent coordinates of its state-space model."""
        return max(len(self.A), 1) * len(self.c) + len(self.C) * self.U.shape[1] + self.H.shape[1]

    def rest(self) -> Float[np.ndarray, " N"]:
        """Compute the point of rest, mu = sum_k A_k mu + c."""
        return np.linalg.solve(np.eye(len(self.c)) - self.lags.sum(axis=0), self.c)

    def radius(self) -> float:
        """Compute the largest modulus of its modes; of the differences, if it is of differences."""
        lags = self.lags
        if self.structure.differenced:
            # phi(B) = (1 - B) psi(B): the modes of psi, by dividing the polynomial.
            lags = np.cumsum(lags, axis=0)[:-1] - np.eye(len(self.c)) if len(lags) > 1 else lags[:0]
        if not len(lags):
            return 0.0
        N = len(self.c)
        companion = np.eye(len(lags) * N, k=-N)
        companion[:N] = np.hstack(list(lags))
        return float(np.abs(np.linalg.eigvals(companion)).max())


def harmonics(times: Float[np.ndarray, " T"], structure: Structure) -> Float[np.ndarray, "T J"]:
    """Compute (cos, sin) of the harmonics of a period at times in rows."""
    angles = 2.0 * np.pi * np.outer(times, np.arange(1, structure.harmonics + 1)) / (structure.period or 1.0)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(times), -1)


def interpolate(values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Fill gaps by straight lines, ends by the nearest reading, columns without any by 0."""
    return pd.DataFrame(values).interpolate(limit_direction="both").fillna(0.0).to_numpy()


def hold_readings(values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Fill gaps by the last reading before, 0 if there is none."""
    return pd.DataFrame(values).ffill().fillna(0.0).to_numpy()


def principal_directions(recordings: Recordings, rank: int) -> Float[np.ndarray, "N K"]:
    """Compute the leading eigenvectors of the covariance."""
    stacked = np.concatenate(recordings)
    return np.linalg.eigh(np.cov(stacked.T, ddof=0))[1][:, ::-1][:, :rank]


class _Sums:
    """Sums of products of features and targets of one structure, from which every ridge is solved."""

    def __init__(
        self,
        recordings: Recordings,
        times: list[Float[np.ndarray, " T"]],
        structure: Structure,
        inputs: Recordings | None = None,
    ) -> None:
        self.structure, N = structure, recordings[0].shape[1]
        inputs = [np.zeros((len(x), 0)) for x in recordings] if inputs is None else inputs
        self.num_inputs = inputs[0].shape[1]
        self.U = principal_directions(recordings, structure.rank) if structure.rank else np.zeros((N, 0))
        self.num_lags = structure.order * N + max(structure.reach - structure.order, 0) * structure.rank
        width = self.num_lags + 1 + 2 * structure.harmonics + self.num_inputs + N
        self.rows, self.products = 0, np.zeros((width, width))
        for x, t, u in zip(recordings, times, inputs, strict=True):
            y = np.diff(x, axis=0) if structure.differenced else x
            t, u = t[len(t) - len(y) :], u[len(u) - len(y) :]
            first = max(structure.order, structure.reach)
            for start in range(first, len(y), CHUNK):
                table = self._table(y, t, u, start, min(start + CHUNK, len(y)))
                self.products += table.T @ table
                self.rows += len(table)

    def _table(self, y: np.ndarray, t: np.ndarray, u: np.ndarray, start: int, stop: int) -> np.ndarray:
        s = self.structure
        lags = [y[start - k : stop - k] for k in range(1, s.order + 1)]
        tail = [y[start - k : stop - k] @ self.U for k in range(s.order + 1, s.reach + 1)]
        known = [np.ones((stop - start, 1)), harmonics(t[start:stop], s), u[start:stop]]
        return np.hstack([*lags, *tail, *known, y[start:stop]])

    def settle(self, ridge: float) -> Autoregression | None:
        """Solve for a regression that stays where the data are: no growing mode, no rest far away; None if it grows.

        Many short recordings that begin alike drift; a constant that stands for it, with modes that decay in longer
        than a recording, comes to rest tens of standard deviations away. Then the regression is solved again around a
        nearer point of rest, with x_t - mu in place of x_t and without a constant.
        """
        model = _stabilise(self.solve(ridge))
        if model is None or model.structure.differenced or not len(model.lags):
            return model
        rest = self._approach(model.rest())
        if rest is None:
            return model
        again = _stabilise(self.solve(ridge, rest))
        return None if again is None else replace(again, c=rest - again.lags.sum(axis=0) @ rest)

    def _approach(self, rest: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"] | None:
        """Return a point of rest that is as far from the mean of the data as rows are; None if it is no farther."""
        rows, N = max(self.rows, 1), len(self.U)
        mean = self.products[self.num_lags, -N:] / rows
        variance = np.diag(self.products)[-N:] / rows - mean**2
        distance = float(np.sqrt(np.mean((rest - mean) ** 2 / np.maximum(variance, LEAST_VARIANCE))))
        return None if distance <= FARTHEST_REST else mean + (rest - mean) * (FARTHEST_REST / distance)

    def _centre(self, rest: Float[np.ndarray, " N"]) -> Float[np.ndarray, "K K"]:
        """Compute the sums of x - mu instead of x, and none of the constant."""
        one, s = self.num_lags, self.structure
        change = np.eye(len(self.products))
        change[one, :one] = -np.concatenate([np.tile(rest, s.order), np.tile(rest @ self.U, max(s.reach - s.order, 0))])
        change[one, -len(rest) :] = -rest
        products = change.T @ self.products @ change
        products[one], products[:, one] = 0.0, 0.0
        return products

    def solve(self, ridge: float, rest: Float[np.ndarray, " N"] | None = None) -> Autoregression:
        """Solve min_W |x - f W|^2 / rows + ridge |W|^2 over lags and inputs, constant and harmonics without penalty.

        With a point of `rest` the regression is of x - rest, and its constant is 0.
        """
        s, N, J = replace(self.structure, ridge=ridge), len(self.U), 2 * self.structure.harmonics
        K = self.num_lags + 1 + J + self.num_inputs
        products = self.products if rest is None else self._centre(rest)
        ff, fx, xx = products[:K, :K], products[:K, K:], products[K:, K:]
        rows = max(self.rows, 1)
        scale = np.trace(xx) / (rows * N) if s.differenced else 1.0
        penalty = np.diag(
            [ridge * scale] * self.num_lags + [1e-9] * (1 + J) + [max(ridge * scale, 1e-9)] * self.num_inputs
        )
        gram = ff + rows * penalty
        W = np.linalg.solve(gram, fx)
        S = (xx - W.T @ fx - fx.T @ W + W.T @ ff @ W) / rows
        # Residuals of what was fitted are too small by the degrees of freedom that the fit took.
        used = float(np.trace(np.linalg.solve(gram, ff)))
        S = 0.5 * (S + S.T) * rows / max(rows - used, 0.1 * rows) + LEAST_VARIANCE * np.eye(N)
        # Correlations of few rows are chance; without them Q is positive definite however few there are.
        shrink = min(1.0, 2.0 * (N + 1) / rows)
        p = s.order
        A = W[: p * N].T.reshape(N, p, N).swapaxes(0, 1)
        C = W[p * N : self.num_lags].T.reshape(N, -1, max(s.rank, 1)).swapaxes(0, 1)[:, :, : s.rank]
        A = _undo_difference(A) if s.differenced else A
        Q = (1.0 - shrink) * S + shrink * np.diag(np.diag(S))
        H, D = W[self.num_lags + 1 : K - self.num_inputs].T, W[K - self.num_inputs :].T
        return Autoregression(s, A, C, self.U, W[self.num_lags], H, Q, D)


def _undo_difference(A: Float[np.ndarray, "p N N"]) -> Float[np.ndarray, "p+1 N N"]:
    """Expand y_t = sum_k A_k y_{t-k}, y_t = x_t - x_{t-1}, into lags of x."""
    N = A.shape[1]
    padded = np.concatenate([A, np.zeros((1, N, N))])
    padded[0] += np.eye(N)
    padded[1:] -= A
    return padded


def _stabilise(model: Autoregression) -> Autoregression | None:
    """Scale A_k by s^k to modes within `STABLE` if they grow a little, which bends none; None if they grow much."""
    radius = model.radius()
    if radius <= STABLE:
        return model
    if model.structure.differenced or radius > 1.0 / STABLE**20:
        return None
    powers = (STABLE / radius) ** np.arange(1, len(model.lags) + 1)[:, None, None]
    return replace(model, A=model.A * powers[: len(model.A)], C=model.C * powers[len(model.A) :])


def fit_autoregression(series: Series, structure: Structure) -> Autoregression:
    """Fit a regression to a standardised series; gaps are filled by straight lines."""
    sums = _Sums([interpolate(x) for x in series.recordings], list(series.row_times), structure, _list_inputs(series))
    return sums.settle(structure.ridge) or sums.solve(structure.ridge)


def _list_inputs(series: Series) -> Recordings | None:
    return None if series.inputs is None else list(series.inputs.recordings)


def find_season(series: Series) -> float | None:
    """Find the strongest period of a standardised series, in rows; None without one that stands out.

    The peak of the periodogram of the longest recording, without its straight line, summed over coordinates, refined by
    least squares of the first two harmonics. Whether it pays is for validation to say.
    """
    x, t = max(zip(series.recordings, series.row_times, strict=True), key=lambda pair: len(pair[0]))
    T = len(x)
    if T < CYCLES * SHORTEST_PERIOD * 2:
        return None
    x = interpolate(x)
    line = np.vander(np.linspace(-1.0, 1.0, T), 2)
    x = x - line @ np.linalg.lstsq(line, x, rcond=None)[0]
    power = (np.abs(np.fft.rfft(x * np.hanning(T)[:, None], axis=0)) ** 2).sum(axis=1)
    low, high = CYCLES, T // SHORTEST_PERIOD
    if high <= low + 1 or not power.any():
        return None
    peak = low + int(np.argmax(power[low : high + 1]))
    # A line stands out of its surroundings; the broad peak of an irregular rhythm is no calendar.
    around = np.r_[power[max(peak - 12, 1) : max(peak - 3, 1)], power[peak + 4 : peak + 13]]
    if not len(around) or power[peak] < 20.0 * np.median(around):
        return None
    candidates = T / np.linspace(peak - 0.8, peak + 0.8, 161)
    return float(min(candidates, key=lambda period: _unexplained(x, t, period)))


def _unexplained(x: np.ndarray, t: np.ndarray, period: float) -> float:
    waves = harmonics(t, Structure(period=period, harmonics=2))
    return float(np.sum((x - waves @ np.linalg.lstsq(waves, x, rcond=None)[0]) ** 2))


class ForecastScore:
    """Scores forecasts of regressions on held-back rows; in gaps the last reading is held."""

    def __init__(self, held: HeldBack, horizons: tuple[int, ...]) -> None:
        self._held, self._horizons = held, horizons
        self._starts = choose_starts(held)
        self._filled = [hold_readings(x) for x in held.blocks.recordings]

    def __call__(self, model: Autoregression) -> Scored:
        """Score a regression at the starts of `choose_starts`."""
        reach, memory, terms = max(self._horizons), max(len(model.lags), 1), []
        std = np.sqrt(np.maximum(model.forecast_variances(reach), LEAST_VARIANCE))
        blocks = self._held.blocks
        for r, (x, held, t) in enumerate(zip(blocks.recordings, self._filled, blocks.row_times, strict=True)):
            rows = self._starts[1][self._starts[0] == r]
            if not len(rows):  # of very many recordings not all have a start
                continue
            before = np.concatenate([np.repeat(held[:1], memory, axis=0), held])
            histories = np.stack([before[i + 1 : i + 1 + memory] for i in rows])
            means = model.forecast(
                histories, t[rows] + 1.0, reach, inputs_ahead(blocks, np.full(len(rows), r), rows, reach)
            )
            later = np.concatenate([x, np.full((reach, x.shape[1]), np.nan)])
            each = [gaussian_nll(later[rows + h], means[h - 1], std[h - 1]) for h in self._horizons]
            terms.append(np.stack(each, axis=1))
        return Scored.from_entries(np.concatenate(terms))


def propose_structures(series: Series, most_latent: int) -> Iterator[Structure]:
    """List the structures that the rows suffice for, simple ones first; season and ridge are tried later."""
    N, rows = series.num_coordinates, series.num_steps
    for order in ORDERS:
        cheap = (order + 1) * N <= min(MOST_LATENT, most_latent) or order <= 1
        if cheap and (order <= 1 or rows >= ROWS_PER_COEFFICIENT * (order * N + 1)):
            yield Structure(order)
            yield Structure(order, differenced=True)
    # Wide data: two full lags, and longer ones of the principal directions.
    full = 2 if most_latent >= 2 * N else 1
    if 5 * N > MOST_LATENT:
        for reach in (0, 4, 6, 8):
            rank = min(MOST_PRINCIPAL, N // 2, (most_latent - full * N) // max(reach - full, 1)) if reach else 0
            if (not reach and full * N > MOST_LATENT) or rank >= 4:
                yield Structure(full, reach, rank)


def choose_structures(
    series: Series, part: Series, score: ForecastScore, most_latent: int = WIDE_LATENT, *, seasons: bool = True
) -> list[tuple[Scored, Autoregression]]:
    """Fit regressions to `part`, each with its best ridge; return them with their scores, the best first.

    Args:
        series: All standardised rows, in which a period is looked for.
        part: The rows to fit.
        most_latent: Bound on the latent size of their state-space models.
        seasons: Whether to try harmonics of a period.
    """
    complete, times, N = [interpolate(x) for x in part.recordings], list(part.row_times), series.num_coordinates
    inputs = _list_inputs(part)

    def best_ridge(structures: Iterable[Structure]) -> list[tuple[Scored, Autoregression]]:
        found = []
        for structure in structures:
            sums = _Sums(complete, times, structure, inputs)
            if sums.rows < 2:
                continue
            models = [sums.settle(ridge) for ridge in (RIDGES if sums.num_lags else RIDGES[:1])]
            scored = [(score(model), model) for model in models if model is not None]
            found += [min(scored, key=_mean)] if scored else []
        return found

    ranked = sorted(best_ridge(propose_structures(part, most_latent)), key=_mean)
    period = find_season(series) if seasons else None
    if period is not None and ranked:
        bases = [model.structure for _, model in ranked[:3]]
        bases += [Structure(order) for order in (1, 2, 3) if order * N <= MOST_LATENT]
        periodic = {
            replace(s, period=period, harmonics=k, ridge=0.0) for s in bases for k in HARMONICS if 2 * k <= period
        }
        ranked = sorted(ranked + best_ridge(sorted(periodic, key=repr)), key=_mean)
    return [pair for pair in ranked if pair[1].latent_dim <= most_latent] or ranked


def _mean(pair: tuple[Scored, Autoregression]) -> float:
    return pair[0].mean
