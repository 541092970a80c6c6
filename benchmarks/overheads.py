"""Times that are paid once or per call: compilation, and answers for unknown keywords.

    python benchmarks/overheads.py

CPU seconds of this process's calls, which do not depend on what else the machine does. The docs
quote them for two x86-64 cores.
"""

from __future__ import annotations

import timeit
from functools import wraps
from typing import Any, Never


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


def unknown_keywords() -> None:
    """Time two ways for a function to explain an unknown keyword: a parameter, and a wrapper."""

    def plain(x: float, *, dim: int = -1, temperature: float = 1.0) -> float:
        return x

    def function(x: float, *, dim: int = -1, temperature: float = 1.0, **others: Never) -> float:
        if others:
            raise TypeError("see docs/names.md")
        return x

    @wraps(plain)
    def wrapped(*arguments: Any, **keywords: Any) -> float:
        try:
            return plain(*arguments, **keywords)
        except TypeError as error:
            raise TypeError(f"{error}; see docs/names.md") from None

    times = [
        min(timeit.repeat(lambda f=f: f(1.0, dim=0, temperature=2.0), number=10_000, repeat=50))
        for f in (plain, function, wrapped)
    ]
    for name, each in zip(("a parameter", "a wrapper"), times[1:], strict=True):
        print(f"{name} for unknown keywords: {(each - times[0]) * 1e5:.0f} ns per call")


def main() -> None:
    compilation_of_samples()
    unknown_keywords()


if __name__ == "__main__":
    main()
