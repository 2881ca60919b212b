"""Certify a surrogate on held-out data, without knowing the true system, and keep all that a report shows.

A certificate is one record in a folder (`certificate.json` and its arrays): verdicts, the numbers behind them, and the
curves of every figure, so that a page can be drawn again without computing anything.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from jaxtyping import Bool, Float, Int

from kaffee.certification.check import Check, check
from kaffee.certification.covariates import InputGain, input_gain
from kaffee.certification.drift import Drift, measure_drift
from kaffee.certification.forecasts import Fan, Scores, default_horizons, forecast_fan, score_forecasts
from kaffee.certification.free_runs import MIN_ROWS, Agreement, agreement
from kaffee.certification.innovations import (
    MIN_ENTRIES,
    FilterPass,
    Residuals,
    choose_starts,
    choose_warm_up,
    filter_pass,
    residual_checks,
)
from kaffee.certification.purpose import Purpose, state_purpose
from kaffee.certification.spread import SpreadGrowth, spread_growth
from kaffee.certification.stability import Candidate, Stability, compare_refits
from kaffee.certification.tangents import TangentProxy, tangent_proxy
from kaffee.certification.verdicts import Status, Verdict, judge, worst
from kaffee.checkpoint.reconstruction import Reconstruction, named_arrays
from kaffee.data.gaps import complete_rows
from kaffee.data.series import Series
from kaffee.errors import CheckpointError, ConfigError, KaffeeError
from kaffee.inference.matching import match_series
from kaffee.inference.recordings import filter_recordings
from kaffee.model.inputs import undriven
from kaffee.model.maps import Linear
from kaffee.records import jsonable, read_record, write_record
from kaffee.systems.simulation import Truth
from kaffee.training.linear import fit_linear

AXES = {1: "local probabilistic", 2: "stochastic free run", 3: "deterministic core"}
_EXACT = 200
"""Numbers in an array that is written to the last digit; larger ones are there for figures, to six digits."""
_MAX_SHOWN_ROWS = 250
T = TypeVar("T")
_Curve = Float[np.ndarray, " T"]


@dataclass(frozen=True)
class CertificationSettings:
    """Set how much is computed.

    Attributes:
        num_starts: Held-out rows that forecasts start from.
        members: Size of a forecast ensemble.
        horizons: Steps ahead; None: 1 and up to two decorrelation times of the training data.
        divergence_runs, divergence_steps: Number and length of the free runs.
        seed: Seed of everything random.
    """

    num_starts: int = 500
    members: int = 200
    horizons: tuple[int, ...] | None = None
    divergence_runs: int = 20
    divergence_steps: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"num_starts": 1, "members": 2, "divergence_runs": 1, "divergence_steps": 1, "seed": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} = {getattr(self, name)} is too small; use {bound} or more.")
        if self.horizons is not None and (not self.horizons or min(self.horizons) < 1):
            raise ConfigError(f"horizons are steps ahead, each 1 or more, or None; not {self.horizons}.")


class Withheld(NamedTuple):
    """The filter's belief about one noise-free held-out coordinate while its readings are withheld for a while.

    Attributes:
        used: Which readings the filter saw.
        mean, std: Of the belief, in data units.
        start, stop: Times between which all readings were withheld.
        truth: The noise-free values, if they are known.
    """

    column: str
    times: _Curve
    observed: _Curve
    used: Bool[np.ndarray, " T"]
    mean: _Curve
    std: _Curve
    start: float
    stop: float
    truth: _Curve | None


class Losses(NamedTuple):
    """The loss of one stage of training, averaged over updates so that a few hundred points remain."""

    stage: str
    loss: str
    updates: Int[np.ndarray, " U"]
    values: Float[np.ndarray, " U"]


@dataclass(frozen=True)
class Certificate:
    """What is known of a surrogate from data alone; a part that could not be computed is None.

    Attributes:
        residuals, scores, spread, tangents: Axis 1.
        agreement: Axes 2 and 3.
        fan, withheld: One forecast, and one coordinate with readings withheld, as pictures.
        missing: Why a part is None, by its name.
        about: Method, time step, data and settings.
        checks: The prior and the model in a few numbers.
        training, page: Loss curves; title, command and settings of the fit, if the caller adds them.
        drift: Data against data, which no model enters.
        purpose: What the model is good for; None in certificates of versions that did not say so, as `drift`.
        refits: The same recording fitted with other seeds, if it was; errors of exponents then contain their spread.
        inputs: What known inputs bring, for a model that takes any.
    """

    verdicts: tuple[Verdict, ...]
    residuals: Residuals | None
    scores: Scores | None
    spread: SpreadGrowth | None
    tangents: TangentProxy | None
    agreement: Agreement | None
    fan: Fan | None
    missing: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    withheld: Withheld | None = None
    checks: dict[str, Check] = field(default_factory=dict)
    training: tuple[Losses, ...] = ()
    page: dict[str, Any] = field(default_factory=dict)
    drift: Drift | None = None
    purpose: Purpose | None = None
    refits: Stability | None = None
    inputs: InputGain | None = None

    @property
    def axes(self) -> dict[int, Status]:
        """The worst status of every axis; "unknown" where nothing is known."""
        return {axis: worst([v.status for v in self.verdicts if v.axis == axis]) for axis in AXES}

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values without the trajectories; numbers that are not finite become None."""
        axes = {str(axis): {"name": AXES[axis], "status": status} for axis, status in self.axes.items()}
        free = None if self.agreement is None else replace(self.agreement, drawn={})
        values = jsonable(replace(self, agreement=free), digits=6, exact=_EXACT)
        if free is not None:
            del values["agreement"]["drawn"]
        if self.inputs is None:
            del values["inputs"]  # as in certificates of models without
        return {"axes": axes, **values}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the trajectories, which are kept beside the JSON values."""
        return {} if self.agreement is None else {k: v.astype(np.float32) for k, v in self.agreement.drawn.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Build a certificate from the values of `to_dict` and `arrays`; NaN where JSON had no number."""
        drawn = {name: np.asarray(run, np.float64) for name, run in arrays.items()}
        # Every part must be there, if only as None: a page without one would look complete.
        later = {"drift", "purpose", "refits", "inputs"}
        parts = {part.name: values[part.name] for part in fields(cls) if part.name in values or part.name not in later}
        if parts["agreement"] is not None:
            parts["agreement"] = {**parts["agreement"], "drawn": drawn}
        return cast(Self, _rebuild(cls, parts))

    def save(self, folder: str | Path, conclusion: Mapping[str, Any]) -> Path:
        """Write the certificate to a folder; `conclusion` says what it was computed from."""
        return write_record(
            Path(folder), "certificate", self.arrays(), {**self.to_dict(), "conclusion": dict(conclusion)}
        )

    @classmethod
    def load(cls, folder: str | Path) -> tuple[Self, dict[str, Any]]:
        """Read a certificate and its conclusion.

        Raises:
            CheckpointError: It is not there, damaged, or was written by a version that kept less.
        """
        arrays, values = read_record(Path(folder), "certificate", "certificate")
        try:
            return cls.from_dict(values, arrays), values.get("conclusion", {})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{folder}/certificate.json cannot be read by this version ({error!r}).") from error


