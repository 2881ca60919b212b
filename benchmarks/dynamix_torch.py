"""DynaMix in PyTorch eager, from the equations: a free run, and one in-context update of KAFFEE."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kaffee.records import machine


class TorchDynaMix:
    """The core; what does not depend on the state, such as the features of the context, is computed once.

        q = D z + sigma eps,   a = softmax_t(-||c_t - q||_1 / |tau_1|),   u = sum_t a_t (C_0 c_t + C_1 c_{t+1} + b)
        w = softmax(-(M_2 relu(M_1 [u; z] + b_1) + b_2) / |tau_2|),       z' = sum_k w_k (A_k z + W_k phi(z) + h_k)

    Args:
        model: The kaffee model whose weights are copied.
        context: Standardised rows, (T, N).
    """

    def __init__(self, model: Any, context: np.ndarray) -> None:
        import torch

        torch.set_num_threads(machine()["cores"])
        self.torch = torch
        core = model.core
        self.A, self.W, self.h = (torch.tensor(np.asarray(a)) for a in (core.A, core.W, core.h))
        # phi(z) = max(z, floor) and D(z) = (z > floor): the last P coordinates have floor 0, the others none.
        self.floor = torch.full((core.latent_dim,), -torch.inf)
        self.floor[core.latent_dim - core.num_gates :] = 0.0
        g = {name: torch.tensor(np.asarray(getattr(core.gating, name))) for name in core.gating.shapes(1, 1, 1, 1)}
        self.D, self.sigma = g["D"].T.contiguous(), g["sigma"]
        self.hidden_weight, self.hidden_bias = g["hidden_weight"].T.contiguous(), g["hidden_bias"]
        sharpness = -1.0 / g["expert_temperature"].abs()
        self.output_weight, self.output_bias = sharpness * g["output_weight"].T, sharpness * g["output_bias"]
        self.closeness = float(-1.0 / g["attention_temperature"].abs())
        self.values = torch.tensor(context)
        self.frames = self.values[:-1].T.contiguous()
        self.features = torch.nn.functional.conv1d(self.values.T[None], g["conv_weight"], g["conv_bias"])[0]

    def weights(self, z: Any, perturbation: Any) -> Any:
        """w for states (S, M) and sigma eps (S, N)."""
        torch = self.torch
        q = torch.addmm(perturbation, z, self.D)
        distance = (self.frames - q[:, :, None]).abs_().sum(1)
        a = torch.softmax(distance.mul_(self.closeness), 1)
        u = torch.nn.functional.linear(a, self.features)
        hidden = torch.addmm(self.hidden_bias, torch.cat([u, z], 1), self.hidden_weight).relu_()
        return torch.softmax(torch.addmm(self.output_bias, hidden, self.output_weight), 1)

    def free_run(self, start: np.ndarray, num_steps: int, *, noisy: bool = True) -> Callable[[], Any]:
        """A call that runs one trajectory and returns its states (T, M); all its noise is drawn at once."""
        torch = self.torch
        (E, M), first = self.A.shape, torch.tensor(start)
        W = self.W.reshape(E * M, M).T.contiguous()

        @torch.inference_mode()
        def run() -> Any:
            noise = torch.randn(num_steps, len(self.sigma)) * (self.sigma if noisy else 0.0)
            z, states = first, []
            for perturbation in noise.split(1):
                w = self.weights(z, perturbation)
                f = torch.addmm(torch.addcmul(self.h, self.A, z).view(1, -1), torch.maximum(z, self.floor), W)
                z = w @ f.view(E, M)
                states.append(z)
            return torch.cat(states)

        return run


class TorchUpdate:
    """One update of KAFFEE on windows of the context: sample, filter, differentiate, clip, Adam.

        J = sum_k w_k (diag(A_k) + W_k D(z)),   F(z) = J z + sum_k w_k h_k   (as phi(z) = D(z) z),   w held constant

    Args:
        model, context: As for `TorchDynaMix`.
        settings: `kaffee.training.adaptation.Adaptation`.
    """

    def __init__(self, model: Any, context: np.ndarray, settings: Any) -> None:
        self.core = TorchDynaMix(model, context)
        self.torch = torch = self.core.torch
        self.embedding = torch.tensor(np.asarray(model.embedding))
        self.log_process_std = torch.tensor(np.asarray(model.shell.log_process_std))
        self.log_observation_std = torch.tensor(np.asarray(model.shell.log_observation_std))
        self.burn_in, self.steps = settings.burn_in, settings.burn_in + settings.scored
        self.windows, self.clip_norm = settings.schedule.batch_size, settings.optimiser.clip_norm
        core = self.core
        self.parameters = [core.A, core.W, core.h, self.log_process_std, self.log_observation_std]
        for parameter in self.parameters:
            parameter.requires_grad_()
        self.optimiser = torch.optim.Adam(self.parameters, lr=settings.optimiser.learning_rate)

    def sample(self) -> tuple[Any, Any]:
        """First rows of random windows and the noise of their gates."""
        starts = self.torch.randint(len(self.core.values) - self.steps, (self.windows,))
        return starts, self.torch.randn(self.steps, self.windows, len(self.core.sigma))

    def loss(self, starts: Any, noise: Any) -> Any:
        """Mean innovation NLL per scored entry, for all windows at once; noise is (T, W, N)."""
        torch, core = self.torch, self.core
        x = core.values[torch.arange(self.steps + 1)[:, None] + starts]
        (W, N), (E, M) = x.shape[1:], core.A.shape
        mean = torch.cat([x[0], (x[0] @ self.embedding.T)[:, N:]], 1)
        Gamma = torch.diag(torch.exp(2.0 * self.log_process_std)).expand(W, M, M)
        Lambda = torch.diag(torch.exp(2.0 * self.log_observation_std))
        stacked = torch.cat([core.W.reshape(E, -1), core.A, core.h], 1)
        P, total = Gamma, torch.zeros(())
        for t, perturbation in enumerate(core.sigma * noise):
            with torch.no_grad():
                w, d = core.weights(mean, perturbation), (mean > core.floor).to(mean.dtype)
            mixed, diagonal, offset = (w @ stacked).split([M * M, M, M], 1)
            J = torch.addcmul(torch.diag_embed(diagonal), mixed.view(W, M, M), d[:, None, :])
            mean = torch.baddbmm(offset[:, :, None], J, mean[:, :, None])[:, :, 0]
            P = torch.baddbmm(Gamma, torch.bmm(J, P), J.mT)
            L = torch.linalg.cholesky(P[:, :N, :N] + Lambda)
            v = (x[t + 1] - mean[:, :N])[:, :, None]
            white = torch.linalg.solve_triangular(L, torch.cat([P[:, :N], v], 2), upper=False)
            C, y = white[:, :, :M], white[:, :, M:]
            if t >= self.burn_in:
                log_det = torch.log(torch.diagonal(L, dim1=1, dim2=2)).sum()
                total = total + log_det + 0.5 * (y * y).sum()
            mean = mean + torch.bmm(C.mT, y)[:, :, 0]
            P = torch.baddbmm(P, C.mT, C, alpha=-1.0)
        return total / ((self.steps - self.burn_in) * W * N) + 0.5 * np.log(2.0 * np.pi)

    def update(self, starts: Any, noise: Any) -> Any:
        """One update; the loss before it."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss(starts, noise)
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.optimiser.step()
        return loss.detach()

    def losses(self, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """The losses of updates on given windows with given noise."""
        tensor = self.torch.tensor
        return np.array([float(self.update(tensor(starts), tensor(noise))) for starts, noise in batches])

    def many(self, count: int) -> Callable[[], None]:
        """A call of `count` updates on random windows."""

        def run() -> None:
            for _ in range(count):
                self.update(*self.sample())

        return run
