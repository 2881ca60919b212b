"""Free runs of 100,000 steps: one trajectory and twenty, with the shell off and on."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.ekf_gradient import INSTALL
from benchmarks.problem import Problem, Size, make_problem
from benchmarks.timing import compared, first_call, interleaved, summary
from kaffee.filtering.rollout import free_run
from kaffee.records import machine

CASES = {"core_1": (1, False), "core_20": (20, False), "shell_1": (1, True), "shell_20": (20, True)}


def build_kaffee(problem: Problem, samples: int, num_steps: int, shell: bool) -> Callable[[], Any]:
    """A call that waits for all states and observations."""
    start = jnp.asarray(np.resize(problem.start, (samples, problem.size.latent)))
    key = jax.random.key(0) if shell else None
    return lambda: jax.block_until_ready(free_run(problem.model, start, num_steps, key=key))


def build_torch(problem: Problem, samples: int, num_steps: int, shell: bool) -> Callable[[], Any]:
    """The same in PyTorch eager: buffers made once, no graph recorded."""
    import torch

    torch.set_num_threads(machine()["cores"])
    p = {name: torch.tensor(value) for name, value in problem.parameters.items()}
    M, N, split = problem.size.latent, problem.size.observed, problem.size.latent - problem.size.gates
    A, Wt, h = p["A"], p["W"].T.contiguous(), p["h"]
    process, observation = p["log_process_std"].exp(), p["log_observation_std"].exp()
    start = torch.tensor(np.resize(problem.start, (samples, M)))

    @torch.inference_mode()
    def run() -> Any:
        states, xs = torch.empty(num_steps, samples, M), torch.empty(num_steps, samples, N)
        z = start
        for t in range(num_steps):
            phi = z.clone()
            phi[:, split:].relu_()
            z = torch.addmm(torch.addcmul(h, A, z), phi, Wt)
            if shell:
                z = torch.addcmul(z, process, torch.randn(samples, M))
                xs[t] = torch.addcmul(z[:, :N], observation, torch.randn(samples, N))
            else:
                xs[t] = z[:, :N]
            states[t] = z
        return states.swapaxes(0, 1), xs.swapaxes(0, 1)

    return run


def measure(
    size: Size, repeats: int, *, num_steps: int = 100_000, torch_steps: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """The section `rollouts`: seconds for `num_steps` steps; PyTorch's are extrapolated from fewer."""
    # Contracting, so that a long free run stays finite.
    problem = make_problem(size, seed=seed, coupling=0.25)
    detail: dict[str, Any] = {}
    result: dict[str, Any] = {"num_steps": num_steps}
    ratios = {}
    for case, (samples, shell) in CASES.items():
        calls = {"kaffee": build_kaffee(problem, samples, num_steps, shell)}
        own, compile_seconds = first_call(calls["kaffee"])
        assert not np.any(own.diverged_at), "The benchmark's core should not diverge."
        try:
            calls["torch"] = build_torch(problem, samples, torch_steps, shell)
        except ImportError as error:
            print(f"torch is left out ({error}); {INSTALL}", file=sys.stderr)
        else:
            if not shell:
                other = calls["torch"]()[0][:, :100].numpy()
                np.testing.assert_allclose(other, own.states[:, :100], rtol=1e-3, atol=1e-4)
        del own
        seconds = interleaved(calls, repeats, warm_up=1)
        if "torch" in seconds:
            seconds["torch"] = seconds["torch"] * (num_steps / torch_steps)
        detail[case] = {name: summary(values) for name, values in seconds.items()}
        detail[case]["kaffee"]["first_call"] = round(compile_seconds, 3)
        if "torch" in seconds:
            detail[case]["torch"]["extrapolated_from_steps"] = torch_steps
        medians = {name: detail[case].get(name, {}).get("median") for name in ("kaffee", "torch")}
        result[case] = {"kaffee": medians["kaffee"], "torch_extrapolated": medians["torch"]}
        ratios[case] = compared(seconds.get("torch"), seconds["kaffee"])
    return {"rollouts": result, "rollouts_detail": detail, "ratios": {"rollouts": ratios}}