def _rebuild(hint: Any, value: Any) -> Any:
    """Convert JSON values back to what a type hint says; the inverse of `jsonable` for the parts of a certificate."""
    if value is None:
        return math.nan if hint is float else None
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _rebuild(next(part for part in parts if part is not NoneType), value)
    if hasattr(hint, "array_type"):  # an array with its shape
        kind = hint.dtypes[0] if isinstance(hint.dtypes, tuple | list) else ""
        return np.asarray(value, bool if "bool" in kind else int if "int" in kind else float)
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        hints: Any = get_type_hints(hint)
        # A field that an older version did not know takes its default; without one, this raises.
        return hint(**{name: _rebuild(hints[name], value[name]) for name in hints if name in value})
    if origin is dict:
        return {key: _rebuild(parts[1], item) for key, item in value.items()}
    if origin is tuple and Ellipsis not in parts:
        return tuple(_rebuild(part, item) for part, item in zip(parts, value, strict=True))
    if origin in (tuple, list):
        return origin(_rebuild(parts[0], item) for item in value)
    return value


def describe_shortage(test: Series, *, climate: bool = False) -> str:
    """Describe which checks these held-out data are too few for; empty if there are none.

    Args:
        climate: Whether the model will have a climate, so that all rows count.
    """
    warm_up = choose_warm_up(test, climate=climate)
    readings = sum(int((~np.isnan(values[warm_up:])).sum()) for values in test.recordings)
    rows = len(complete_rows(test))
    needs = []
    if readings < MIN_ENTRIES:
        after = f" after {warm_up} row{'s' * (warm_up > 1)} of warm-up" if warm_up else ""
        needs.append(f"one-step predictions need {MIN_ENTRIES} readings, of which there are {readings}{after}")
    if rows < MIN_ROWS:
        needs.append(f"free runs need {MIN_ROWS} rows without gaps, of which there are {rows}")
    if not needs:
        return ""
    held_out = f"{test.num_steps} held-out row{'s are' if test.num_steps > 1 else ' is'}"
    return f"{held_out} too few for the certificate: {'; '.join(needs)}. Record more, or hold out more by test_fraction"


