"""Kernels for rows with an alpha each, in a JAX program: by the kind of the link of each row.

Kernels take an alpha per row. Alphas of 1, 1.5 and 2 have links of their own, and kernels serve
none that is nearer to 1, or above 2. Only the running program knows which there are, and shapes may
not depend on them: so for each kind that occurs all rows are computed, and its own rows are kept.
Nearly all calls have one kind. A row's answer does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax, numpy

from kofn.adapters.jax.operators import Operator, Site, bind
from kofn.arrays.jax.private import mlir
from kofn.kernels.contract import GENERAL, SPECIAL_ALPHA, is_general


def in_kinds(operator: Operator, place: int) -> Operator:
    """Return the operator of rows of any alphas, by one of rows of a kind.

    The latter has the kind by its settings: a special alpha as their number, or none. `place` is
    alpha's among the arguments.
    """
    alone = operator._replace(name=f"{operator.name}_of_a_kind")

    def kernel(site: Site, *values: Any) -> Any:
        settings = site.settings

        def dealt(*arrays: jax.Array) -> Any:
            alpha = arrays[place]
            general = is_general(alpha)
            kinds = numpy.stack([general, *(alpha == number for number in SPECIAL_ALPHA)])
            # Alphas that kernels do not serve must not reach them, not even in a row that is not
            # kept.
            usual = [*arrays[:place], numpy.where(general, alpha, GENERAL), *arrays[place + 1 :]]
            runs: list[Callable[..., Any]] = [
                partial(bind, alone, *usual, settings=settings._replace(number=number))
                for number in (None, *SPECIAL_ALPHA)
            ]

            def of_several() -> Any:
                answers = [numpy.zeros_like(arrays[i]) for i in operator.like]
                for mine, run in zip(kinds, runs, strict=True):
                    answers = _where_any(mine, run, answers)
                return answers

            of_one = kinds.reshape(len(runs), -1).all(-1)
            which = numpy.where(of_one.any(), numpy.argmax(of_one), len(runs))
            answers = lax.switch(which, [*runs, of_several])
            plain = partial(operator.plain, *arrays, settings=settings)
            return _where_any(~kinds.any(0), plain, answers)

        return mlir.lower_fun(dealt, multiple_results=True)(site.context, *values)

    return operator._replace(kernel=kernel)


def _where_any(mine: jax.Array, run: Callable[..., Any], before: Any) -> Any:
    """Return the answers of `run` in the rows that are `mine`, and do not run it for none."""

    def taken() -> Any:
        return [_where(mine, *pair) for pair in zip(run(), before, strict=True)]

    return lax.cond(mine.any(), taken, lambda: list(before))


def _where(mine: jax.Array, answer: jax.Array, before: jax.Array) -> jax.Array:
    return numpy.where(mine[..., None] if answer.ndim > mine.ndim else mine, answer, before)
