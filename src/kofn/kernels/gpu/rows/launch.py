"""Rows in a GPU's memory: which kernel, how many rows a program takes, how many threads.

Nothing here waits for the device: launches only, whatever the row. Shapes depend on a row's length
alone, so a row's answer does not depend on how many others there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import cos, sin
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.typing import Number
from kofn.kernels.contract import LINEAR, link_of
from kofn.kernels.gpu.launcher import launch
from kofn.kernels.gpu.rows import alpha as of_alphas
from kofn.kernels.gpu.rows import many_programs, one_program
from kofn.kernels.gpu.rows.alpha import in_alpha
from kofn.kernels.gpu.rows.formulas import LOGARITHMS as LOGARITHMS
from kofn.kernels.gpu.rows.formulas import SERVED as SERVED
from kofn.kernels.gpu.rows.many_programs import Parts
from kofn.kernels.gpu.rows.one_program import Given
from kofn.kernels.gpu.rows.own import kind_of_rows
from kofn.kernels.gpu.rows.own import why_not as why_not
from kofn.links.link import Link

RATED = SERVED
"""The links whose `losses` rate rows."""
LONG = 32_768  # entries up to which one program has a row to itself
PART = 8_192  # entries of a longer row that a program takes, of those up to a million
VECTOR = 4  # entries that a thread loads at once
AT_A_TIME = {8: 4, 32: 8, 64: 16, 128: 32, 256: 64, 1024: 128}
"""Entries of a row that its threads take at a time, for rows up to a length."""
EVALUATIONS = 6  # launches that evaluate such rows; few need more


class Shape(NamedTuple):
    """The arguments of a program."""

    rows: int
    block: int  # entries of each at a time, a power of 2
    wide: int  # the same for the first pass, which waits for memory
    warps: int


@lru_cache
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


def _answer(kernel: Any, given: Given, link: Any, arrays: tuple[Any, ...], *more: Any) -> None:
    """Launch a kernel of answers.py or losses.py, which takes whole rows of any length."""
    if given.count:
        shape, kind = shape_of(given.n), () if link is None else (kind_of_rows(link),)
        programs, options = -(-given.count // shape.rows), options_of(shape.warps, WIDER)
        launch(kernel, programs, given, arrays, (*kind, shape.rows, shape.block, *more), options)


def _known(name: str, given: Given, link: Link, *arrays: Any) -> None:
    """Launch a kernel of answers.py."""
    from kofn.kernels.gpu.rows import answers  # which a router alone does not need

    _answer(getattr(answers, name), given, link, arrays)


def logarithms(
    x: Tensor, weights: Tensor, theta: Tensor, k: Number, temperature: Number, link: Link
) -> Tensor:
    x = packed(x)
    out = empty(x, x.shape)
    _known("logarithms", _given(x, k, temperature, theta, link), link, out)
    return out


def log_weights(x: Tensor, k: Any, temperature: Any, link: Link) -> tuple[Tensor, Tensor, bool]:
    """Return (log p, θ, False)."""
    theta = threshold(x, k, temperature, link)[0]
    return logarithms(x, x, theta, k, temperature, link), theta, False


def log_gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, k: Number, temperature: Number, link: Link,
    *, of_alpha: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Return (cotangents of the scores; of the temperature, twice; False; of alpha)."""
    x, cotangent = packed(x), packed(cotangent)
    given, in_x = _given(x, k, temperature, theta, link), empty(x, x.shape)
    in_rows = empty(theta, theta.shape)
    _known("log_gradients", given, link, cotangent, in_x, in_rows)
    slopes = in_x, in_rows, False
    if not of_alpha:
        return slopes
    return *slopes, in_alpha(x, cotangent, theta, temperature, link, logs=True)


