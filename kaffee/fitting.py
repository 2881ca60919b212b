"""From a series to a probabilistic surrogate: standardise, pretrain, initialise the shell, adapt."""

from collections.abc import Callable
from dataclasses import dataclass

from kaffee.checkpoint import Reconstruction
from kaffee.config import to_dict
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.validate import check_observed
from kaffee.errors import KaffeeError
from kaffee.methods import get_method
from kaffee.provenance import versions
from kaffee.settings import FitSettings
from kaffee.ssm import StateSpaceModel
from kaffee.stages import NoStore, Stage, StageStore, run_stage
from kaffee.starting import starting_point
from kaffee.suggestion import settings_for
from kaffee.training.adaptation import adapt, guard_of
from kaffee.training.initialise import initialise_shell
from kaffee.training.loop import Trained, Watcher
from kaffee.training.pretraining import pretrain
from kaffee.training.sampling import training_windows
from kaffee.training.update import initial_state


@dataclass(frozen=True)
class Fit:
    """The two stages of a fit and the data they saw.

    Attributes:
        prior: The deterministic surrogate with its initial, untrained shell.
        fitted: After the probabilistic method.
        train, test: In data units.
    """

    prior: Stage
    fitted: Stage
    train: Series
    test: Series
    settings: FitSettings


def fit(
    series: Series,
    settings: FitSettings | None = None,
    *,
    dt: float | None = None,
    store: StageStore | None = None,
    watcher: Callable[[str, int], Watcher] | None = None,
) -> Fit:
    """Fit a probabilistic surrogate to a series.

    Args:
        settings: By default those that the data suggest (`kaffee.suggestion`).
        dt: Time between rows; by default from the series' time column, else 1.
        store: Where stages are kept; the same call with the same store continues where it stopped.
        watcher: Called with a stage's title and its number of updates; returns who watches its progress.
    """
    if settings is None:
        settings = settings_for(series)
    store = store or NoStore()
    method = get_method(settings.method)
    watch = watcher or (lambda title, total: Watcher())
    keys = settings.keys()
    started = None
    if settings.core.start is not None:
        started = starting_point(settings.core.start, series, settings.test_fraction, key=keys["embedding"])
        series = started.series
    train, test = series.split(1.0 - settings.test_fraction)
    if started is None:
        scaler = Scaler.fit(train)
    else:
        check_observed(train.recordings, train.columns, train.label)
        scaler = started.scaler
    standard = train.standardised(scaler)
    pre, ada = settings.pretraining, settings.adaptation
    for steps in (pre.window, ada.burn_in + ada.scored):
        training_windows(standard, steps + 1)  # too short a series is an error now and not after the first stage
    if started is None:
        core = settings.core.create(series.num_coordinates, key=keys["core"])
        model = StateSpaceModel.create(core, series.num_coordinates, key=keys["embedding"])
    else:
        model = started.model
    blank = Reconstruction(
        model=model,
        scaler=scaler,
        columns=series.columns,
        dt=dt if dt is not None else series.time_step or 1.0,
        provenance={
            "seed": settings.seed,
            "fingerprint": series.fingerprint,
            "train_fingerprint": train.fingerprint,
            "versions": versions(),
            "settings": to_dict(settings),
        },
    )

    def finish_prior(trained: Trained) -> Reconstruction:
        if not trained.completed:
            raise KaffeeError(f"Pretraining: {trained}.")
        prior = initialise_shell(
            trained.model,
            standard,
            residuals=settings.shell.residuals,
            forcing=pre.forcing,
            alpha=settings.shell.alpha,
        )
        return blank.with_model(prior, "prior")

    prior = run_stage(
        "prior",
        store,
        initial_state(model.exact(), ("core", "embedding"), pre.optimiser, pre.schedule.num_updates),
        lambda **kwargs: pretrain(
            model,
            standard,
            pre,
            seed=settings.seed,
            watcher=watch("Pretraining", pre.schedule.num_updates),
            **kwargs,
        ),
        finish_prior,
    )

    start = prior.reconstruction.model
    surrogate = start.replace(core=start.core.surrogate())
    fitted = run_stage(
        settings.method,
        store,
        initial_state(
            surrogate,
            method.trainable_parts,
            ada.optimiser,
            ada.schedule.num_updates,
            guarded=guard_of(standard, method, ada) is not None,
        ),
        lambda **kwargs: adapt(
            start,
            standard,
            method,
            ada,
            seed=settings.seed,
            watcher=watch(f"Adaptation ({settings.method})", ada.schedule.num_updates),
            **kwargs,
        ),
        lambda trained: blank.with_model(trained.model, settings.method),
    )
    return Fit(prior, fitted, train, test, settings)
