"""One step of DynaMix in NumPy loops, from the equations alone."""

import jax
import numpy as np


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def expert_weights(core, context, z, eps):
    """w, with the context (T, N) read again."""
    g = jax.tree.map(np.asarray, core.gating)
    N = core.num_observed
    q = g.D @ z + g.sigma * eps
    distances, features = [], []
    for t in range(len(context) - 1):
        distances.append(sum(abs(context[t, i] - q[i]) for i in range(N)))
        e = np.array(g.conv_bias)
        for o in range(N):
            for i in range(N):
                for k in range(2):
                    e[o] += g.conv_weight[o, i, k] * context[t + k, i]
        features.append(e)
    a = softmax(-np.array(distances) / abs(g.attention_temperature))
    u = sum(a_t * e_t for a_t, e_t in zip(a, features, strict=True))
    hidden = np.maximum(g.hidden_weight @ np.concatenate([u, z]) + g.hidden_bias, 0.0)
    scores = g.output_weight @ hidden + g.output_bias
    return softmax(-scores / abs(g.expert_temperature))


def mixture(core, w, z):
    """sum_k w_k f_k(z) for given weights."""
    A, W, h = (np.asarray(part) for part in (core.A, core.W, core.h))
    M, P = core.latent_dim, core.num_gates
    phi = np.array([max(z[i], 0.0) if i >= M - P else z[i] for i in range(M)])
    new = np.zeros(M)
    for k in range(core.num_experts):
        new += w[k] * (A[k] * z + W[k] @ phi + h[k])
    return new
