"""A fair batched EKF in PyTorch eager: all windows in one tensor, one Cholesky per step, autograd."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.problem import PARAMETERS, Problem
from kaffee.records import machine

TRANSPORTS = ("dense", "structured")


def build(problem: Problem, transport: str = "dense") -> Callable[[], Any]:
    """A call that computes loss and gradient; raises ImportError without torch.

    Args:
        transport: "dense" builds J and multiplies with it; "structured" uses J X = a X + W (d X).
    """
    import torch

    torch.set_num_threads(machine()["cores"])
    M, N = problem.size.latent, problem.size.observed
    split = M - problem.size.gates
    p = {name: torch.tensor(problem.parameters[name], requires_grad=True) for name in PARAMETERS}
    start = torch.tensor(problem.start)
    xs = list(torch.tensor(np.ascontiguousarray(problem.x[:, 1:].swapaxes(0, 1))))
    A, W, h = p["A"], p["W"], p["h"]
    ones = torch.ones(len(start), split)

    def gated(z: Any) -> tuple[Any, Any]:
        """phi(z) with the surrogate's derivative, and that derivative."""
        gate = z[:, split:]
        sigma = torch.sigmoid(1.7 * gate)
        surrogate = sigma * gate
        value = surrogate + (torch.relu(gate) - surrogate).detach()
        slope = sigma + 1.7 * surrogate * (1.0 - sigma)
        return torch.cat([z[:, :split], value], 1), torch.cat([ones, slope], 1)

    def dense(P: Any, d: Any, Gamma: Any) -> Any:
        J = torch.diag(A) + W * d[:, None, :]
        return torch.baddbmm(Gamma, torch.bmm(J, P), J.mT)

    def structured(P: Any, d: Any, Gamma: Any) -> Any:
        X = torch.addcmul((P * d[:, None, :]) @ W.T, P, A)
        Y = X.mT.contiguous()
        return torch.addcmul((Y * d[:, None, :]) @ W.T, Y, A) + Gamma

    predict = {"dense": dense, "structured": structured}[transport]

    def loss() -> Any:
        Gamma = torch.diag(torch.exp(2.0 * p["log_process_std"])).expand(len(start), M, M)
        Lambda = torch.diag(torch.exp(2.0 * p["log_observation_std"]))
        mean, P, total = start, Gamma, 0.0
        for x in xs:
            phi, d = gated(mean)
            mean = torch.addmm(h + A * mean, phi, W.T)
            P = predict(P, d, Gamma)
            L = torch.linalg.cholesky(P[:, :N, :N] + Lambda)
            v = (x - mean[:, :N])[:, :, None]
            white = torch.linalg.solve_triangular(L, torch.cat([P[:, :N], v], 2), upper=False)
            C, y = white[:, :, :M], white[:, :, M:]
            log_det = torch.log(torch.diagonal(L, dim1=1, dim2=2)).sum()
            total = total + log_det + 0.5 * (y * y).sum()
            mean = mean + torch.bmm(C.mT, y)[:, :, 0]
            P = torch.baddbmm(P, C.mT, C, alpha=-1.0)
        return total / problem.x[:, 1:].size + 0.5 * np.log(2.0 * np.pi)

    def run() -> Any:
        value = loss()
        return value.detach(), torch.autograd.grad(value, list(p.values()))

    return run


def unpack(result: Any) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients by name."""
    value, gradients = result
    return float(value), {name: g.numpy() for name, g in zip(PARAMETERS, gradients, strict=True)}
