"""The derivatives of cotangents in the rows, as JAX operators: a symmetric matrix times tangents.

So the operator is its own transpose. Its own derivatives come from array code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax

from kofn.adapters.jax.linear import Which, nonzero
from kofn.adapters.jax.operators import RULES, Operator, Rules, Settings, bind
from kofn.arrays.jax.private import ad

Around = Callable[..., Callable[..., Sequence[jax.Array]]]
"""(θ, cotangent, settings) -> the function from rows to all their cotangents, by array code."""


def changes_of(
    name: str, plain: Callable[..., Any], around: Around, moving: int, entries: Which, of_rows: bool
) -> Callable[[Which], Operator]:
    """Return what makes the operators of tangents of some of the moving arguments.

    Their arguments are the rows, θ, a cotangent of the answer, and these tangents; `entries` of the
    moving arguments have a number per entry. plain(which, *arguments, ...) is the array code.
    """

    @cache
    def of(which: Which) -> Operator:
        linear = (*(moving + 3 + i for i, one in enumerate(which) if one in entries),)
        linear = linear if of_rows else (moving + 2, *linear)
        code, like = partial(plain, which), tuple(range(moving))
        operator = Operator(name, like, (*entries, *linear), code, in_shards=True, in_groups=True)
        rules = _Rules(operator, of, which, around, moving)
        RULES[operator] = Rules(rules.jvp, rules.transposed)
        return operator

    return of


class _Rules(NamedTuple):
    operator: Operator
    of: Callable[[Which], Operator]
    which: Which
    around: Around
    moving: int

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], *, settings: Settings) -> Any:
        call = partial(bind, settings=settings)
        (numbers, v, own), (in_numbers, in_v, in_own) = map(self._parted, (primals, tangents))
        changes = []
        if not isinstance(in_v, ad.Zero):
            changes.append(call(self.operator, *numbers, in_v, *own))
        if some := nonzero(in_own):
            part = self.of(tuple(self.which[i] for i in some))
            changes.append(call(part, *numbers, v, *(in_own[i] for i in some)))
        rows, in_rows = numbers[: self.moving], in_numbers[: self.moving]
        if nonzero(in_rows):
            zeros, along = map(jax.numpy.zeros_like, rows), dict(zip(self.which, own, strict=True))
            filled = tuple(along.get(i, zero) for i, zero in enumerate(zeros))

            def changed(*rows: jax.Array) -> Any:
                cotangents = self.around(numbers[self.moving :], v, settings)
                return jax.jvp(cotangents, rows, filled)[1]

            in_rows = tuple(map(ad.instantiate_zeros, in_rows))
            changes.append(jax.jvp(changed, tuple(rows), in_rows)[1])
        answers = call(self.operator, *primals)
        constant = [ad.Zero(part.aval) for part in answers]
        return answers, [
            sum(parts[1:], parts[0]) for parts in zip(*changes, strict=True)
        ] or constant

    def transposed(self, cotangents: Sequence[Any], *arrays: Any, settings: Settings) -> Any:
        numbers, v, own = self._parted(arrays)
        undefined = [ad.is_undefined_primal(each) for each in (v, *own)]  # type: ignore[no-untyped-call]
        if undefined[0]:
            plain = partial(settings.given_to(self.operator.plain), *numbers)
            # Not jax.linear_transpose: of several sums at once, tangents alone have a transpose.
            at = ad.instantiate_zeros(ad.Zero(v.aval))  # type: ignore[no-untyped-call]
            _, pull = jax.vjp(lambda v: list(plain(v, *own)), at)
            answers = pull([*map(ad.instantiate_zeros, cotangents)])
            return [None] * len(numbers) + [*answers] + [None] * len(own)
        some = nonzero(cotangents)
        given = (cotangents[i] for i in some)
        answers = bind(self.of(some), *numbers, v, *given, settings=settings)
        wanted = zip(self.which, undefined[1:], strict=True)
        return [None] * (len(numbers) + 1) + [answers[i] if it else None for i, it in wanted]

    def _parted(self, arrays: Sequence[Any]) -> tuple[Sequence[Any], Any, Sequence[Any]]:
        """Return the rows and θ, the cotangent, and the tangents."""
        last = self.moving + 2
        return arrays[:last], arrays[last], arrays[last + 1 :]
