"""Functions of dense rows, applied to segments: block by block of segments of one length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, is_torch, namespace
from kofn.rows.given import Given
from kofn.rows.segments.order import Block, Order, numbers_of, put_numbers

Function = Callable[[Given, Sequence[Array]], Sequence[Any]]
"""(rows, arrays) -> answers"""


def by_blocks(
    function: Function,
    given: Given,
    arrays: Sequence[Array],
    takes: Sequence[bool],
    gives: Sequence[bool],
) -> list[Any]:
    """Return function(rows, arrays) of segments whose places are known.

    `takes` and `gives` say of each array and answer whether it has numbers per entry, or per
    segment along the last axis, (…, segments).
    """
    whole = _of_dense if given.order.is_dense else _of_blocks
    return whole(function, given, given.order, arrays, takes, gives)


def _of_dense(
    function: Any, given: Given, order: Order, arrays: Any, takes: Any, gives: Any
) -> list[Any]:
    """Call the function for segments that are dense rows already."""
    shape = len(order.lengths), order.common_length
    x, k, t, link = given[:4]
    x = x if x is None else x.reshape(shape)
    parts = [a.reshape(shape) if entries else a for a, entries in zip(arrays, takes, strict=True)]
    answers = function(Given(x, _limited(k, shape[1]), t, link), parts)
    return [
        each.reshape(-1) if entries and each is not None else each
        for each, entries in zip(answers, gives, strict=True)
    ]


def _of_blocks(
    function: Any, given: Given, order: Order, arrays: Any, takes: Any, gives: Any
) -> list[Any]:
    whole: list[Any] = [None] * len(gives)
    size = int(order.lengths.sum())
    for block in order.blocks:
        parts = [
            _packed(order, block, a, 0.0) if entries else _numbers(block, a)
            for a, entries in zip(arrays, takes, strict=True)
        ]
        answers = function(_part(given, order, block), parts)
        for i, (answer, entries) in enumerate(zip(answers, gives, strict=True)):
            if answer is None:
                continue
            if whole[i] is None:
                whole[i] = _room(answer, entries, size, order)
            if entries:
                kernels.copies().unpack(answer, order, block.which, whole[i])
            else:
                put_numbers(block.which, whole[i], answer)
    return whole


def _part(given: Given, order: Order, block: Block) -> Given:
    x, k, t, link = given[:4]
    x = x if x is None else _packed(order, block, x, -math.inf)
    link = link.map_alpha(lambda alpha: numbers_of(block.which, alpha))
    return Given(x, _limited(_numbers(block, k), block.length), _numbers(block, t), link)


def _limited(k: Any, length: int) -> Any:
    """Return k, at most the length of the rows: all of a row are chosen then."""
    return min(k, float(length)) if type(k) is float else namespace(k).clip(k, None, float(length))


def _numbers(block: Block, each: Any) -> Any:
    return each if type(each) is float else numbers_of(block.which, each)


def _room(answer: Array, entries: bool, size: int, order: Order) -> Array:
    shape: tuple[int, ...] = (size,) if entries else (*answer.shape[:-1], len(order.lengths))
    return (
        answer.new_empty(shape) if is_torch(answer) else np.empty(shape, np.asarray(answer).dtype)
    )


def _packed(order: Order, block: Block, values: Array, fill: float) -> Array:
    return kernels.copies().pack(values, order, block.which, block.length, fill)
