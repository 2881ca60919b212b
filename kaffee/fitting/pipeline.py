"""The one pipeline: pretrain a prior and give it a shell (`train_prior`), adapt it by a method of the paper.

`fit` runs both stages on a series; `adapt_foundation_model` and `kaffee.paper` run them with other settings.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.windows import training_windows
from kaffee.errors import KaffeeError
from kaffee.filtering.likelihood import get_method
from kaffee.fitting.config import to_dict
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.initial_core import find_start
from kaffee.fitting.ladder import Climbing, Reading, choose, choose_adapted, prepare
from kaffee.fitting.learned_maps import Maps, find_maps
from kaffee.fitting.settings import IN_CONTEXT, UNTRAINED_RUNGS, FitSettings, ShellSettings
from kaffee.fitting.stages import Fit, Stage, StageStore, Watching, keep_stage, run_stage
from kaffee.fitting.transfer import load_shared, start_transfer
from kaffee.foundation import context as contexts
from kaffee.foundation.incontext import read_context
from kaffee.foundation.weights import licence_terms
from kaffee.model.core import Core
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import jsonable, versions
from kaffee.training.adaptation import Adaptation, View, adapt, build_guard
from kaffee.training.loop import Schedule, Trained, Watcher
from kaffee.training.pretraining import Pretraining, initialise_shell, pretrain
from kaffee.training.selection import HELD_BACK, HeldBack, Judge, hold_back, scale_noise
from kaffee.training.update import initial_state

UNTRAINED = Pretraining(window=1, schedule=Schedule(num_updates=0))
"""For a core that is given: no updates, and rows are enough that make one step."""


def train_prior(
    start: Reconstruction,
    rows: Series,
    pretraining: Pretraining,
    shell: ShellSettings,
    *,
    seed: int,
    held_back: Series | None = None,
    maps: Maps | None = None,
    store: StageStore | None = None,
    watcher: Watching = None,
) -> Stage:
    """Pretrain a model on standardised rows by teacher forcing (appendix C.1); initialise its shell (appendix B.2).

    Updates that predict `held_back` rows worse are rolled back. Where maps are learned the rows are scores, and the
    model is lifted to the channels in the end.
    """
    model = start.model

    def finish(trained: Trained) -> Reconstruction:
        if not trained.completed:
            raise KaffeeError(f"Pretraining: {trained}.")
        # A core that is given keeps its tangent; pretraining makes it the exact one.
        final = model if pretraining == UNTRAINED else trained.model
        options = {**vars(shell), "forcing": pretraining.forcing}
        made = initialise_shell(final, rows, **options)
        return start.with_model(made if maps is None else maps.lift(made), "prior")

    return run_stage(
        "prior",
        store,
        initial_state(
            model.exact(),
            ("core", "embedding"),
            pretraining.optimiser,
            pretraining.schedule.num_updates,
            guarded=held_back is not None,
        ),
        partial(pretrain, model, rows, pretraining, seed=seed, held_back=held_back),
        finish,
        watcher,
    )


def adapt_prior(
    prior: Reconstruction,
    rows: Series,
    method: str,
    adaptation: Adaptation,
    *,
    seed: int,
    context: Float[np.ndarray, "T N"] | None = None,
    climbing: Climbing | Reading | None = None,
    unadapted: Reconstruction | None = None,
    calibrating: Judge | None = None,
    maps: Maps | None = None,
    core: Core | None = None,
    store: StageStore | None = None,
    watcher: Watching = None,
    **options: Any,
) -> Stage:
    """Make a prior probabilistic on standardised rows by a method of the paper (algorithm 1).

    Args:
        context: Standardised rows that a foundation model reads when it is adapted; None: it has read all.
        climbing: The linear model, or that in context, and the held-back rows that choose between it and the trained
            one.
        unadapted: What is kept if the model in context is chosen.
        calibrating: Forecasts over several steps that scale the noise where nothing is chosen.
        maps: The start of maps that are learned as well; what judges then looks at scores.
        core: The core to keep, as it was given.
        options: For `kaffee.adapt`.
    """
    chosen, start = get_method(method), prior.model
    score = None if climbing is None else lambda model: climbing.judge.score(model).mean
    parts, view = chosen.trainable_parts, None
    if maps is not None:
        parts, view = (*parts, "observation"), View(maps.scores, maps.view)

    def finish(trained: Trained) -> Reconstruction:
        model = trained.model if context is None else contexts.read_all(trained.model, context)
        model = model if core is None else model.replace(core=core)
        if climbing is None:
            model = model if calibrating is None else calibrating.calibrate(model)[0]
            return prior.with_model(model, method).with_filter(adaptation.filter)
        if isinstance(climbing, Reading):
            better, rungs = choose_adapted(climbing, model)
            made = prior.with_model(better, method) if better is not None else unadapted or prior
        elif maps is not None:
            _, rungs = choose(climbing, maps.view(model))
            # Scores tell how errors of the core grow; the noise of each channel was learned from its own readings.
            better = rungs["chosen"] != "linear"
            model = scale_noise(model, rungs["scales"][0], 0.0) if better else maps.lift(climbing.linear.model)
            made = prior.with_model(model, method)
        else:
            model, rungs = choose(climbing, model)
            made = prior.with_model(model, method)
        made = made.with_filter(adaptation.filter)
        return replace(made, provenance={**made.provenance, "rungs": jsonable(rungs)})

    return run_stage(
        method,
        store,
        initial_state(
            start.replace(core=start.core.surrogate()),
            parts,
            adaptation.optimiser,
            adaptation.schedule.num_updates,
            guarded=build_guard(rows, chosen, adaptation, score, view) is not None,
        ),
        partial(adapt, start, rows, chosen, adaptation, seed=seed, score=score, parts=parts, view=view, **options),
        finish,
        watcher,
    )


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
        settings: By default those that the data suggest.
        dt: Time between rows; by default from the series' time column, else 1.
        store: Keeps the stages; the same call with the same store continues where it stopped.
        watcher: Called with a stage's title and its number of updates; returns who watches its progress.
    """
    settings = settings_for(series) if settings is None else settings
    watch = watcher or (lambda title, total: Watcher())
    if settings.observation is not None and settings.core.start is not None:
        return _fit_transfer(series, settings, dt, store or StageStore(), watch)
    maps = find_maps(settings, series.split(1.0 - settings.test_fraction)[0])
    start = find_start(settings, series, maps)
    series, pretraining, adaptation = start.series, settings.pretraining, settings.adaptation
    train, test = series.split(1.0 - settings.test_fraction)
    held = None if settings.rung == "scratch" else hold_back(start.rows)
    if settings.rung not in UNTRAINED_RUNGS:
        trained_on = start.rows if held is None else held.part
        for steps in (pretraining.window, adaptation.burn_in + adaptation.scored):
            training_windows(trained_on, steps + 1)  # too short a series is an error now and not after the first stage
    blank = _begin(start.model, start.scaler, series, train, settings, dt, maps)
    if settings.core.start == IN_CONTEXT:
        return _fit_in_context(blank, train, test, settings, store or StageStore(), watch)
    seed, rows, climbing, linear = settings.seed, start.rows, None, None
    if held is not None:
        store = store or StageStore()
        done = [store.finished(name) for name in ("prior", settings.method, "linear")]
        if done[0] is not None and done[1] is not None:
            return Fit(done[0], done[1], train, test, settings, done[2])
        watching = watch("Linear model", 1)
        watching.compiling("filters")
        climbing = prepare(rows, held, settings)
        watching.advanced(1, climbing.linear.scored.mean, 0)
        report = climbing.linear.structure.describe()
        best = climbing.linear.model if maps is None else maps.lift(climbing.linear.model)
        linear = keep_stage(store, "linear", blank.with_model(best, "kaffee"), report)
        if climbing.start is None:
            kept, rungs = choose(climbing)
            best = best if rungs["chosen"] == "linear" else kept
            prior = keep_stage(store, "prior", blank.with_model(best, "prior"), report)
            made = linear.reconstruction.with_model(best, settings.method)
            made = replace(made, provenance={**made.provenance, "rungs": jsonable(rungs)})
            fitted = keep_stage(store, settings.method, made, report)
            return Fit(prior, fitted, train, test, settings, linear)
        blank, rows = blank.with_model(climbing.start, "prior"), held.part
    prior = train_prior(
        blank,
        rows,
        pretraining,
        settings.shell,
        seed=seed,
        held_back=None if held is None else held.blocks,
        maps=maps,
        store=store,
        watcher=partial(watch, "Pretraining", pretraining.schedule.num_updates),
    )
    if maps is not None:
        whole = hold_back(maps.rows, num_coordinates=maps.number)
        maps, rows = replace(maps, scores=rows), maps.rows if held is None else whole.part
    fitted = adapt_prior(
        blank.with_model(prior.model, "prior"),
        rows,
        settings.method,
        adaptation,
        seed=seed,
        context=start.context,
        climbing=climbing,
        calibrating=_calibrate_by(rows, settings) if held is None and start.context is None and maps is None else None,
        maps=maps,
        store=store,
        watcher=partial(watch, f"Adaptation ({settings.method})", adaptation.schedule.num_updates),
    )
    return Fit(prior, fitted, train, test, settings, linear)