def certify(
    reconstruction: Reconstruction,
    train: Series,
    test: Series,
    *,
    prior: Reconstruction | None = None,
    linear: Reconstruction | None = None,
    truth: Truth | None = None,
    refits: Sequence[Candidate] = (),
    settings: CertificationSettings | None = None,
    any_step: bool = False,
    watch: Callable[[str], object] | None = None,
) -> Certificate:
    """Certify a surrogate on held-out data, without knowing the true system.

    Args:
        train: What it was trained on, for baselines and tangents; in data units, gaps and several recordings are fine.
        test: Held-out data in data units.
        prior: The deterministic surrogate that it was made of, to be compared with.
        linear: The linear model of the training data that it has to beat; by default it is fitted.
        truth: The true system's states, if they are known; shown beside the results, no verdict uses them.
        refits: Fits with several seeds, the surrogate's own among them (`kaffee.fitting.refits`).
        any_step: Accept a time step that is not the model's.
        watch: Told the name of each stage as it begins.
    """
    settings = settings or CertificationSettings()
    # Messages call the data by name: a certificate is shown to others, who need not know where the files lie.
    matched = (match_series(reconstruction, series, any_step=any_step) for series in (train, test))
    train, test = (replace(series, source="") for series in matched)
    if truth is not None and truth.states.shape[1] != len(test.columns):
        truth = None  # the model has other coordinates than the system
    missing: dict[str, str] = {}

    def part(name: str, title: str, make: Callable[[], T]) -> T | None:
        """Compute a part, or note why it cannot be; only what kaffee raises on purpose is a reason."""
        if watch is not None:
            watch(title)
        try:
            return make()
        except KaffeeError as error:
            missing[name] = str(error)
            return None

    def run_filter(model: Reconstruction) -> FilterPass:
        climate = reconstruction.model.climate is not None  # the baseline starts where the surrogate does
        return filter_pass(model, test, choose_starts(test, settings.num_starts, climate=climate))

    def need_run() -> FilterPass:
        if run is None:
            raise KaffeeError(missing["filter"])
        return run

    seed = settings.seed
    size: dict[str, Any] = {"runs": settings.divergence_runs, "steps": settings.divergence_steps}
    tau = train.decorrelation_time
    horizons = settings.horizons or default_horizons(train, test)
    standard = train.standardised(reconstruction.scaler).recordings
    states = None if truth is None else np.concatenate([truth.states, truth.again])
    run = part("filter", "filtering the held-out data", lambda: run_filter(reconstruction))
    if linear is None:
        linear = part("linear", "fitting the linear baseline", lambda: _fit_baseline(reconstruction, train, seed))
    # A linear model, such as a fit may keep, is not asked to beat itself.
    rival = None if isinstance(undriven(reconstruction.model.core), Linear) else linear
    beside = None if run is None or rival is None else run_filter(rival)
    residuals = part("residuals", "innovations", lambda: residual_checks(need_run()))
    scores = part(
        "scores",
        "forecasts",
        lambda: score_forecasts(need_run(), beside, standard, horizons, members=settings.members, seed=seed),
    )
    gain = None
    if reconstruction.inputs:
        undriven_train = train.driven_by(None)
        bare = part(
            "linear", "the linear model without inputs", lambda: _fit_baseline(reconstruction, undriven_train, seed)
        )
        driven = run_filter(linear) if run is not None and linear is not None and beside is None else beside
        gain = part(
            "inputs",
            "what inputs bring",
            lambda: input_gain(need_run(), driven, bare, horizons, members=settings.members, seed=seed),
        )
    spread = part("spread", "withheld observations", lambda: spread_growth(need_run(), horizons, seed=seed))
    tangents = part("tangents", "tangents from data", lambda: tangent_proxy(need_run(), standard))
    free = part(
        "agreement",
        "free runs",
        lambda: agreement(reconstruction, train, test, prior=prior, linear=linear, truth=states, seed=seed, **size),
    )
    checks: dict[str, Check] = {}
    if prior is not None:
        known = None
        if free is not None and free.prior_core is not None:
            known = (free.prior_core, free.prior_exponents, free.num_rows)
        checks["prior"] = check(prior, test, free=known, **size)
    known = None if free is None else (free.core, free.exponents, free.num_rows)
    own = checks[reconstruction.method] = check(reconstruction, test, residuals=residuals, free=known, **size)
    compared = None
    if refits:
        chosen = reconstruction.provenance.get("seed", 0)
        compared = part(
            "refits", "refits", lambda: compare_refits(refits, chosen, (own, free), train, test, seed=seed, **size)
        )
    if free is not None and compared is not None:
        free = replace(free, exponents=compared[1])
    parts = {"residuals": residuals, "scores": scores, "spread": spread, "tangents": tangents, "agreement": free}
    verdicts = judge(parts, missing, horizon=tau)
    return Certificate(
        verdicts,
        residuals,
        scores,
        spread,
        tangents,
        free,
        fan=None if run is None else forecast_fan(run, max(horizons), settings.members, seed=seed),
        missing=missing,
        about={
            "method": reconstruction.method,
            "dt": reconstruction.dt,
            "columns": list(test.columns),
            "decorrelation_time": tau * reconstruction.dt,
            "train": {"steps": train.num_steps, "recordings": train.num_recordings, "fingerprint": train.fingerprint},
            "test": {"steps": test.num_steps, "recordings": test.num_recordings, "fingerprint": test.fingerprint},
            "weights": sum(array.size for array in named_arrays(reconstruction.model).values()),
            "settings": asdict(settings),
        },
        withheld=_withhold_readings(reconstruction, test, None if truth is None else truth.test_states),
        checks=checks,
        drift=measure_drift(train, test),
        purpose=state_purpose(verdicts, scores, reconstruction.dt),
        refits=None if compared is None else compared[0],
        inputs=gain,
    )


