"""A mixture of experts in flax.nnx with kofn's gates, on a task whose right expert is known.

    pip install ".[flax]"
    python examples/moe_jax.py              # some ten seconds

The task is that of examples/moe.py. Printed are the squared error divided by the variance, how many
experts are in use, and the share of inputs at their group's expert. Every expert computes every
input, which is simple and enough here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from scipy.optimize import linear_sum_assignment

from kofn import topk_gates

GROUPS, WIDTH = 8, 16
STEPS, BATCH, RATE = 400, 256, 1e-2


def route(logits: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Return weights and indices of k experts; the gradient reaches the logits of all experts."""
    gates, experts = topk_gates(logits, k)
    share = jnp.take_along_axis(jax.nn.softmax(logits), experts, -1)
    return share * (1 + gates - jax.lax.stop_gradient(gates)), experts


class Mixture(nnx.Module):
    def __init__(self, k: int, rngs: nnx.Rngs) -> None:
        self.k = k
        self.router = nnx.Linear(WIDTH, GROUPS, use_bias=False, rngs=rngs)
        start = jax.random.normal(rngs.params(), (GROUPS, WIDTH, WIDTH)) / WIDTH**0.5
        self.experts = nnx.Param(start)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights, chosen = route(self.router(x), self.k)
        answers = jnp.einsum("bi,eij->bej", x, self.experts[...])
        found = jnp.take_along_axis(answers, chosen[..., None], 1)
        return (weights[..., None] * found).sum(1), chosen


@nnx.jit
def step(net: Mixture, optimizer: nnx.Optimizer, x: jax.Array, wanted: jax.Array) -> tuple:
    def loss(net: Mixture) -> tuple[jax.Array, jax.Array]:
        answer, chosen = net(x)
        return jnp.square(answer - wanted).mean() / wanted.var(), chosen

    (error, chosen), slopes = nnx.value_and_grad(loss, has_aux=True)(net)
    optimizer.update(net, slopes)
    return error, chosen


def train(steps: int, seed: int = 0) -> tuple[float, int, float]:
    """Return the last error, how many experts are in use, and how often the right one is."""
    rngs = nnx.Rngs(seed)
    net = Mixture(1, rngs)
    optimizer = nnx.Optimizer(net, optax.adam(RATE), wrt=nnx.Param)
    maps = jax.random.normal(rngs.task(), (GROUPS, WIDTH, WIDTH)) / WIDTH**0.5
    centres = jax.random.normal(rngs.task(), (GROUPS, WIDTH))
    centres *= 2 / jnp.linalg.norm(centres, axis=-1, keepdims=True)
    uses = jnp.zeros((GROUPS, GROUPS))
    for _ in range(steps):
        group = jax.random.randint(rngs.task(), (BATCH,), 0, GROUPS)
        x = centres[group] + jax.random.normal(rngs.task(), (BATCH, WIDTH)) / 2
        error, chosen = step(net, optimizer, x, jnp.einsum("bi,bij->bj", x, maps[group]))
        uses = 0.9 * uses.at[group, chosen[:, 0]].add(1)
    share = uses[:, linear_sum_assignment(-uses)[1]] / uses.sum()
    return float(error), int((uses.sum(0) > 0.01 * uses.sum()).sum()), float(share.trace())


if __name__ == "__main__":
    error, used, right = train(STEPS)
    print(f"error {error:.3f}, {used} of {GROUPS} experts in use, right expert {right:.2f}")
