"""Answers by sums of functions of weights, each declared once, as a `Sum`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn.adapters import route
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, is_torch, namespace
from kofn.arrays.typing import ArrayT
from kofn.kernels.cpu.rows.passes import Sum as Sum
from kofn.operations.sums import SUMS, terms_in

LEAST, SHORTEST = 4_096, 32
"""Entries, and entries of a row, from which on compiled code is faster than array code."""


def answer(of: Sum, p: ArrayT, *numbers: float, beside: tuple[Array, ...] = ()) -> ArrayT:
    """Return the outer function of the sums of weights, rows along the last dimension; without an
    outer function the sum. `beside` goes to that function, too.
    """
    if isinstance(p, np.ndarray):
        entries = p.size
    elif is_torch(p) and of_torch.state.is_plain(p):
        entries = p.numel()
    else:
        entries = -1  # traced, or nothing that kernels know
    sums: Any
    if entries >= LEAST and p.shape[-1] >= SHORTEST:
        sums = route.answer(SUMS, p, settings=(of, numbers))
        sums = (sums,) if of.count == 1 else sums
    else:
        xp: Any = namespace(p)
        terms = of.terms if entries < 0 else terms_in(of, xp)
        sums = [xp.sum(term, axis=-1) for term in terms(p, *numbers)]
    return sums[0] if of.outer is None else of.outer(*sums, *numbers, *beside)
