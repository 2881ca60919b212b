"""Value and gradient of the innovation NLL: kaffee, kaffee without its parts, and its peers."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks import ekf_dynamax, ekf_kaffee, ekf_plain_jax, ekf_torch, matmul
from benchmarks.problem import Problem, Size, make_problem
from benchmarks.timing import compared, first_call, interleaved, summary

# kaffee regularises S by 1e-5 of its mean variance, which the peers leave out; the rest is float32 rounding.
TOLERANCE = 2e-4
TARGETS = {"dynamax": 4.5, "autodiff": 2.2, "torch": 1.8}
MATMUL_TARGET = 1.6
INSTALL = "install the peers with: python -m pip install -e '.[bench]'"


Result = tuple[float, dict[str, np.ndarray]]


class Peer(NamedTuple):
    """How to build a call that waits for (loss, gradient), and how to read what it returns."""

    build: Callable[[Problem], Callable[[], Any]]
    unpack: Callable[[Any], Result]


PEERS = {
    "kaffee": Peer(ekf_kaffee.build, ekf_kaffee.unpack),
    "autodiff": Peer(partial(ekf_kaffee.build, variant="autodiff"), ekf_kaffee.unpack),
    "autodiff_dense": Peer(partial(ekf_kaffee.build, variant="autodiff_dense"), ekf_kaffee.unpack),
    "plain_jax": Peer(ekf_plain_jax.build, ekf_plain_jax.unpack),
    "dynamax": Peer(ekf_dynamax.build, ekf_dynamax.unpack),
    "torch_dense": Peer(partial(ekf_torch.build, transport="dense"), ekf_torch.unpack),
    "torch_structured": Peer(partial(ekf_torch.build, transport="structured"), ekf_torch.unpack),
}


def disagreement(found: Result, reference: Result) -> dict[str, float]:
    """The error of the loss, and of each gradient relative to its norm."""
    errors = {"loss": abs(found[0] - reference[0])}
    for name, gradient in reference[1].items():
        error = np.linalg.norm(found[1][name] - gradient) / np.linalg.norm(gradient)
        errors[name] = float(f"{error:.2g}")
    return {**errors, "loss": float(f"{errors['loss']:.2g}")}


def build_peers(problem: Problem, reference: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    """The calls of all peers that are installed, checked against a reference; and what was found.

    Raises:
        AssertionError: A peer computes something else.
    """
    calls, detail = {}, {}
    for name, peer in PEERS.items():
        try:
            calls[name] = peer.build(problem)
        except ImportError as error:
            print(f"{name} is left out ({error}); {INSTALL}", file=sys.stderr)
            continue
        result, seconds = first_call(calls[name])
        errors = disagreement(peer.unpack(result), reference)
        assert max(errors.values()) < TOLERANCE, f"{name} disagrees with the reference: {errors}"
        detail[name] = {"first_call": round(seconds, 3), "error": errors}
    return calls, detail


def measure(size: Size, repeats: int, seed: int = 0) -> dict[str, Any]:
    """The sections `ekf_gradient`, its details and its ratios."""
    problem = make_problem(size, seed=seed)
    calls, detail = build_peers(problem, ekf_plain_jax.reference(problem))
    for kind, name in (("batched", "matmul"), ("shared", "matmul_shared")):
        calls[name] = matmul.build(problem, kind)
        detail[name] = {"first_call": round(first_call(calls[name])[1], 3)}
    seconds = interleaved(calls, repeats)
    variants = [name for name in ("torch_dense", "torch_structured") if name in seconds]
    if variants:
        # The better of two fair ways to write it stands for PyTorch.
        seconds["torch"] = min((seconds[name] for name in variants), key=np.median)
    for name, values in seconds.items():
        detail.setdefault(name, {}).update(summary(values))
    for name in ("matmul", "matmul_shared"):
        detail[name]["gflops"] = round(matmul.flops(problem) / np.median(seconds[name]) * 1e-9, 1)
    ratios = {
        name: compared(seconds.get(name), seconds["kaffee"], TARGETS.get(name))
        for name in ("dynamax", "autodiff", "autodiff_dense", "plain_jax", "torch")
    }
    ratios["matmul"] = compared(seconds["kaffee"], seconds["matmul"], MATMUL_TARGET, at_most=True)
    wanted = ("kaffee", "autodiff", "dynamax", "torch", "matmul", "matmul_shared", "autodiff_dense", "plain_jax")
    return {
        "ekf_gradient": {name: detail[name]["median"] if name in detail else None for name in wanted},
        "ekf_gradient_detail": detail,
        "ratios": {"ekf_gradient": ratios},
    }
