"""The threshold compiled by XLA once per shape and link, its loop inside."""

from __future__ import annotations

from functools import partial

import jax

from kofn.links import by_id
from kofn.threshold import solve


@partial(jax.jit, static_argnums=4)
def threshold(
    x: jax.Array, k: jax.Array, temperature: jax.Array, alpha: jax.Array | None, link: int
) -> tuple[jax.Array, jax.Array]:
    return solve(x, k, temperature, by_id(link, alpha))


def integral_ends(link: int) -> tuple[float, float, float]:
    with jax.ensure_compile_time_eval():
        # float32, JAX's default, holds G(z) − z to 4 digits at this z.
        return by_id(link, None).integral_ends(jax.numpy.asarray(2.0**12))
