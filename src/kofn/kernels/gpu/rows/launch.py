"""Rows in a GPU's memory: which kernel, how many rows a program takes, how many threads.

Nothing here waits for the device: launches only, whatever the row. Shapes depend on a row's length
alone, so a row's answer does not depend on how many others there are.
"""

from __future__ import annotations

import contextlib
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.kernels.contract import kind_of
from kofn.kernels.gpu.rows import many_programs, one_program
from kofn.kernels.gpu.rows.formulas import SERVED as SERVED

LONG = 32_768  # entries up to which one program has a row to itself
PART = 8_192  # entries of a longer row that a program takes, of those up to a million
LOOKS = 6  # launches for looks at such rows; few need more


class Shape(NamedTuple):
    """What a program takes."""

    rows: int
    block: int  # entries of each at a time, a power of 2
    wide: int  # the same for the first visit, which waits for memory
    warps: int


def shape_of(n: int) -> Shape:
    """Up to 128 entries some rows to a program, above it a row; four entries to a thread at a time.

    A row's numbers are computed by each of its threads, so fewer threads are less work.
    """
    whole = max(16, power_of_2(n))
    if whole <= 128:
        return Shape(512 // whole, whole, whole, 4)
    warps = min(max(1, whole // 2048), 16)
    block = min(whole, 128 * warps)
    return Shape(1, block, min(whole, 4 * block), warps)


values = None  # S_k goes by θ


def weights(x: Tensor, k: Tensor, temperature: Tensor, link: Any) -> tuple[Tensor, Tensor, bool]:
    """(weights, θ, False): (…, n) and two floats' worth, (2, …). No row is given up."""
    out = empty(x, x.shape)
    return out, _forward(x, k, temperature, link, out), False


def threshold(x: Tensor, k: Tensor, temperature: Tensor, link: Any) -> tuple[Tensor, bool]:
    """(θ as two floats' worth, (2, …), False)."""
    return _forward(x, k, temperature, link, None), False


def _forward(x: Tensor, k: Tensor, temperature: Tensor, link: Any, out: Tensor | None) -> Tensor:
    x, k, temperature = packed(x), packed(k), packed(temperature)
    theta = empty(k, (2, *k.shape))
    count, n = prod(x.shape[:-1]), x.shape[-1]
    if count == 0:
        return theta
    with device_of(x):
        if n > LONG:
            _forward_in_parts(x, k, temperature, link, out, theta)
        else:
            shape = shape_of(n)
            one_program.forward[(-(-count // shape.rows),)](
                x,
                x if out is None else out,
                theta,
                k,
                temperature,
                count,
                n,
                _alpha(link),
                KIND=kind_of(link),
                ROWS=shape.rows,
                BLOCK=shape.block,
                WIDE=shape.wide,
                WRITE=out is not None,
                num_warps=shape.warps,
                **OPTIONS,
            )
    return theta


def _forward_in_parts(
    x: Tensor, k: Tensor, temperature: Tensor, link: Any, out: Tensor | None, theta: Tensor
) -> None:
    count, n = k.numel(), x.shape[-1]
    part, parts = parts_of(n)
    grid, kind, alpha = (count * parts,), kind_of(link), _alpha(link)
    together = dict(PARTS=power_of_2(parts), **_IN_PARTS)
    # Each launch reads what the one before has left and leaves what the next one reads.
    sums = [empty(k, (count, many_programs.SUMS.value, parts)) for _ in range(2)]
    numbers = [empty(k, (count, many_programs.NUMBERS.value)) for _ in range(2)]
    rows = (k, temperature)
    many_programs.survey[grid](x, sums[0], n, parts, PART=part, **_IN_PARTS)
    many_programs.begin[(count,)](
        x, sums[0], numbers[0], *rows, n, parts, alpha, KIND=kind, **together
    )
    for i in range(LOOKS):
        now, then = i % 2, 1 - i % 2
        many_programs.look_on[grid](
            x,
            sums[now],
            numbers[now],
            sums[then],
            numbers[then],
            *rows,
            n,
            parts,
            alpha,
            KIND=kind,
            FIRST=i == 0,
            PART=part,
            **together,
        )
    last = LOOKS % 2
    found = (numbers[last], theta, *rows, count, n, parts, alpha)
    many_programs.settle[(count,)](x, sums[last], *found, KIND=kind, **together)
    if out is not None:
        many_programs.weights[grid](x, out, *found, KIND=kind, PART=part, **_IN_PARTS)


def gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, k: Tensor, temperature: Tensor, link: Any
) -> tuple[Tensor, Tensor]:
    """Cotangents of the scores, (…, n), and of k and temperature, (2, …)."""
    x, cotangent, k, temperature = (packed(a) for a in (x, cotangent, k, temperature))
    out, in_rows = empty(x, x.shape), empty(k, (2, *k.shape))
    count, n = prod(x.shape[:-1]), x.shape[-1]
    if count == 0:
        return out, in_rows
    with device_of(x):
        if n > LONG:
            _backward_in_parts(x, cotangent, theta, k, temperature, link, out, in_rows)
        else:
            shape = shape_of(n)
            one_program.backward[(-(-count // shape.rows),)](
                x,
                cotangent,
                theta,
                k,
                temperature,
                out,
                in_rows,
                count,
                n,
                _alpha(link),
                KIND=kind_of(link),
                ROWS=shape.rows,
                BLOCK=shape.block,
                num_warps=shape.warps,
                **OPTIONS,
            )
    return out, in_rows


def _backward_in_parts(
    x: Tensor,
    cotangent: Tensor,
    theta: Tensor,
    k: Tensor,
    temperature: Tensor,
    link: Any,
    out: Tensor,
    in_rows: Tensor,
) -> None:
    count, n = k.numel(), x.shape[-1]
    part, parts = parts_of(n)
    grid = (count * parts,)
    sums = empty(k, (count, many_programs.SUMS.value, parts))
    row = (x, cotangent, sums, theta)
    shape = (count, n, parts, _alpha(link))
    first = dict(KIND=kind_of(link), PART=part, **_IN_PARTS)
    then = dict(PARTS=power_of_2(parts), **first)
    many_programs.weigh_back[grid](*row, temperature, *shape, **first)
    many_programs.slope_back[grid](*row, temperature, *shape, **then)
    many_programs.gradients[grid](*row, k, temperature, out, in_rows, *shape, **then)


# Contracting a·b + c is wanted, which Triton is about to want told. Left to itself the assembler
# takes 64 registers where it needs a few more, and puts the rest in memory.
OPTIONS = {"enable_fp_fusion": True, "maxnreg": 80}
_IN_PARTS = {"BLOCK": 512, "num_warps": 4, **OPTIONS}


def parts_of(n: int) -> tuple[int, int]:
    """(length, number) of the parts of a row; at most some hundred, which all programs add up."""
    part = max(PART, power_of_2(n) // 128)
    return part, -(-n // part)


def power_of_2(n: int) -> int:
    """The least that is no less than n."""
    return 1 << (n - 1).bit_length()


def _alpha(link: Any) -> float:
    return link.alpha if isinstance(link.alpha, float) else 1.5


def packed(x: Tensor) -> Tensor:
    """`x` in rows without gaps: itself, or one copy."""
    return x.resolve_neg().contiguous()


def empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    return like.new_empty(shape, dtype=dtype)


def device_of(x: Tensor) -> contextlib.AbstractContextManager:
    """Launches go to the current device, which need not be that of the tensor."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
