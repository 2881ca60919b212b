"""One teacher-forcing update in PyTorch eager: sample, run, differentiate, RAdam with decay."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kaffee.records import machine


class TorchForcing:
    """The AL-RNN with ReLU gates under sparse identity forcing, and its optimiser.

    Args:
        model: The kaffee model whose weights are copied.
        values: Standardised rows, (T, N).
        strengths: s_1, ..., s_L of the forcing; here 0 or 1.
        num_updates: Length of the run over which the learning rate decays from 1e-3 to 1e-5.
    """

    def __init__(self, model: Any, values: np.ndarray, strengths: np.ndarray, *, num_updates: int) -> None:
        import torch

        torch.set_num_threads(machine()["cores"])
        self.torch = torch
        core = model.core
        arrays = {"A": core.A, "W": core.W, "h": core.h, "embedding": model.embedding}
        self.p = {name: torch.tensor(np.asarray(a), requires_grad=True) for name, a in arrays.items()}
        self.split = core.latent_dim - core.num_gates
        self.values = torch.tensor(values)
        self.forced = [bool(s) for s in strengths]
        self.optimiser = torch.optim.RAdam(self.p.values(), lr=1e-3)
        self.decay = torch.optim.lr_scheduler.ExponentialLR(self.optimiser, 1e-2 ** (1 / num_updates))
        self.generator = torch.Generator().manual_seed(0)

    def sample(self, batch_size: int) -> Any:
        """First rows of random windows."""
        last = len(self.values) - len(self.forced)
        return self.torch.randint(last, (batch_size,), generator=self.generator)

    def loss(self, starts: Any) -> Any:
        """Mean squared error of the unforced one-step predictions."""
        torch, p, split = self.torch, self.p, self.split
        x = self.values[torch.arange(len(self.forced) + 1)[:, None] + starts]
        N = x.shape[-1]
        z = torch.cat([x[0], (x[0] @ p["embedding"].T)[:, N:]], 1)
        A, W, h = p["A"], p["W"].T, p["h"]
        predictions = []
        for t, forced in enumerate(self.forced, start=1):
            phi = torch.cat([z[:, :split], torch.relu(z[:, split:])], 1)
            z = torch.addmm(torch.addcmul(h, A, z), phi, W)
            predictions.append(z[:, :N])
            if forced:
                z = torch.cat([x[t], z[:, N:]], 1)
        return torch.nn.functional.mse_loss(torch.stack(predictions), x[1:])

    def update(self, starts: Any) -> Any:
        """One update; the loss before it."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss(starts)
        loss.backward()
        self.optimiser.step()
        self.decay.step()
        return loss.detach()

    def losses(self, batches: Iterator[np.ndarray]) -> np.ndarray:
        """The losses of updates on given windows."""
        return np.array([float(self.update(self.torch.tensor(starts))) for starts in batches])

    def many(self, count: int, batch_size: int) -> Callable[[], None]:
        """A call of `count` updates on random windows."""

        def run() -> None:
            for _ in range(count):
                self.update(self.sample(batch_size))

        return run
