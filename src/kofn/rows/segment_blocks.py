"""Functions of dense rows, applied to segments: block by block of segments of one length."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.kinds import Array, is_torch, namespace
from kofn.rows.given import Given
from kofn.rows.segment_order import Block, Order, numbers_of, put_numbers

ENTRIES, NUMBERS = "entries", "numbers"
"""What an array has: numbers per entry, or per segment along the last axis, (…, segments)."""

Kinds = tuple[str, ...]


def in_blocks(*gives: str, takes: Kinds = ()) -> Callable[[Callable], Callable]:
    """Let a function (backend, given, *arrays, **settings) of dense rows serve segments, too.

    `gives` and `takes` say what its results and the arrays have.
    """

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def wrapped(backend: Any, given: Given, *arrays: Array, **settings: Any) -> Any:
            order = given.order
            if order is None:
                return function(backend, given, *arrays, **settings)
            call = functools.partial(function, backend, **settings)
            if order.is_dense:
                return _of_dense(call, given, order, arrays, gives, takes)
            return _of_blocks(call, given, order, arrays, gives, takes)

        return wrapped

    return decorate


def _of_dense(
    function: Callable, given: Given, order: Order, arrays: Any, gives: Kinds, takes: Kinds
) -> Any:
    """Call the function for segments that are dense rows already."""
    shape = len(order.lengths), order.common_length
    x, k, t, link, _ = given
    dense = (
        each.reshape(shape) if what == ENTRIES else each
        for each, what in zip(arrays, takes, strict=True)
    )
    found = function(Given(x.reshape(shape), _limited(k, shape[1]), t, link), *dense)
    if len(gives) == 1:
        return found.reshape(-1) if gives[0] == ENTRIES else found
    return tuple(
        each.reshape(-1) if what == ENTRIES else each
        for each, what in zip(found, gives, strict=True)
    )


def _of_blocks(
    function: Callable, given: Given, order: Order, arrays: Any, gives: Kinds, takes: Kinds
) -> Any:
    found: list[Any] = [None] * len(gives)
    for block in order.blocks:
        parts = (
            _packed(order, block, each, 0.0) if what == ENTRIES else _numbers(block, each)
            for each, what in zip(arrays, takes, strict=True)
        )
        answers = function(_part(given, order, block), *parts)
        answers = answers if isinstance(answers, tuple) else (answers,)
        for i, (answer, what) in enumerate(zip(answers, gives, strict=True)):
            if answer is None:
                continue
            if found[i] is None:
                found[i] = _room(answer, what, given, order)
            if what == ENTRIES:
                kernels.copies().unpack(answer, order, block.which, found[i])
            else:
                put_numbers(block.which, found[i], answer)
    return found[0] if len(gives) == 1 else tuple(found)


def _part(given: Given, order: Order, block: Block) -> Given:
    x, k, t, link, _ = given
    k = _limited(_numbers(block, k), block.length)
    return Given(_packed(order, block, x, -math.inf), k, _numbers(block, t), link)


def _limited(k: Any, length: int) -> Any:
    """Return k, at most the length of the rows: all of a row are chosen then."""
    return min(k, float(length)) if type(k) is float else namespace(k).clip(k, None, float(length))


def _numbers(block: Block, each: Any) -> Any:
    return each if type(each) is float else numbers_of(block.which, each)


def _room(answer: Array, what: str, given: Given, order: Order) -> Array:
    rows = len(order.lengths)
    shape = tuple(given.scores.shape) if what == ENTRIES else (*answer.shape[:-1], rows)
    return answer.new_empty(shape) if is_torch(answer) else np.empty(shape, answer.dtype)


def _packed(order: Order, block: Block, values: Array, fill: float) -> Array:
    return kernels.copies().pack(values, order, block.which, block.length, fill)
