"""Enumeration of every joint choice of several rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kofn.arrays.checks import check_integer
from kofn.arrays.kinds import is_jit_tracing
from kofn.arrays.operations import constant

ENUMERATE_UP_TO = 200_000
"""Choices that are listed by default: a second or so."""


def every_choice(choice: Any, factors: int | None, most: int) -> Any:
    """Return all combinations of the rows' choices over the last `factors` batch axes.

    `factors` and `most` are as for `Discrete.support`.
    """
    if is_jit_tracing():
        raise RuntimeError(
            "torch.jit.trace would record the choices of this batch as constants; call support(), "
            "and functions that enumerate, outside of the traced function"
        )
    batch, dim = choice.batch_shape, getattr(choice, "dim", None)
    factors = _checked_factors(factors, len(batch))
    together = batch[len(batch) - factors :]
    count = math.prod(together)
    _check_few(choice.log_choices() * count, most)
    rows = choice._choices()
    powers = np.array([len(rows) ** i for i in reversed(range(count))], dtype=np.intp)
    index = np.arange(len(rows) ** count)[:, None] // powers % max(len(rows), 1)
    alone = (1,) * (len(batch) - factors)
    every = rows[index].reshape(len(index), *alone, *together, *rows.shape[1:])
    return constant(choice.logits, every if dim is None else np.moveaxis(every, -1, dim))


def _checked_factors(factors: Any, most: int) -> int:
    allowed = f"an integer in [0, {most}], the batch dimensions"
    return most if factors is None else check_integer("factors", factors, allowed, 0, most)


def _check_few(log_count: float, most: Any) -> None:
    allowed = "an integer ≥ 0, how many choices are listed at most"
    check_integer("enumerate_up_to", most, allowed, 0)
    if log_count > math.log(max(most, 0.5)) + 1e-9 * (1 + log_count):
        digits = log_count / math.log(10)
        size = f"{math.exp(log_count):,.0f}" if digits < 15 else f"10^{digits:.0f}"
        raise ValueError(
            f"there are {size} choices to list, more than enumerate_up_to = {most:,}; list fewer "
            "rows together, raise enumerate_up_to, or estimate with samples"
        )
