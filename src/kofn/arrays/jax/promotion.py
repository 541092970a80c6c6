"""kofn's own array code under JAX's usual rules of promotion, whatever the caller has set.

`jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` are for the caller's
code. kofn mixes numbers per row and per entry, and counts with numbers.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax

_AS_IT_IS = contextlib.nullcontext()


def usual() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX promotes dtypes and ranks as it does by default."""
    config: Any = jax.config
    strict = config.jax_numpy_dtype_promotion != "standard"
    if not strict and config.jax_numpy_rank_promotion == "allow":
        return _AS_IT_IS
    both = contextlib.ExitStack()
    both.enter_context(jax.numpy_dtype_promotion("standard"))
    both.enter_context(jax.numpy_rank_promotion("allow"))
    return both