def _begin(
    model: StateSpaceModel,
    scaler: Scaler,
    series: Series,
    train: Series,
    settings: FitSettings,
    dt: float | None,
    maps: Maps | None,
) -> Reconstruction:
    """Put what is known before training around a model."""
    return Reconstruction(
        model=model,
        scaler=scaler,
        columns=series.columns,
        inputs=() if series.inputs is None else series.inputs.columns,
        dt=dt if dt is not None else series.time_step or 1.0,
        provenance={
            "seed": settings.seed,
            "fingerprint": series.fingerprint,
            "train_fingerprint": train.fingerprint,
            "versions": versions(),
            "settings": to_dict(settings),
            **({} if series.frequency is None else {"frequency": series.frequency}),
            **licence_terms(model.core),
        },
        groups=() if maps is None else maps.names,
        scalers=() if maps is None or not maps.names else maps.scalers,
    )


def _calibrate_by(rows: Series, settings: FitSettings) -> Judge | None:
    """Judge a fit that holds nothing back by forecasts of the ends of its rows; None if it is not to be calibrated.

    These rows were trained on, but only one step at a time: noise that makes one step likely stands for errors of the
    model as well, which are alike in successive steps and add up faster than white noise.
    """
    wanted = settings.adaptation.calibration and settings.method in ("kaffee", "frozen_core")
    wanted = wanted and settings.readings is None  # its forecasts are Gaussian
    return Judge(hold_back(rows)) if wanted and max(rows.lengths) * HELD_BACK >= 1.0 else None


