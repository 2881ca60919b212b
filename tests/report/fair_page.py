"""A page as a reader would get it, after a fit to Lorenz-63."""

import numpy as np
from nasty_page import verdict

from kaffee.report.interactive.attractor import Attractor
from kaffee.report.interactive.calibration import coverage, estimates, pit_histogram
from kaffee.report.interactive.fan import Forecast, fan
from kaffee.report.interactive.marks import Band, Curve, Points, Span
from kaffee.report.interactive.plot import Axis, Panel, Plot
from kaffee.report.page import Report, Section
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.tables import Table


def fair_page() -> Report:
    """What a report of a fit to Lorenz-63 looks like; the 'model' is the same system with other noise."""
    system = get_system("lorenz63")
    rng = np.random.default_rng(1)
    clean = simulate(system, 12_000)
    model = simulate(system, 12_000, seed=3, process_noise=0.1)
    noisy = clean.states + 0.1 * clean.states.std(axis=0) * rng.normal(size=clean.states.shape)
    columns, dt = ("x", "y", "z"), clean.dt
    prior = 0.75 * model.states + 0.25 * model.states.mean(axis=0)
    runs = {"data": noisy[:6000], "prior": prior[:6000], "kaffee": model.states[:6000]}
    scale = clean.states.std(axis=0)
    figures = {
        "Attractor": [
            Attractor(
                "Free runs",
                "The first 6000 steps of the data and of free runs of both models; drag to turn all of them.",
                runs,
                columns,
            )
        ],
        "Forecast": [_fans(system, clean, scale, columns, rng)],
        "Filtering": [_filtering(clean, noisy, columns, rng)],
        "Calibration": _calibration(columns, rng),
        "Spectra": [_spectra({"data": clean.states, "prior": prior, "kaffee": model.states}, columns, dt)],
        "Lyapunov exponents": [
            estimates(
                "Lyapunov spectrum",
                "Exponents of the true system and of both models; the bars are two standard errors.",
                ["λ₁", "λ₂", "λ₃"],
                {"truth": [0.906, 0.0, -14.57], "prior": [1.31, -0.12, -11.2], "kaffee": [0.89, 0.003, -14.1]},
                {"prior": [0.05, 0.03, 0.4], "kaffee": [0.024, 0.01, 0.3]},
                y=Axis("exponent", "1/time"),
            )
        ],
        "Training": [_losses(rng)],
    }
    table = Table(
        "Held-out data and free run",
        ("model", "nll", "cover 90", "d_stsp", "d_h", "lambda_1", "diverged"),
        [
            ["prior", 0.913, 0.71, 0.412, 0.154, 1.31, "never"],
            ["kaffee", -0.482, 0.893, 0.061, 0.041, 0.89, "never"],
            ["truth again", None, None, 0.055, 0.037, 0.906, "never"],
        ],
        note="nll and share inside the 90 % interval: one-step predictions.",
    )
    verdicts = [
        verdict(
            "1 local probabilistic",
            "One-step skill",
            "NLL gain over the prior",
            "pass",
            "1.39 nats",
            "Gain above two standard errors (0.06).",
            "One-step predictions are clearly better than the prior's.",
        ),
        verdict(
            "1 local probabilistic",
            "Calibration",
            "coverage of 90 % intervals",
            "pass",
            "89.3 % ± 0.9 %",
            "90 % within two standard errors.",
            "Intervals hold what they promise.",
        ),
        verdict(
            "1 local probabilistic",
            "Forecast skill",
            "useful until",
            "warn",
            "3.4 Lyapunov times",
            "At least 4 Lyapunov times pass, 2 warn.",
            "Forecasts lose their skill a little early.",
        ),
        verdict(
            "2 stochastic free run",
            "Long-term geometry",
            "d_stsp",
            "pass",
            "0.061 (floor 0.055)",
            "At most twice the floor of a perfect model.",
            "Free runs visit the same states as the data, equally often.",
        ),
        verdict(
            "3 deterministic core",
            "Chaos",
            "λ₂",
            "fail",
            "0.031 ± 0.010",
            "Zero within two standard errors.",
            "The flow's neutral direction is slightly expanding.",
        ),
        verdict(
            "1 local probabilistic",
            "Grounding",
            "g_tan",
            "unknown",
            "–",
            "Needs the true Jacobians.",
            "No true system is known for this recording.",
        ),
    ]
    texts = {"Forecast": "Forecasts of states that were not used for fitting, each from its own start."}
    sections = [
        Section("Result", "Pretraining: 2000 updates, 0 skipped. Adaptation: 1000 updates, 0 skipped.", tables=[table])
    ]
    sections += [Section(title, texts.get(title, ""), interactive=made) for title, made in figures.items()]
    facts = {
        "command": "kaffee fit lorenz63 --method kaffee --seed 0 -o run",
        "seed": 0,
        "data": "sha256:6f1c0e9b54a2",
        "kaffee": "1.0.0",
        "jax": "0.8.1",
        "numpy": "2.3.4",
    }
    return Report(
        "kaffee: lorenz63",
        sections,
        subtitle="Method kaffee, 6000 steps of 0.01, observation noise 10 %",
        verdicts=verdicts,
        provenance=facts,
    )


