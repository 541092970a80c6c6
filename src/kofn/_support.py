"""Every choice of several rows together, for enumeration."""

from __future__ import annotations

import itertools

import numpy as np

from kofn._array import Array, constant, is_jit_tracing
from kofn._validate import check_integer


def every_choice(
    rows: np.ndarray, logits: Array, batch: tuple[int, ...], dim: int | None, factors: int | None
) -> Array:
    """Each of `rows`, (choices, n), with each for every other of the last `factors` batch axes.

    Args:
        rows: the choices of one row; (choices,) where a choice is one number.
        logits: what the answer is an array of the kind, dtype and device of.
        batch: the batch shape.
        dim: where the n entries are, None where there is no such dimension.
        factors: as for `KSubset.support`.
    """
    if is_jit_tracing():
        raise RuntimeError(
            "torch.jit.trace would record the choices of this batch as constants; call support(), "
            "and what enumerates, outside of what is traced"
        )
    if factors is None:
        factors = len(batch)
    allowed = f"an integer in [0, {len(batch)}], the batch dimensions"
    if not 0 <= check_integer("factors", factors, allowed) <= len(batch):
        raise ValueError(f"factors must be {allowed}; got {factors}")
    together = batch[len(batch) - factors :]
    count = int(np.prod(together, dtype=np.int64))
    index = np.array(list(itertools.product(range(len(rows)), repeat=count)), dtype=np.intp)
    alone = (1,) * (len(batch) - factors)
    every = rows[index].reshape(len(index), *alone, *together, *rows.shape[1:])
    return constant(logits, every if dim is None else np.moveaxis(every, -1, dim))
