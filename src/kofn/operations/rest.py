"""log Σ e^{x/T} over the entries of rows that are not named, and no array of the size of rows.

test_losses_distillation.py holds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.arrays.kinds import Array, compute_dtype, deleted
from kofn.arrays.typing import Tensor
from kofn.formulas import named
from kofn.operations.operation import Operation
from kofn.operations.signatures import TEMPERED
from kofn.operations.topk import AT_ONCE
from kofn.rows.given import Given

MANY = 1 << 24
"""Entries of a block on a GPU, where each operation waits for the one before."""


def _blocks(given: Given, entries: Tensor, *per_row: Any) -> Iterator[Any]:
    """Yield scores of some rows, in the compute dtype and −∞ where they do not count, what there is
    per row, and how many rows were before.
    """
    x: Any = given.scores
    n, wide = x.shape[-1], compute_dtype(x)
    rows, named_ = x.reshape(-1, n), entries.reshape(-1, entries.shape[-1])
    numbers: list[Any] = [one if type(one) is float else one.reshape(-1, 1) for one in per_row]
    step = max(1, (AT_ONCE if x.is_cpu else MANY) // (n + 1))
    for at in range(0, rows.shape[0], step):
        part = rows[at : at + step]
        block = part.new_full((part.shape[0], n + 1), -math.inf, dtype=wide)
        block[:, :n] = part.masked_fill(deleted(part), -math.inf)
        block.scatter_(-1, named_[at : at + step], -math.inf)
        yield at, block[:, :n], [e if type(e) is float else e[at : at + step] for e in numbers]


def _chooser(x: Any) -> Any:
    """Return compiled code for scores, or None."""
    usual = of_torch.state.is_plain(x) and x.is_cpu and x.itemsize > 2
    return kernels.named() if usual and kernels.wanted() else None


def _rest(_: object, given: Given, entries: Tensor, base: Tensor) -> Tensor:
    chooser = _chooser(given.scores)
    if chooser is not None:
        answer: Tensor = chooser.rest(given.scores, entries, base, given.temperature)
        return answer
    answer = base.new_empty(base.shape)
    flat = answer.view(-1, 1)
    for at, x, (own, t) in _blocks(given, entries, base, given.temperature):
        top = x.amax(-1, keepdim=True)
        none = top == -math.inf
        top = top.masked_fill(none, 0.0)
        total = x.sub_(top).div_(t).exp_().sum(-1, keepdim=True).log()
        part = (top - own) / t + total
        flat[at : at + len(part)] = part.masked_fill(none, -math.inf)
    return answer


def _rest_back(
    _: object, given: Given, cotangent: Tensor, entries: Tensor, base: Tensor, rest: Tensor
) -> tuple[Tensor, Tensor]:
    x: Any = given.scores
    chooser = _chooser(x)
    if chooser is not None:
        own = entries, base, given.temperature, rest, cotangent
        in_x, in_t = chooser.rest_gradients(x, *own)
        return in_x, in_x.new_zeros(cotangent.shape) if in_t is None else in_t
    slopes, t = x.new_empty(x.shape), given.temperature
    flat, parts = slopes.view(-1, x.shape[-1]), []
    for at, block, (v, own, whole, each) in _blocks(given, entries, cotangent, base, rest, t):
        z = (block - own).div_(each)
        p = (z - whole.masked_fill(whole == -math.inf, 0.0)).exp_().mul_(v / each)
        flat[at : at + len(p)] = p
        if type(t) is not float:
            parts.append(-(p * z.masked_fill_(p == 0, 0.0)).sum(-1))
    if type(t) is float:
        return slopes, cotangent.new_zeros(cotangent.shape)
    return slopes, _joined(parts, cotangent)


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    """Return numbers per row of blocks, with the shape of others."""
    import torch

    return torch.cat(parts).reshape(like.shape) if parts else like.new_zeros(like.shape)


def plain(given: Given, entries: Array, base: Array) -> Array:
    x, _, temperature, *_ = given.per_row()
    return named.rest(x, temperature, base, entries)


REST = Operation(
    name="softmax_rest",
    takes="x n, entries i, base r, t #",
    gives="rest r",
    of=TEMPERED,
    kernel=_rest,
    functions="topk_kl",
    lacks={"JAX": "array code", "segments": "no function for segments"},
    plain=plain,
    back=(
        Operation(
            name="softmax_rest_backward",
            takes="cotangent r, x n, entries i, base r, rest r, t #",
            gives="x n, t r",
            of=TEMPERED,
            kernel=_rest_back,
        ),
    ),
)
"""Of tensors; `plain` is for other arrays, and what transforms see."""
