"""Pin a fit by the command line, the tables that its model makes of a recording with gaps, and a followed stream."""

import json
import re

import equinox as eqx
import jax
import numpy as np
import pytest

import kaffee as library

from .pinned import EXPECTED, TOLERANCE, check, read, table, words

FULL_LOOKS = True  # what the guard sees is pinned, too
# Of machines and of when it was done, or different in the last bit.
ABOUT_HERE = ("versions", "machine", "arrays", "sha256")
UNSURE = ("spread", "value")  # of a verdict: a ratio of two small correlations
# A core that is hardly trained runs into a fixed point: no chaos, so that other processors come to the same numbers.
SMALL = """
    rung=alrnn core.latent_dim=8 pretraining.window=10 pretraining.schedule.num_updates=200
    pretraining.schedule.batch_size=8
    pretraining.schedule.report_every=100 adaptation.scored=6 adaptation.burn_in=2
    adaptation.schedule.num_updates=10 adaptation.schedule.batch_size=4
"""
# Members start along eigenvectors, whose signs are the processor's choice: only many members come to the same.
LOOSE = {"forecast": 0.4}
COMMANDS = {
    "filter": ("GAPS",),
    "smooth": ("GAPS", "--latent", "--quantiles", "0.1,0.5"),
    "impute": ("GAPS",),
    "forecast": ("GAPS", "--steps", 8, "--members", 4000),
    "run-free": ("--steps", 30, "--runs", 2, "--seed", 1),
}


@pytest.fixture(scope="module")
def fitted(kaffee, place, recording):
    """Fit and certify once; returns (folder of the run, result of the command)."""
    settings = [part for setting in SMALL.split() for part in ("--set", setting)]
    return place / "run", kaffee("fit", recording, "-o", place / "run", *settings)


@pytest.fixture(scope="module")
def lines(kaffee, place):
    """Simulate what the model has not seen; returns the lines of the file, the header first."""
    kaffee("simulate", "lorenz63", "-o", place / "new.csv", "--steps", 60, "--observation-noise", 0.1, "--seed", 4)
    return (place / "new.csv").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def gaps(place, lines):
    """Leave out every fourth reading of the first column, six whole rows, and two rows with their times."""
    rows = [line.split(",") for line in lines]
    for row in rows[2::4]:
        row[1] = ""
    for row in rows[31:37]:
        row[1:] = ["", "", ""]
    (place / "gaps.csv").write_text("".join(",".join(row) + "\n" for row in rows[:21] + rows[23:]))
    return place / "gaps.csv"


def test_the_simulation_is_the_same(simulated):
    pinned = np.loadtxt(EXPECTED / "train.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(simulated[:500], pinned[:500], atol=2e-3)  # then chaos takes over


def test_the_run_and_its_models_state_the_same_settings(fitted, place):
    folder, run = fitted[0], read(fitted[0] / "run.json")
    run["data"]["source"]["paths"] = [path.replace(str(place), "PLACE") for path in run["data"]["source"]["paths"]]
    models, rungs = {}, {}
    for name in ("prior", "kaffee"):
        model = {key: value for key, value in read(folder / name / "model.json").items() if key not in ABOUT_HERE}
        assert model["provenance"].pop("settings") == run["settings"]
        del model["provenance"]["versions"], model["scaler"]
        rungs[name] = model["provenance"].pop("rungs", {})  # measured, not set
        models[name] = model | {"losses": read(folder / name / "training.json")["num_losses"]}
    run = {key: value for key, value in run.items() if key not in ABOUT_HERE}
    # Names of array files hold the hash of their content, which differs between machines.
    files = sorted(re.sub("-[0-9a-f]{12}", "", path.name) for path in folder.iterdir())
    check("fit_settings", {"files": files, "run": run, "models": models}, tolerance=0)
    check("fit_rungs", rungs)


def test_the_models_load_with_the_same_weights(fitted):
    found = {}
    for name in ("prior", "kaffee"):
        model = library.load(fitted[0] / name)
        leaves = jax.tree.leaves(eqx.filter(model.model, eqx.is_array))
        sums = sorted([list(leaf.shape), float(np.abs(leaf).sum())] for leaf in leaves)
        found[name] = {"sums": sums, "mean": model.scaler.mean.tolist(), "scale": model.scaler.scale.tolist()}
    check("fit_weights", found)


def test_checks_and_certificate_find_the_same(fitted):
    check("fit_checks", read(fitted[0] / "checks.json"))
    certificate = read(fitted[0] / "certificate.json")
    residuals, scores, runs = (certificate[part] for part in ("residuals", "scores", "agreement"))
    kinds = ("core", "stochastic", "prior_core", "prior_stochastic", "linear")
    found = {
        "parts": list(certificate),
        "axes": certificate["axes"],
        "verdicts": [
            {k: v for k, v in each.items() if k != "sentence" and (each["name"], k) != UNSURE}
            for each in certificate["verdicts"]
        ],
        "residuals": {k: residuals[k] for k in ("num_entries", "nll", "nll_standard", "bias", "nis", "ks", "coverage")},
        "horizons": scores["horizons"],
        "one_step": {name: each[0] for name, each in scores["methods"].items()},
        "skill": scores["skill"][0],
        "tangents": {k: certificate["tangents"][k] for k in ("method", "pooled", "within", "r2", "num_growths")},
        "agreement": {kind: {k: runs[kind][k] for k in ("typical", "diverged", "first", "trapped")} for kind in kinds},
        "exponents": runs["exponents"]["values"],
        "about": certificate["about"],
        "data": certificate["conclusion"]["made_of"]["data"],
    }
    check("fit_certificate", found)


def test_the_same_words_are_printed(fitted, place):
    printed = {name: words(getattr(fitted[1], name), PLACE=place) for name in ("stdout", "stderr")}
    check("fit_words", printed, tolerance=0)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_is_the_same(kaffee, fitted, gaps, place, command):
    output = place / f"{command}.csv"
    options = [gaps if option == "GAPS" else option for option in COMMANDS[command]]
    facts = json.loads(kaffee(command, fitted[0], *options, "-o", output, "--json").stdout)
    assert facts.pop("output") == str(output)
    check(f"table_{command}", {"facts": facts} | table(output, every=7), tolerance=LOOSE.get(command, TOLERANCE))


def test_a_followed_stream_is_answered_the_same(kaffee, fitted, lines):
    """Lines with times: two rows are left out, one line is garbage, one is broken JSON, one has a gap."""
    gap = ",".join([*lines[14].split(",")[:3], "nan"])
    content = [*lines[:8], "garbage", *lines[10:14], '{"x1": 1.0', gap, ""]
    result = kaffee("filter", fitted[0], "--follow", "--json", content="\n".join(content), exit_code=3)
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    check("follow", {"answers": answers, "said": result.stderr.splitlines()})


def test_a_stream_without_times_goes_on_from_its_state(kaffee, fitted, lines, place):
    rows = [line.split(",", 1)[1] for line in lines[1:13]]
    rows[3] = "1,2"
    rows[7] = "50,-80,90"  # an outlier
    options = ("--follow", "--gate", 0.999, "--quantiles", "0.05", "--state", place / "state")
    first = kaffee("filter", fitted[0], *options, content="\n".join(rows[:6]), exit_code=3)
    second = kaffee("filter", fitted[0], *options, content="\n".join(rows[6:]))
    answers = [json.loads(line) for line in (first.stdout + second.stdout).splitlines()]
    check("follow_state", {"answers": answers, "said": [first.stderr, second.stderr]})
