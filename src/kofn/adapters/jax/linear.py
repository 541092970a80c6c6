"""JAX operators with derivatives of any order: an answer, its tangent, and the transpose of that.

The tangent is linear in the tangents of the moving arguments, and kernels compute its transpose.
Derivatives of either in these arguments, which are not linear, come from array code, which is
differentiable to any order. So first derivatives are kernels; forward mode and second derivatives
are array code around the same θ. The tangent, and the derivatives of its transpose, may have closed
forms, whose programs are shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from kofn.adapters.jax.operators import RULES, Operator, Rules, Settings, bind
from kofn.arrays.jax.private import ad


class Pull(NamedTuple):
    """An operator (*numbers, cotangent) -> the cotangents of these arguments, in their order."""

    operator: Operator
    gives: tuple[int, ...]


Which = tuple[int, ...]
"""Some of the moving arguments."""


class Linear(NamedTuple):
    """Three operators; the numbers are the arguments of `forward` and its answers but the last."""

    forward: Operator  # its last answer has derivatives, the others are constants
    push: Operator  # (*numbers, *tangents) -> the tangent of the answer
    pulls: tuple[Pull, ...]  # the first one gives all cotangents
    moving: int  # how many of the first arguments have derivatives
    numbers: int
    settings: Callable[[Settings, Sequence[Any]], Settings] = lambda settings, _: settings
    """The settings for the tangent, by the arguments' tangents: some have no kernels."""
    bend: Callable[[Which], Operator] | None = None
    """The operator (*numbers, cotangent, *tangents of some of the moving arguments) -> the tangents
    of the cotangents that `pulls` give, of all moving arguments. Its matrix is symmetric.
    """
    push_code: Callable[..., Any] | None = None
    """The array code of `push` as far as its derivatives go, if `push` has a closed form: its own
    settings then say which tangents are not 0.
    """


def differentiate(linear: Linear) -> None:
    """Give the operators their rules."""
    RULES[linear.forward] = Rules(partial(_jvp, linear))
    parts = linear.moving, linear.numbers, linear.push_code
    push = partial(linear_jvp, linear.push, *parts)
    RULES[linear.push] = Rules(push, partial(_push_transposed, linear))
    for pull in linear.pulls:
        jvp = partial(_pull_jvp, linear, pull)
        RULES[pull.operator] = Rules(jvp, partial(_pull_transposed, linear, pull))


def pushed(
    linear: Linear, numbers: Sequence[jax.Array], tangents: Sequence[Any], settings: Settings
) -> jax.Array:
    """Return the tangent of the answer, from all numbers and the tangents of the moving ones."""
    filled = map(ad.instantiate_zeros, tangents)
    own = () if linear.push_code is None else nonzero(tangents)
    return bind(linear.push, *numbers, *filled, settings=settings._replace(own=own))[0]


def _jvp(linear: Linear, primals: Sequence[jax.Array], tangents: Any, *, settings: Settings) -> Any:
    *known, answer = bind(linear.forward, *primals, settings=settings)
    moving = tangents[: linear.moving]
    tangent = pushed(linear, (*primals, *known), moving, linear.settings(settings, moving))
    # θ is a constant of the array code, which differentiates around it.
    return [*known, answer], [*(ad.Zero(part.aval) for part in known), tangent]


def linear_jvp(
    operator: Operator,
    moving: int,
    numbers: int,
    code: Callable[..., Any] | None,
    primals: Sequence[jax.Array],
    tangents: Sequence[Any],
    *,
    settings: Settings,
) -> Any:
    """Return the tangent of an operator that is linear in its arguments after the numbers.

    It is differentiated in the numbers as `code`; as its own array code if that is None.
    """
    call = partial(bind, operator, settings=settings)
    answers, fixed, linear = call(*primals), primals[:numbers], primals[numbers:]
    following = map(ad.instantiate_zeros, tangents[numbers:])
    if all(isinstance(tangent, ad.Zero) for tangent in tangents[:moving]):
        return answers, call(*fixed, *following)

    def around(*arrays: jax.Array) -> list[jax.Array]:
        arrays = *arrays[:moving], *fixed[moving:], *arrays[moving:]
        return list(settings.given_to(code or operator.plain)(*arrays))

    every = (*map(ad.instantiate_zeros, tangents[:moving]), *following)
    return answers, jax.jvp(around, (*fixed[:moving], *linear), every)[1]


def _pull_jvp(
    linear: Linear, pull: Pull, primals: Sequence[Any], tangents: Any, *, settings: Settings
) -> Any:
    which = nonzero(tangents[: linear.moving])
    if linear.bend is None or not which:
        parts = pull.operator, linear.moving, linear.numbers, None
        return linear_jvp(*parts, primals, tangents, settings=settings)
    call = partial(bind, pull.operator, *primals[: linear.numbers], settings=settings)
    bent = bind(linear.bend(which), *primals, *(tangents[i] for i in which), settings=settings)
    change: list[Any] = [bent[i] for i in pull.gives]
    if not isinstance(tangents[-1], ad.Zero):
        change = [sum(pair) for pair in zip(change, call(tangents[-1]), strict=True)]
    return call(primals[-1]), change


def nonzero(tangents: Sequence[Any]) -> Which:
    """Return which of the tangents are not 0."""
    return tuple(i for i, each in enumerate(tangents) if not isinstance(each, ad.Zero))


def _push_transposed(linear: Linear, cotangents: Any, *arrays: Any, settings: Settings) -> Any:
    fixed, moving = arrays[: linear.numbers], arrays[linear.numbers :]
    wanted = {i for i, tangent in enumerate(moving) if ad.is_undefined_primal(tangent)}  # type: ignore[no-untyped-call]  # JAX's
    pull = next(each for each in reversed(linear.pulls) if wanted <= set(each.gives))
    cotangent = ad.instantiate_zeros(cotangents[0])  # type: ignore[no-untyped-call]  # JAX's
    answers = bind(pull.operator, *fixed, cotangent, settings=settings._replace(own=()))
    by_place = dict(zip(pull.gives, answers, strict=True))
    some = [by_place[i] if i in wanted else None for i in range(linear.moving)]
    return [None] * linear.numbers + some


def _pull_transposed(
    linear: Linear, pull: Pull, cotangents: Sequence[Any], *arrays: Any, settings: Settings
) -> Any:
    fixed = arrays[: linear.numbers]
    given = dict(zip(pull.gives, cotangents, strict=True))
    none = (ad.Zero(jax.typeof(each)) for each in fixed[: linear.moving])
    tangents = [given.get(i, zero) for i, zero in enumerate(none)]
    return [None] * linear.numbers + [pushed(linear, fixed, tangents, settings)]