def threshold_gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, k: Number, temperature: Number, link: Link
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of the scores, and of k and the temperature, (2, …), from one of θ."""
    x = packed(x)
    in_x, in_rows = empty(x, x.shape), empty(theta, theta.shape)
    given = _given(x, k, temperature, theta, link)
    _known("threshold_gradients", given, link, packed(cotangent), in_x, in_rows)
    return in_x, in_rows


def values(x: Tensor, theta: Tensor, k: Number, temperature: Number, link: Link) -> Tensor:
    """Return S_k and its slopes in the temperature and in k, (3, …)."""
    out, x = empty(theta, (3, *theta.shape[1:])), packed(x)
    _known("values", _given(x, k, temperature, theta, link), link, out)
    return out


def losses(
    x: Tensor, target: Tensor, k: Number, temperature: Any, link: Any, likely: bool, wanted: bool,
    *, of_alpha: bool = False, rated: tuple[int, Tensor | None] | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return (losses and Σ(p − t)z, (2, …); p − t; False; derivatives in alpha, if wanted).

    With `rated`, a label that does not count and class weights, `_keep` in losses.py says what
    the losses are, and which two numbers follow.
    """
    from kofn.kernels.gpu.rows import losses as of_losses

    x, target, labels = packed(x), packed(target), target.ndim < x.ndim
    out = empty(x, (2 if rated is None else 4, *x.shape[:-1]), torch.float32)
    residual = empty(x, x.shape, torch.float32) if wanted else None
    ignored, by_class = rated or (_NO_LABEL, None)
    # An array that nobody touches stands for one that is not there.
    into, each = x if residual is None else residual, x if by_class is None else packed(by_class)
    to = of_losses.Compared(target, into, out, each, ignored)
    how = wanted, rated is not None, by_class is not None
    if likely:
        _answer(of_losses.likelihoods, _given(x, k, temperature, out, link), None, (to,), *how)
        return out, residual, False
    k = k if labels else target.sum(-1, dtype=torch.float32)
    theta = threshold(x, k, temperature, link)[0]
    soft = not labels and target.is_floating_point()
    with_omega = soft and kind_of_rows(link) in of_losses.WITH_OMEGA
    given = _given(x, k, temperature, theta, link)
    _answer(of_losses.losses, given, link, (to,), labels, with_omega, *how)
    if soft and not with_omega:
        bent = link.omega(target.double()).sum(-1).float()
        out[0] += bent if rated is None else (bent * out[2]).masked_fill_(out[2] == 0, 0)
    slopes = of_alphas.of_losses(x, target, theta, temperature, link) if of_alpha else None
    return (out, residual, False) if slopes is None else (out, residual, False, slopes)


