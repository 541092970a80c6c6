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


def in_blocks(*gives: str, takes: tuple[str, ...] = ()) -> Callable[[Callable], Callable]:
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
            return _each(call, given, order, arrays, gives, takes)

        return wrapped

    return decorate


def _each(
    function: Callable,
    given: Given,
    order: Order,
    arrays: tuple[Array, ...],
    gives: tuple[str, ...],
    takes: tuple[str, ...],
) -> Any:
    entries = [a for a, what in zip(arrays, takes, strict=True) if what == ENTRIES]
    scores, *entries = (order.sorted(each) for each in (given.scores, *entries))
    found: list[Any] = [None] * len(gives)
    for block in order.blocks:
        rest = iter(entries)
        parts = [
            _packed(order, block, next(rest), 0.0) if what == ENTRIES else _numbers(block, a)
            for a, what in zip(arrays, takes, strict=True)
        ]
        part = Given(
            _packed(order, block, scores, -math.inf),
            namespace(scores).clip(_numbers(block, given.k), None, float(block.length)),
            _numbers(block, given.temperature),
            given.link,
        )
        answers = function(part, *parts)
        for i, (answer, what) in enumerate(zip(_tuple(answers), gives, strict=True)):
            if answer is None:
                continue
            if found[i] is None:
                found[i] = _room(answer, what, given, order)
            if what == ENTRIES:
                found[i] = _unpacked(order, block, answer, found[i])
            else:
                put_numbers(block.which, found[i], answer)
    found = [
        order.unsorted(each) if what == ENTRIES and each is not None else each
        for each, what in zip(found, gives, strict=True)
    ]
    return found[0] if len(gives) == 1 else tuple(found)


def _tuple(answers: Any) -> tuple[Any, ...]:
    return answers if isinstance(answers, tuple) else (answers,)


def _numbers(block: Block, each: Any) -> Any:
    return each if type(each) is float else numbers_of(block.which, each)


def _room(answer: Array, what: str, given: Given, order: Order) -> Array:
    rows = len(order.lengths)
    shape = tuple(given.scores.shape) if what == ENTRIES else (*answer.shape[:-1], rows)
    return answer.new_empty(shape) if is_torch(answer) else np.empty(shape, answer.dtype)


def _packed(order: Order, block: Block, values: Array, fill: float) -> Array:
    if order.is_dense:
        return values.reshape(len(block.which), block.length)
    starts = order.starts, order.lengths
    return kernels.copies().pack(values, *starts, block.which, block.length, fill)


def _unpacked(order: Order, block: Block, rows: Array, values: Array) -> Array:
    if order.is_dense:
        return rows.reshape(-1)
    kernels.copies().unpack(rows, order.starts, order.lengths, block.which, values)
    return values
