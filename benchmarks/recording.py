"""What `kaffee fit` makes of a recording, whole and with gaps: `python -m benchmarks.recording ecg.npy`.

Fits with the settings that the data suggest, certifies on the last fifth, then removes 30 % of the entries at random
and a block of 5 % of the time, fits again and imputes what was removed. Writes `results/recordings/NAME.json`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from kaffee.certification.certificate import certify
from kaffee.data.reading import read_series
from kaffee.data.series import Series
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.pipeline import fit
from kaffee.fitting.stages import Fit
from kaffee.inference.recordings import impute
from kaffee.records import machine, versions

MISSING, BLOCK = 0.3, 0.05
MODELS = ("core", "stochastic", "prior_core", "prior_stochastic", "linear", "floor", "at_rest")
HALF_WIDTH = 1.6448536269514722
OUTPUT = Path(__file__).parent.parent / "results" / "recordings"


def with_gaps(series: Series, seed: int) -> Series:
    """Entries removed at random, and a block in the middle of the longest recording."""
    rng = np.random.default_rng(seed)
    values = [np.where(rng.random(x.shape) < MISSING, np.nan, x) for x in series.recordings]
    longest = int(np.argmax(series.lengths))
    length = round(BLOCK * series.num_steps)
    first = max((series.lengths[longest] - length) // 2, 1)
    values[longest][first : first + length] = np.nan
    return Series(tuple(values), series.columns, series.times, f"{series.name} with gaps")


def imputation(found: Fit, gappy: Series, whole: Series) -> dict[str, Any]:
    """How often what was removed lies inside its 90 % band, and how far off the imputed values are."""
    imputed = impute(found.fitted.reconstruction, gappy)
    inside, errors, blocks = [], [], []
    for truth, seen, filled in zip(whole.recordings, gappy.mask, imputed, strict=True):
        value, std = filled.values, filled.std
        removed = ~seen & ~np.isnan(truth)
        inside.append(np.abs(truth - value)[removed] <= HALF_WIDTH * std[removed])
        errors.append(((truth - value) / found.fitted.reconstruction.scaler.scale)[removed])
        # Rows without any reading: nearly all of them are the block.
        blocks.append(np.broadcast_to(~seen.any(axis=1)[:, None], seen.shape)[removed])
    covered, error, block = (np.concatenate(each) for each in (inside, errors, blocks))
    return {
        "removed": len(covered),
        "coverage_90": float(covered.mean()),
        "coverage_90_scattered": float(covered[~block].mean()),
        "coverage_90_block": float(covered[block].mean()),
        "rmse_scattered": float(np.sqrt(np.mean(error[~block] ** 2))),
        "rmse_block": float(np.sqrt(np.mean(error[block] ** 2))),
    }


def fitted(series: Series, seed: int) -> tuple[Fit, dict[str, Any]]:
    """A fit by suggestion, and what is known of it."""
    began = time.perf_counter()
    found = fit(series, settings_for(series, {"seed": seed}))
    seconds = time.perf_counter() - began
    stages = {"prior": found.prior.reconstruction, "kaffee": found.fitted.reconstruction}
    certificate = certify(stages["kaffee"], found.train, found.test, prior=stages["prior"])
    stored = certificate.to_dict()
    checks = stored["checks"]
    kept = {name: stored[name] for name in ("axes", "verdicts", "scores", "missing")}
    if stored["agreement"] is not None:
        kept["free_runs"] = {k: v for k, v in stored["agreement"].items() if k in MODELS}
    facts = {"fit_seconds": seconds, "all_seconds": time.perf_counter() - began, "training": found.fitted.report}
    facts |= {"checks": checks, "certificate": kept}
    return found, facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    whole = read_series([str(given.path)])
    _, facts = fitted(whole, given.seed)
    print(json.dumps(facts, indent=1), flush=True)
    gappy = with_gaps(whole, given.seed)
    found, gaps = fitted(gappy, given.seed)
    result = {
        "recording": given.path.name,
        "fingerprint": whole.fingerprint,
        "seed": given.seed,
        "whole": facts,
        "with_gaps": {**gaps, "imputation": imputation(found, gappy, whole)},
        "versions": versions(),
        "machine": machine(),
    }
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / f"{given.path.stem}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["with_gaps"]["imputation"], indent=1))


if __name__ == "__main__":
    main()
