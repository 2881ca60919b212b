"""The certificate's own test: the true system as a surrogate passes every verdict, however few rows are held out.

    python -m benchmarks.truth [--seeds 5] [--only chua] [--rows 300] [--show]

The core is one Runge-Kutta step of a catalogue system in standardised coordinates, the shell has the true noise: 20 %
on readings, hardly any in the process. Whatever does not pass here is a false alarm. Every seed draws data and noise
again. Writes one file per case to `results/truth/`; the same command continues where it stopped.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from rich.console import Console
from rich.progress import track

from kaffee.certification.certificate import Certificate, CertificationSettings, certify
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import as_core
from kaffee.records import read_json, versions, write_json
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.systems.system import System
from kaffee.tables import Table

OUTPUT = Path(__file__).parent.parent / "results" / "truth"
SYSTEMS = ("lorenz63", "lorenz96", "dadras", "sprott_b", "van_der_pol")
ROWS = {300: 1_200, 2_000: 8_000, 20_000: 40_000}
"""Held-out rows, and those for training before them."""
PROCESS, OBSERVATION = 0.02, 0.2
BURN_IN = 5_000
"""Steps after which even the noise of two seeds has led a slow system elsewhere."""


class StandardFlow(eqx.Module):
    """One step of a system in standardised coordinates; arrays are no constants, so that seeds share a program."""

    system: System
    mean: Float[Array, " M"]
    scale: Float[Array, " M"]

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return (self.system(self.mean + self.scale * z) - self.mean) / self.scale


class TrueCase(NamedTuple):
    """The true system as a surrogate, with training and held-out data."""

    surrogate: Reconstruction
    train: Series
    test: Series


def make_case(name: str, rows: int, seed: int, *, process: float = PROCESS, train_rows: int | None = None) -> TrueCase:
    """Simulate a system with 20 % noise on its readings, and make a surrogate of its flow and noise."""
    system = get_system(name)
    num_train = train_rows or ROWS[rows]
    found = simulate(
        system,
        num_train + rows,
        seed=seed,
        process_noise=process,
        observation_noise=OBSERVATION,
        burn_in=BURN_IN,
        num_train_steps=num_train,
    )
    train, test = np.split(found.observations, [num_train])
    scaler = Scaler(train.mean(axis=0), train.std(axis=0))
    mean, scale = (jnp.asarray(values, jnp.float32) for values in (scaler.mean, scaler.scale))
    assert found.reference_scale is not None
    shell = Shell.from_std(
        process * np.sqrt(system.dt) * found.reference_scale / scaler.scale,
        OBSERVATION * found.observation_scale / scaler.scale,
    )
    model = StateSpaceModel(
        as_core(StandardFlow(system, mean, scale), system.dim),
        shell,
        Projection(system.dim, system.dim),
        jnp.eye(system.dim),
    )
    columns = tuple(f"x{i}" for i in range(1, system.dim + 1))
    # A row without readings in front: the filter then begins with the spread of the data, and not at a noisy reading.
    test = np.concatenate([np.full((1, system.dim), np.nan), test])
    return TrueCase(
        Reconstruction(model, scaler, columns, system.dt, "kaffee"),
        Series.from_arrays(train, columns=columns, times=system.dt * np.arange(num_train), name="train"),
        Series.from_arrays(test, columns=columns, times=system.dt * np.arange(len(test)), name="test"),
    )


def certify_case(case: TrueCase, seed: int) -> Certificate:
    """Certify as `kaffee fit` does."""
    return certify(case.surrogate, case.train, case.test, settings=CertificationSettings(seed=seed))


def measure(name: str, rows: int, seed: int) -> dict[str, Any]:
    """Certify one case and keep its verdicts."""
    began = time.perf_counter()
    certificate = certify_case(make_case(name, rows, seed), seed)
    return {
        "system": name,
        "rows": rows,
        "seed": seed,
        "verdicts": {v.name: {"status": v.status, "sentence": v.sentence} for v in certificate.verdicts},
        "seconds": round(time.perf_counter() - began, 1),
        "versions": versions(),
    }


def table() -> Table:
    """Count the verdicts of all results, and name what did not pass."""
    records = [read_json(path, "result") for path in sorted(OUTPUT.glob("*.json"))]
    rows = []
    for name in SYSTEMS:
        for length in ROWS:
            own = [record["verdicts"] for record in records if (record["system"], record["rows"]) == (name, length)]
            if own:
                statuses = [(check, v["status"]) for verdicts in own for check, v in verdicts.items()]
                alarms = [f"{check} {status}" for check, status in statuses if status in ("warn", "fail")]
                unknown = sum(status == "unknown" for _, status in statuses)
                rows.append([name, str(length), str(len(own)), str(len(alarms)), str(unknown), ", ".join(alarms)])
    columns = ("system", "held-out rows", "seeds", "alarms", "unknown", "which")
    return Table("The true system as a surrogate", columns, rows, note="Seven verdicts for each seed.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=SYSTEMS, help="one system")
    parser.add_argument("--rows", type=int, choices=tuple(ROWS), help="one number of held-out rows")
    parser.add_argument("--show", action="store_true", help="only show what there is")
    options = parser.parse_args()
    console = Console()
    lengths, names = [options.rows] if options.rows else list(ROWS), [options.only] if options.only else list(SYSTEMS)
    cases = [(n, r, s) for r in lengths for n in names for s in range(options.seeds)]
    for name, rows, seed in track([] if options.show else cases, "Certifying", console=Console(stderr=True)):
        path = OUTPUT / f"{name}_{rows}_{seed}.json"
        if not path.exists():
            write_json(path, measure(name, rows, seed))
    console.print(table())


if __name__ == "__main__":
    main()
