"""Results as plain values that JSON can hold."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from kaffee.certification.forecasts import Fan, Scores, default_horizons, forecast_fan, score_forecasts
from kaffee.certification.free_runs import MIN_ROWS, Agreement, agreement
from kaffee.certification.innovations import (
    MIN_ENTRIES,
    FilterPass,
    Residuals,
    choose_starts,
    filter_pass,
    residual_checks,
    warm_up_of,
)
from kaffee.certification.linear import fit_linear
from kaffee.certification.spread import SpreadGrowth, spread_growth
from kaffee.certification.tangents import TangentProxy, tangent_proxy
from kaffee.certification.verdicts import Status, Verdict, judge, worst
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import complete_rows
from kaffee.data.series import Series
from kaffee.errors import ConfigError, KaffeeError
from kaffee.inference.matching import match_series

EXACT = 200
"""Numbers in an array that is written to the last digit; larger ones are there for figures, to six digits."""


def plain(value: Any) -> Any:
    """Dictionaries, lists, strings and numbers; None for numbers that are not finite.

    >>> plain({"a": np.array([1.0, np.nan]), "b": np.int64(2)})
    {'a': [1.0, None], 'b': 2}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray) and value.size > EXACT:
        short = [float(f"{x:.6g}") for x in value.ravel()]
        return plain(np.reshape(short, value.shape).tolist())
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value


# Whether held-out data are enough for a certificate, said before the work is done.


def shortage(test: Series) -> str:
    """A sentence about the checks that these held-out data are too few for; empty if there are none."""
    warm_up = warm_up_of(test)
    readings = sum(int((~np.isnan(values[warm_up:])).sum()) for values in test.recordings)
    rows = len(complete_rows(test))
    needs = []
    if readings < MIN_ENTRIES:
        after = f"after {warm_up} row{'s' * (warm_up > 1)} of warm-up"
        needs.append(f"one-step predictions need {MIN_ENTRIES} readings, of which there are {readings} {after}")
    if rows < MIN_ROWS:
        needs.append(f"free runs need {MIN_ROWS} rows without gaps, of which there are {rows}")
    if not needs:
        return ""
    held_out = f"{test.num_steps} held-out row{'s are' if test.num_steps > 1 else ' is'}"
    return f"{held_out} too few for the certificate: {'; '.join(needs)}. Record more, or hold out more by test_fraction"


# Certification without truth: everything that held-out data can say about a surrogate, and a verdict on each axis.


AXES = {1: "local probabilistic", 2: "stochastic free run", 3: "deterministic core"}
T = TypeVar("T")


@dataclass(frozen=True)
class CertificationSettings:
    """How much is computed.

    Attributes:
        num_starts: Held-out rows that forecasts start from.
        members: Of a forecast ensemble.
        horizons: Steps ahead; None: 1 and up to two decorrelation times of the training data.
        divergence_runs, divergence_steps: Long free runs that are only watched.
        seed: Of everything random.
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


@dataclass(frozen=True)
class Certificate:
    """What is known of a surrogate from data alone; a part that could not be had is None, with the reason in `missing`.

    Attributes:
        verdicts: One for each check.
        axes: The worst verdict of each axis.
        residuals, scores, spread, tangents: Axis 1.
        agreement: Axes 2 and 3.
        fan: One forecast, as a picture.
        missing: Why a part is None, by its name.
        about: Method, time step, data and settings.
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

    @property
    def axes(self) -> dict[int, Status]:
        """The worst status of every axis; "unknown" where nothing is known."""
        return {axis: worst([v.status for v in self.verdicts if v.axis == axis]) for axis in AXES}

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite become None."""
        axes = {str(axis): {"name": AXES[axis], "status": status} for axis, status in self.axes.items()}
        return {"axes": axes, **plain(self)}


def certify(
    reconstruction: Reconstruction,
    train: Series,
    test: Series,
    *,
    prior: Reconstruction | None = None,
    settings: CertificationSettings | None = None,
    any_step: bool = False,
    watch: Callable[[str], object] | None = None,
) -> Certificate:
    """Certify a surrogate on held-out data, without knowing the true system.

    Args:
        train: What it was trained on, for baselines and tangents; in data units, gaps and several recordings are fine.
        test: Held-out data, likewise.
        prior: The deterministic surrogate that it was made of, to be compared with.
        any_step: Accept a time step that is not the model's.
        watch: Told the name of each stage as it begins.
    """
    settings = settings or CertificationSettings()
    train, test = (match_series(reconstruction, series, any_step=any_step) for series in (train, test))
    missing: dict[str, str] = {}

    def part(name: str, title: str, make: Callable[[], T]) -> T | None:
        """A part, or the reason why there is none; only what kaffee raises on purpose is a reason."""
        if watch is not None:
            watch(title)
        try:
            return make()
        except KaffeeError as error:
            missing[name] = str(error)
            return None

    def passed(which: Reconstruction) -> FilterPass:
        return filter_pass(which, test, choose_starts(test, settings.num_starts))

    def needed(run: FilterPass | None) -> FilterPass:
        if run is None:
            raise KaffeeError(missing["filter"])
        return run

    seed = settings.seed
    tau = train.decorrelation_time
    horizons = settings.horizons or default_horizons(train, test)
    standard = train.standardised(reconstruction.scaler).recordings
    run = part("filter", "filtering the held-out data", lambda: passed(reconstruction))
    linear = part("linear", "fitting the linear baseline", lambda: fit_linear(reconstruction, train, seed=seed))
    beside = None if run is None or linear is None else passed(linear)
    residuals = part("residuals", "innovations", lambda: residual_checks(needed(run)))
    scores = part(
        "scores",
        "forecasts",
        lambda: score_forecasts(needed(run), beside, standard, horizons, members=settings.members, seed=seed),
    )
    spread = part("spread", "withheld observations", lambda: spread_growth(needed(run), horizons, seed=seed))
    tangents = part("tangents", "tangents from data", lambda: tangent_proxy(needed(run), standard))
    free = part(
        "agreement",
        "free runs",
        lambda: agreement(
            reconstruction,
            train,
            test,
            prior=prior,
            linear=linear,
            runs=settings.divergence_runs,
            steps=settings.divergence_steps,
            seed=seed,
        ),
    )
    fan = None if run is None else forecast_fan(run, max(horizons), settings.members, seed=seed)
    parts = {"residuals": residuals, "scores": scores, "spread": spread, "tangents": tangents, "agreement": free}
    verdicts = judge(parts, missing, horizon=tau)
    about = {
        "method": reconstruction.method,
        "dt": reconstruction.dt,
        "columns": list(test.columns),
        "decorrelation_time": tau * reconstruction.dt,
        "train": {"steps": train.num_steps, "recordings": train.num_recordings, "fingerprint": train.fingerprint},
        "test": {"steps": test.num_steps, "recordings": test.num_recordings, "fingerprint": test.fingerprint},
        "settings": asdict(settings),
    }
    return Certificate(verdicts, residuals, scores, spread, tangents, free, fan, missing, about)
