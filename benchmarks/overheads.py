"""Times that are paid once or per call: compilation, and a wrapper for unknown keywords.

    python benchmarks/overheads.py

CPU seconds of this process's calls, which do not depend on what else the machine does. The docs
quote them for two x86-64 cores.
"""

from __future__ import annotations

import timeit
from functools import wraps
from typing import Any


def compilation_of_samples() -> None:
    """Compile a JAX sample of `KSubset` for rows of 1,000."""
    import time

    import jax
    import numpy as np

    from kofn import KSubset

    def draw(logits: Any, key: Any) -> Any:
        return KSubset(logits, 100).sample((), key)

    logits = jax.numpy.asarray(np.random.default_rng(0).normal(size=(4, 1000)), "float32")
    began = time.process_time()
    jax.jit(draw).lower(logits, jax.random.key(0)).compile()
    print(
        f"\nKSubset.sample on JAX, rows of 1,000: compiled in {time.process_time() - began:.1f} s"
    )


def wrapper() -> None:
    """Time a function with keywords, and a wrapper that could explain an unknown keyword."""

    def function(x: float, *, dim: int = -1, temperature: float = 1.0) -> float:
        return x

    @wraps(function)
    def wrapped(*arguments: Any, **keywords: Any) -> float:
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            raise TypeError(f"{error}; see docs/names.md") from None

    times = [
        min(timeit.repeat(lambda f=f: f(1.0, dim=0, temperature=2.0), number=100_000)) / 0.1
        for f in (function, wrapped)
    ]
    print(f"\na wrapper for unknown keywords: {times[1] - times[0]:.2f} µs per call")


def main() -> None:
    compilation_of_samples()
    wrapper()


if __name__ == "__main__":
    main()
