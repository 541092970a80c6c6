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

from kofn.kernels.contract import kind_of_rows
from kofn.kernels.gpu.rows import many_programs, one_program
from kofn.kernels.gpu.rows.alpha import in_alpha
from kofn.kernels.gpu.rows.formulas import SERVED as SERVED
from kofn.kernels.gpu.rows.many_programs import Parts
from kofn.kernels.gpu.rows.one_program import Given
from kofn.kernels.gpu.rows.values import values as values

LONG = 32_768  # entries up to which one program has a row to itself
PART = 8_192  # entries of a longer row that a program takes, of those up to a million
VECTOR = 4  # entries that a thread loads at once
AT_A_TIME = {8: 4, 32: 8, 64: 16, 128: 16, 256: 32, 1024: 64}
"""Entries of a row that its threads take at a time, for rows up to a length."""
EVALUATIONS = 6  # launches that evaluate such rows; few need more


class Shape(NamedTuple):
    """What a program takes."""

    rows: int
    block: int  # entries of each at a time, a power of 2
    wide: int  # the same for the first pass, which waits for memory
    warps: int


def shape_of(n: int) -> Shape:
    """Up to a thousand entries a program is a warp with some rows; four entries to a thread.

    A row's numbers are computed by each of its threads, so fewer threads are less work; but where
    each reads far from the others, memory is slower. benchmarks/gpu/shapes.py measures both.
    """
    whole = max(VECTOR, power_of_2(n))
    if whole <= max(AT_A_TIME):
        block = min(whole, AT_A_TIME[min(size for size in AT_A_TIME if size >= whole)])
        return Shape(32 * VECTOR // block, block, block, 1)
    warps = min(max(1, whole // 2048), 16)
    block = 32 * VECTOR * warps
    return Shape(1, block, 4 * block, warps)


gaps = None
LOGARITHMS = ()


def weights(
    x: Tensor, k: Any, temperature: Any, link: Any, single: bool = False
) -> tuple[Tensor, Tensor, bool]:
    """(weights, θ, False): (…, n) and two floats' worth, (2, …). No row is given up."""
    out = empty(x, x.shape, torch.float32 if single else None)
    return out, _forward(x, k, temperature, link, out), False


def threshold(x: Tensor, k: Any, temperature: Any, link: Any) -> tuple[Tensor, bool]:
    """(θ as two floats' worth, (2, …), False)."""
    return _forward(x, k, temperature, link, None), False


def _forward(x: Tensor, k: Any, temperature: Any, link: Any, out: Tensor | None) -> Tensor:
    x = packed(x)
    theta = empty(x, (2, *x.shape[:-1]), torch.float32)
    given = _given(x, k, temperature, theta, link)
    if given.count:
        with device_of(x):
            if given.n > LONG:
                _forward_in_parts(given, link, out)
            else:
                shape = shape_of(given.n)
                one_program.forward[(-(-given.count // shape.rows),)](
                    given,
                    x if out is None else out,
                    WIDE=shape.wide,
                    WRITE=out is not None,
                    **_constants(link, shape),
                )
    return theta


def _forward_in_parts(given: Given, link: Any, out: Tensor | None) -> None:
    part, parts = parts_of(given.n)
    rows, grid, kind = (
        (given.count,),
        (given.count * parts,),
        dict(KIND=kind_of_rows(link), **_IN_PARTS),
    )
    together = dict(PARTS=power_of_2(parts), **kind)
    # Each launch reads what the one before has left and leaves what the next one reads.
    numbers = (given.count, many_programs.NUMBERS.value)
    now, then = ((_sums(given, parts), empty(given.theta_at, numbers)) for _ in range(2))
    many_programs.statistics[grid](given, now[0], PART=part, **_IN_PARTS)
    many_programs.begin[rows](given, *now, **together)
    for i in range(EVALUATIONS):
        many_programs.evaluate[grid](given, *now, *then, FIRST=i == 0, PART=part, **together)
        now, then = then, now
    many_programs.settle[rows](given, *now, **together)
    if out is not None:
        many_programs.weights[grid](given, parts, now[1], out, PART=part, **kind)


def _sums(given: Given, parts: int) -> Parts:
    return Parts(empty(given.theta_at, (given.count, many_programs.SUMS.value, parts)), parts)


def gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, k: Any, temperature: Any, link: Any,
    of_alpha: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Cotangents of the scores, (…, n), and of k and temperature, (2, …); and those of alpha, if
    wanted.
    """
    x, cotangent = packed(x), packed(cotangent)
    more = (in_alpha(x, cotangent, theta, temperature, link),) if of_alpha else ()
    given = _given(x, k, temperature, theta, link)
    answers = empty(x, x.shape), empty(theta, (2, *x.shape[:-1]))
    if given.count:
        with device_of(x):
            if given.n > LONG:
                _backward_in_parts(given, link, cotangent, answers)
            else:
                shape = shape_of(given.n)
                grid = (-(-given.count // shape.rows),)
                one_program.backward[grid](given, cotangent, *answers, **_constants(link, shape))
    return *answers, *more


def _backward_in_parts(
    given: Given, link: Any, cotangent: Tensor, answers: tuple[Tensor, Tensor]
) -> None:
    part, parts = parts_of(given.n)
    grid, own = (given.count * parts,), _sums(given, parts)
    first = dict(KIND=kind_of_rows(link), PART=part, **_IN_PARTS)
    then = dict(PARTS=power_of_2(parts), **first)
    many_programs.weigh_back[grid](given, own, cotangent, **first)
    many_programs.slope_back[grid](given, own, cotangent, **then)
    many_programs.gradients[grid](given, own, cotangent, *answers, **then)


def _given(x: Tensor, k: Any, temperature: Any, theta: Tensor, link: Any) -> Given:
    alpha = 1.5 if link.alpha is None else link.alpha
    # A number goes along with the launch: filling a tensor with it would be another.
    k, temperature, alpha = (
        one if isinstance(one, float) else packed(one) for one in (k, temperature, alpha)
    )
    return Given(x, k, temperature, theta, prod(x.shape[:-1]), x.shape[-1], alpha)


def _constants(link: Any, shape: Shape) -> dict[str, Any]:
    kind, rows = kind_of_rows(link), shape.rows
    return dict(KIND=kind, ROWS=rows, BLOCK=shape.block, num_warps=shape.warps, **OPTIONS)


# Contracting a·b + c is wanted; Triton will want that declared. Left to itself the assembler
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


def packed(x: Tensor) -> Tensor:
    """`x` in rows without gaps: itself, or one copy."""
    return x.resolve_neg().contiguous()


def empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    return like.new_empty(shape, dtype=dtype)


def device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Launches go to the current device, which need not be that of the tensor."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