def _fans(system, clean, scale, columns, rng):
    starts, horizon, past = (7000, 8500, 10_000), 250, 100
    forecasts = []
    for start in starts:
        begin = clean.states[start]
        members = [
            simulate(
                system,
                horizon + 1,
                seed=i + 1,
                process_noise=0.05,
                burn_in=0,
                initial_state=tuple(begin + 0.03 * scale * rng.normal(size=3)),
            ).states[1:]
            for i in range(40)
        ]
        times = clean.dt * np.arange(start + 1, start + 1 + horizon)
        forecasts.append(
            Forecast.from_samples(
                f"t = {clean.dt * start:g}",
                times,
                np.stack(members),
                truth=clean.states[start + 1 : start + 1 + horizon],
                history_times=clean.dt * np.arange(start - past, start + 1),
                history=clean.states[start - past : start + 1],
            )
        )
    return fan(
        "Forecast fan",
        "Half, four fifths and 95 % of the forecast distribution, with what happened.",
        forecasts,
        columns,
        time=Axis("time", "time units"),
    )


def _filtering(clean, noisy, columns, rng):
    t = clean.times[:400]
    gap = (t > 1.6) & (t < 2.4)
    panels = {}
    for i, name in enumerate(columns):
        std = np.where(gap, 0.4 * np.exp(1.5 * (t - 1.6)), 0.4)
        mean = clean.states[:400, i] + 0.4 * np.sin(3 * t) + np.where(gap, std * np.sin(4 * t), 0.0)
        panels[name] = Panel(
            [
                Span("no observations", 1.6, 2.4),
                Band("90 %", t, mean - 1.645 * std, mean + 1.645 * std, "kaffee"),
                Curve("mean", t, mean, "kaffee", "solid"),
                Curve("truth", t, clean.states[:400, i], dash="dashed"),
                Points("observation", t[~gap], noisy[:400, i][~gap], size=1.8),
            ],
            y=Axis(name),
        )
    return Plot(
        "Belief while observations are withheld",
        "The band grows as fast as the core's Jacobians say, and closes with the next observation.",
        panels,
        Axis("time", "time units"),
        Axis(""),
        choices=("coordinate",),
    )


def _calibration(columns, rng):
    counts = {name: np.histogram(rng.beta(1 + 0.1 * i, 1, 4000), 20, (0, 1))[0] for i, name in enumerate(columns)}
    levels = np.linspace(0.05, 0.95, 19)
    inside = {name: {"prior": levels**1.6, "kaffee": levels + 0.02 * np.sin(6 * levels)} for name in columns}
    width = 2 * np.sqrt(levels * (1 - levels) / 400)
    bands = dict.fromkeys(columns, (levels - width, levels + width))
    return [
        pit_histogram("PIT histogram", "Bars inside the grey band are what a calibrated forecast gives.", counts),
        coverage("Coverage", "Below the diagonal the model is too sure of itself.", levels, inside, bands=bands),
    ]


def _spectra(runs, columns, dt):
    panels = {}
    for i, name in enumerate(columns):
        marks = []
        for label, states in runs.items():
            pieces = states[: 12 * 1000, i].reshape(-1, 1000)
            pieces = (pieces - pieces.mean()) * np.hanning(1000)
            power = (np.abs(np.fft.rfft(pieces, axis=1)) ** 2).mean(axis=0)
            marks.append(Curve(label, np.fft.rfftfreq(1000, dt)[1:], power[1:] / power.sum()))
        panels[name] = marks
    return Plot(
        "Power spectra",
        "Of free runs and of the data.",
        panels,
        Axis("frequency", "1/time unit", log=True),
        Axis("share of power", log=True),
        choices=("coordinate",),
    )


def _losses(rng):
    panels = {}
    for name, n in (("pretraining", 2000), ("adaptation", 1000)):
        loss = 2.0 * np.exp(-np.arange(n) / 300) + 0.02 + 0.01 * rng.exponential(size=n)
        panels[name] = Panel(
            [Curve("loss", np.arange(1, n + 1), loss, "prior" if name == "pretraining" else "kaffee")],
            y=Axis("squared error" if name == "pretraining" else "NLL per entry", log=True),
        )
    return Plot("Loss", "Loss of each update.", panels, Axis("update"), Axis("loss"), choices=("stage",))