def _fit_baseline(reconstruction: Reconstruction, train: Series, seed: int) -> Reconstruction:
    """Fit the strongest baseline without chaos, a linear state-space model, in the units of a surrogate."""
    model = fit_linear(train.standardised(reconstruction.scaler), seed=seed).model
    known = replace(reconstruction, model=model, method="kaffee", provenance={})
    if train.inputs is not None:
        return known
    return replace(known, inputs=(), scaler=replace(known.scaler, inputs=None))


def _withhold_readings(
    reconstruction: Reconstruction, test: Series, truth: Float[np.ndarray, "T N"] | None
) -> Withheld | None:
    """Filter the first coordinate of the longest recording with the middle fifth of the readings withheld.

    Args:
        truth: The noise-free states behind the held-out data of one recording.

    Returns:
        None if there are too few readings for that.
    """
    longest = int(np.argmax(test.lengths))
    recording = test.recordings[longest]
    shown = min(_MAX_SHOWN_ROWS, len(recording) - 1)
    gap = slice(2 * shown // 5, 3 * shown // 5)
    seen = recording[: shown + 1].copy()
    seen[1:][gap] = np.nan
    if shown < 5 or np.isnan(seen).all(axis=0).any() or np.isnan(recording[1 : shown + 1, 0]).all():
        return None
    inputs = None if test.inputs is None else test.inputs.take([(longest, slice(0, shown + 1))])
    part = Series.from_arrays(seen, columns=test.columns).driven_by(inputs)
    (belief,) = filter_recordings(reconstruction, part)
    times = reconstruction.dt * np.arange(1, shown + 1)
    return Withheld(
        column=test.columns[0],
        times=times,
        observed=recording[1 : shown + 1, 0],
        used=~np.isnan(seen[1:, 0]),
        mean=belief.mean[1:, 0],
        std=belief.std[1:, 0],
        start=float(times[gap.start]),
        stop=float(times[gap.stop - 1]),
        truth=None if truth is None else truth[1 : shown + 1, 0],
    )