def _fit_transfer(
    series: Series,
    settings: FitSettings,
    dt: float | None,
    store: StageStore,
    watch: Callable[[str, int], Watcher],
) -> Fit:
    """Fit map, noise and units of new recordings to a core that is known and stays as it is, bit for bit."""
    known = load_shared(str(settings.core.start))
    train, test = series.split(1.0 - settings.test_fraction)
    maps, model = start_transfer(known, settings, train)
    blank = _begin(model, maps.scalers[0], series, train, settings, dt or known.dt, maps)
    blank = replace(blank, filter_name=known.filter_name)
    prior = store.finished("prior") or keep_stage(store, "prior", blank, "the core is given, its map aligned")
    fitted = adapt_prior(
        blank.with_model(prior.model, "prior"),
        maps.rows,
        settings.method,
        settings.adaptation,
        seed=settings.seed,
        maps=maps,
        store=store,
        watcher=partial(watch, "Transfer of the core", settings.adaptation.schedule.num_updates),
        core=known.model.core,
    )
    return Fit(prior, fitted, train, test, settings)


def _fit_in_context(
    blank: Reconstruction,
    train: Series,
    test: Series,
    settings: FitSettings,
    store: StageStore,
    watch: Callable[[str, int], Watcher],
) -> Fit:
    """Adapt a model that has read the training rows, `blank`, and keep the result where it forecasts better.

    What a model has read it predicts better than what comes after. One that has not read the rows held back is
    adapted, and these rows judge it; if they prefer it unadapted, the model that has read all rows is kept.
    """
    method, adaptation = settings.method, settings.adaptation
    prior = store.finished("prior")
    if prior is None:
        report = f"{train.num_steps} rows were read in context"
        prior = keep_stage(store, "prior", blank.with_model(blank.model, "prior"), report)
    fitted = store.finished(method)
    if fitted is None:
        held = hold_back(train)
        read = read_context(held.part)
        part, blocks = (series.standardised(read.scaler) for series in (held.part, held.blocks))
        fitted = adapt_prior(
            replace(blank, model=read.model, scaler=read.scaler),
            part,
            method,
            adaptation,
            seed=settings.seed,
            climbing=Reading(Judge(HeldBack(part, blocks, held.leads)), read.model),
            unadapted=blank.with_model(blank.model, method),
            store=store,
            watcher=partial(watch, f"Adaptation ({method})", adaptation.schedule.num_updates),
        )
    return Fit(prior, fitted, train, test, settings)


def adapt_foundation_model(
    model: contexts.ContextModel,
    observations: Float[np.ndarray, "T N"],
    *,
    method: str = "kaffee",
    dt: float = 1.0,
    lyapunov_exponent: float | None = None,
    columns: tuple[str, ...] = (),
    seed: int = 0,
    settings: Adaptation = contexts.CALIBRATED,
    held_out: float = contexts.HELD_OUT,
    **options: Any,
) -> Reconstruction:
    """Condition a foundation model on noisy observations and make it a filter by a few updates on them (appendix C.5).

        surrogate = adapt_foundation_model(kaffee.from_pretrained(), observations, dt=0.02)

    Args:
        observations: The context in data units, without gaps.
        method: A row of the paper: "kaffee", "frozen_core" for the shell alone, or one of the controls.
        lyapunov_exponent: Per unit of time: windows are one Lyapunov time long; 128 steps, or all, if not known.
        settings, held_out: By default the last quarter of the rows is kept from the model while it is adapted on them,
            and the shell moves fast: its bands then hold for what comes next. `IN_CONTEXT` and 0 are the paper's,
            whose bands are too narrow (docs/reproduction.md). In the end the model reads all rows.
        options: For `kaffee.adapt`, such as `watcher`.
    """
    window = contexts.lyapunov_window(lyapunov_exponent, dt)
    prior, rows = contexts.condition(model, observations, dt=dt, columns=columns, held_out=held_out)
    settings = contexts.shorten_window(replace(settings, scored=window), len(observations), held_out)
    prior = replace(
        prior,
        provenance={
            "seed": seed,
            "method": method,
            "scored": settings.scored,
            "held_out": held_out,
            "num_updates": settings.schedule.num_updates,
            "fingerprint": rows.fingerprint,
            **licence_terms(model),
        },
    )
    context = prior.scaler.transform(np.asarray(observations, np.float64)) if held_out else None
    return adapt_prior(prior, rows, method, settings, seed=seed, context=context, **options).reconstruction