def missed(
    x: Tensor, values: Tensor, target: Tensor, ignored: int, by_class: Tensor | None,
    epsilon: float = 0.0, known: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (minus the values at labels, as `losses` rates them; labels that are in range). With
    an `epsilon`, log(1 + nε) − log(value + ε) of rows of n entries in play. Where they are `known`,
    the losses are given in the place of values.
    """
    from kofn.kernels.gpu.rows import losses as of_losses

    x, batch = packed(x), x.shape[:-1]
    out, labels = empty(x, (4, *batch), torch.float32), empty(x, batch, torch.int64)
    each = x if by_class is None else packed(by_class)
    to = of_losses.Compared(packed(target), packed(values), out, each, ignored)
    given = _given(x, 1.0, epsilon, out, _ANY)
    how = by_class is not None, epsilon > 0, known
    _answer(of_losses.missed, given, None, (to, labels), *how)
    return out, labels


def margins(
    x: Tensor, target: Tensor, margin: float, turned: int, temperature: float, ignored: int
) -> tuple[Tensor, Tensor]:
    """Return logits with a margin at labels, and there the slope of each row's, times T."""
    out, slope = (empty(x, shape, torch.float32) for shape in (x.shape, x.shape[:-1]))
    given = packed(x), packed(target), out, slope, temperature, margin
    _margins("margins", given, (sin(margin), cos(margin)), ignored, bool(turned))
    return out, slope


def margin_gradients(
    x: Tensor, cotangent: Tensor, target: Tensor, slope: Tensor, temperature: float, ignored: int
) -> Tensor:
    out = empty(x, x.shape)
    given = packed(cotangent), packed(target), out, slope, temperature, 0.0
    _margins("margins_back", given, (0.0, 1.0), ignored)
    return out


def _margins(name: str, given: Any, angle: tuple[float, float], ignored: int, *how: Any) -> None:
    from kofn.kernels.gpu.rows import margins as of_margins

    count, n = given[3].numel(), given[0].shape[-1]
    numbers = (*given, *angle, ignored, count, n)
    cosines: Any = of_margins.Cosines(*numbers)
    _answer(getattr(of_margins, name), cosines, None, (), *how)


def weights(
    x: Tensor, k: Any, temperature: Any, link: Link, single: bool = False
) -> tuple[Tensor, Tensor, bool]:
    """Return (weights, θ, False): (…, n) and two floats' worth, (2, …). No row is given up."""
    x = packed(x)
    out = empty(x, x.shape, torch.float32 if single else None)
    return out, _forward(x, k, temperature, link, out), False


def threshold(
    x: Tensor, k: Any, temperature: Any, link: Link, into: Tensor | None = None
) -> tuple[Tensor, bool]:
    """Return (θ as two floats' worth, (2, …), False), in memory that is given."""
    return _forward(packed(x), k, temperature, link, None, into), False


def _forward(
    x: Tensor, k: Any, temperature: Any, link: Link, out: Tensor | None, theta: Tensor | None = None
) -> Tensor:
    theta = empty(x, (2, *x.shape[:-1]), torch.float32) if theta is None else theta
    given = _given(x, k, temperature, theta, link)
    if not given.count:
        return theta
    if given.n > LONG:
        _forward_in_parts(given, link, out)
        return theta
    shape, write = shape_of(given.n), out is not None
    constants = kind_of_rows(link), shape.rows, shape.block, shape.wide, write
    programs, arrays = -(-given.count // shape.rows), (x if out is None else out,)
    launch(one_program.forward, programs, given, arrays, constants, options_of(shape.warps))
    return theta


def _forward_in_parts(given: Given, link: Link, out: Tensor | None) -> None:
    part, parts = parts_of(given.n)
    rows, grid, kind = given.count, given.count * parts, kind_of_rows(link)
    every, block, options = power_of_2(parts), BLOCK, options_of(4)
    # Each launch reads the numbers that the one before has left.
    numbers = (given.count, many_programs.NUMBERS.value)
    now, then = ((_sums(given, parts), empty(given.theta_at, numbers)) for _ in range(2))
    launch(many_programs.statistics, grid, given, now[:1], (part, block), options)
    launch(many_programs.begin, rows, given, now, (kind, every, block), options)
    for i in range(EVALUATIONS):
        constants = kind, i == 0, part, every, block
        launch(many_programs.evaluate, grid, given, (*now, *then), constants, options)
        now, then = then, now
    launch(many_programs.settle, rows, given, now, (kind, every, block), options)
    if out is not None:
        arrays = parts, now[1], out
        launch(many_programs.weights, grid, given, arrays, (kind, part, block), options)


def _sums(given: Given, parts: int) -> Parts:
    return Parts(empty(given.theta_at, (given.count, many_programs.SUMS.value, parts)), parts)


def gradients(
    x: Tensor, cotangent: Tensor, theta: Tensor, k: Number, temperature: Number, link: Link,
    *, of_alpha: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Cotangents of the scores, (…, n), and of k and temperature, (2, …); and of alpha, if
    wanted.
    """
    x, cotangent = packed(x), packed(cotangent)
    more = (in_alpha(x, cotangent, theta, temperature, link),) if of_alpha else ()
    given = _given(x, k, temperature, theta, link)
    answers = empty(x, x.shape), empty(theta, (2, *x.shape[:-1]))
    if given.count and given.n > LONG:
        _backward_in_parts(given, link, cotangent, answers)
    elif given.count:
        shape, arrays = shape_of(given.n), (cotangent, *answers)
        constants, programs = (kind_of_rows(link), *shape[:2]), -(-given.count // shape.rows)
        launch(one_program.backward, programs, given, arrays, constants, options_of(shape.warps))
    return *answers, *more


def _backward_in_parts(
    given: Given, link: Link, cotangent: Tensor, answers: tuple[Tensor, Tensor]
) -> None:
    part, parts = parts_of(given.n)
    grid, own, kind = given.count * parts, _sums(given, parts), kind_of_rows(link)
    every, options = power_of_2(parts), options_of(4)
    arrays, constants = (own, cotangent), (kind, part, every, BLOCK)
    launch(many_programs.weigh_back, grid, given, arrays, (kind, part, BLOCK), options)
    launch(many_programs.slope_back, grid, given, arrays, constants, options)
    launch(many_programs.gradients, grid, given, (*arrays, *answers), constants, options)


def limited(
    k: Tensor | float, t: Tensor | float, n: int, limits: tuple[float, float]
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return k and T per row as float32, None for a number; whether they are in range, (2, …)."""
    dtypes = [torch.float32 if isinstance(one, Tensor) else None for one in (k, t)]
    like = k if isinstance(k, Tensor) else t
    inside = empty(like, (2, *like.shape), torch.bool)  # type: ignore[arg-type,union-attr]
    return *_limit("limit", (k, t), dtypes, inside, (float(n), *limits)), inside


def limited_gradients(
    inside: Tensor, cotangents: Sequence[Tensor | None], dtypes: Sequence[torch.dtype | None]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the cotangents of the tensors from cotangents of k and T; some may be None."""
    wanted = [None if g is None else dtype for g, dtype in zip(cotangents, dtypes, strict=True)]
    return _limit("limit_back", cotangents, wanted, inside, (0.0, 0.0, 0.0))


def _limit(name: str, numbers: Any, dtypes: Any, inside: Tensor, limits: Any) -> Any:
    """Return what a kernel of numbers.py writes for numbers that have a dtype; None for others."""
    from kofn.kernels.gpu.rows import numbers as of_numbers

    # An array that nobody touches stands for one that is not there.
    given = [inside if dtype is None else one for one, dtype in zip(numbers, dtypes, strict=True)]
    into = [
        one if dtype is None else empty(one, one.shape, dtype)
        for one, dtype in zip(given, dtypes, strict=True)
    ]
    count, (k, t) = inside[0].numel(), map(_with_step, given)
    arguments = (*k, *t, inside.view(torch.int8), *limits, count)
    of = of_numbers.Numbers(*arguments)
    if count:
        constants = *(dtype is not None for dtype in dtypes), EACH
        kernel = getattr(of_numbers, name)
        launch(kernel, -(-count // EACH), of, tuple(into), constants, options_of(4))
    return [None if one is inside else one for one in into]


def _with_step(one: Tensor) -> tuple[Tensor, int]:
    """Return the numbers of all rows, or the one of each row."""
    one = one.resolve_neg()
    return (one.contiguous(), 1) if any(one.stride()) else (one, 0)


def _given(x: Tensor, k: Number, temperature: Number, theta: Tensor, link: Any) -> Given:
    alpha = 1.5 if link.alpha is None else link.alpha
    count, n = theta[0].numel(), x.shape[-1]
    return Given(x, number(k), number(temperature), theta, count, n, number(alpha))


def number(one: Any) -> Any:
    # A number goes along with the launch: filling a tensor with it would be another.
    return one if isinstance(one, float) else packed(one)


# Contracting a·b + c is wanted; Triton will want that declared. Left to itself the assembler
# takes 64 registers where it needs a few more, and puts the rest in memory.
OPTIONS = {"enable_fp_fusion": True, "maxnreg": 80}
_NO_LABEL = -100
_ANY = link_of(LINEAR, 0.0)  # of no use
WIDER = 128  # registers of a thread where the answer is more than weights
BLOCK = 512  # entries at a time of a row in parts
EACH = 512  # rows for which a program takes a number each


@lru_cache
def options_of(warps: int, registers: int = OPTIONS["maxnreg"]) -> dict[str, Any]:
    return {"num_warps": warps, **OPTIONS, "maxnreg": registers}


def parts_of(n: int) -> tuple[int, int]:
    """Return (length, number) of the parts of a row; at most some hundred, which all programs add
    up.
    """
    part = max(PART, power_of_2(n) // 128)
    return part, -(-n // part)


def power_of_2(n: int) -> int:
    """Return the least that is no less than n."""
    return 1 << (n - 1).bit_length()


def packed(x: Tensor) -> Tensor:
    """`x` in rows without gaps: itself, or one copy."""
    return x.resolve_neg().contiguous()


def empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    if dtype is None and shape == like.shape:  # takes half of the time
        return torch.empty_like(like)
    return like.new_empty(shape, dtype=dtype)
