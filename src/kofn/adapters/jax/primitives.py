"""Operations around θ as JAX primitives: an answer, its tangent, and cotangents.

Kernels give the answer and, for first derivatives, the cotangents; all else is the array code, at
the same θ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax

from kofn.adapters.jax.alphas import in_kinds
from kofn.adapters.jax.linear import Linear, Pull, Which, differentiate, pushed
from kofn.adapters.jax.operators import RULES, Operator, Rules, Settings, Site, bind
from kofn.adapters.jax.rows import entries_of, known, names_of, packed, prepared, solved, total
from kofn.adapters.jax.tangents import changes_of
from kofn.arrays.autodiff import for_values, stop_gradient
from kofn.arrays.jax.private import ad, mlir
from kofn.operations.operation import ROW, Operation, Signature
from kofn.rows.settled import rows_of, uncounted
from kofn.rows.shards.jax_axis import AxisRows
from kofn.solver.reductions import DENSE, Reductions


@partial(jax.jit, static_argnums=(0, 1, 2))
def answer(
    operation: Operation, of: Signature, settings: Settings, *arrays: jax.Array
) -> jax.Array:
    """Return the answer of an operation on rows that are these arrays; `of` says how."""
    rows = prepared(operation, of, settings, arrays)
    if not operation.back:
        rows = [stop_gradient(each) for each in rows]
    is_linear = operation.back and operation.moves_as is None
    operator = linear_of(operation, of).forward if is_linear else choice_of(operation)
    return bind(operator, *rows, settings=settings)[-1]


@cache
def choice_of(operation: Operation) -> Operator:
    """Return the primitive of an answer that is a constant, or has the derivatives of another."""
    names, code = names_of(operation.of), operation.fixed or operation.plain

    def plain(*arrays: Any, settings: Settings) -> Any:
        assert code is not None
        return [code(packed(operation.of, settings, arrays))]

    def kernel(site: Site, *values: Any) -> Any:
        assert operation.xla is not None
        by_name = site.rows(names, values, operation.xla(*site.settings.own))
        return [by_name[operation.answers[0].name]]

    operator = Operator(f"kofn_{operation.name}", (0,), entries_of(operation.of), plain, kernel)
    if operation.moves_as is not None:
        linear = linear_of(operation.moves_as, operation.of)
        RULES[operator] = Rules(partial(_choice_jvp, operator, linear))
    return operator


def _choice_jvp(
    operator: Operator, linear: Linear, primals: Any, tangents: Any, *, settings: Settings
) -> Any:
    *theta, _ = bind(linear.forward, *primals, settings=settings)
    tangent = pushed(linear, (*primals, *theta), tangents, settings)
    return bind(operator, *primals, settings=settings), [tangent]


@cache
def linear_of(operation: Operation, of: Signature) -> Linear:
    """Return the primitives of an operation.

    Their arguments are the arrays of rows, which have derivatives, then both floats of θ.
    """
    code = _Code(operation, of)
    name, moving = f"kofn_{operation.name}", len(code.names)
    entries, per_row = code.entries, code.per_row
    like_theta = (per_row, per_row)
    kernel = code.by_kernel if operation.xla is not None else None
    forward = code.in_kinds(
        Operator(name, (*like_theta, code.like), entries, code.answer, kernel, True)
    )
    tangents = tuple(moving + 2 + place for place in entries)
    closed = operation.tangents is not None and not code.has_alpha
    push_code = code.pushed_in_closed_form if closed else code.pushed
    push = Operator(
        f"{name}_tangents",
        (code.like,),
        (*entries, *tangents),
        push_code,
        in_shards=True,
        in_groups=True,
    )
    pulls = [code.pull("cotangents", code.pulled)]
    if len(code.less) < len(code.pulled):
        pulls.append(code.pull("fewer_cotangents", code.less))
    own = (code.change(moving), code.pushed) if closed else (None, None)
    linear = Linear(forward, push, tuple(pulls), moving, moving + 2, code.settings, *own)
    differentiate(linear)
    return linear


class _Code:
    """The array code of an operation and of its way back, and what calls kernels for them."""

    def __init__(self, operation: Operation, of: Signature) -> None:
        self.operation, self.back, self.of = operation, operation.back[0], of
        self.names, self.entries = names_of(of), entries_of(of)
        self.has_alpha = "alpha" in self.names
        self.per_row = next(i for i in range(len(self.names)) if i not in self.entries)
        self.pullback = operation.pullback if operation.at_theta else None
        if operation.tangents is not None:
            self.pullback = (*operation.tangents(), self.pullback)[2]
        self.of_rows = operation.answers[0].kind == ROW
        self.like = self.per_row if self.of_rows else 0  # the argument that is like the answer
        cotangent = () if self.of_rows else (len(self.names) + 2,)
        self.pulling = *self.entries, *cotangent  # which arguments of a pull have one per entry
        given = (one for back in operation.back for one in back.answers)
        always = (one for one in given if f"of_{one.name}" not in one.given_if)
        self.less = tuple(name for one in always for name in one.name.split("+"))
        # The declared way back does not give alpha's, if that is an array; kernels give it last.
        self.pulled = *self.less, *(name for name in self.names if name not in self.less)

    def answer(self, *arrays: Any, settings: Settings, over: Reductions = DENSE) -> Any:
        """Return θ and the answer."""
        rows = rows_of(packed(self.of, settings, arrays), over)
        with for_values():
            theta, solution = solved(rows, over)
            return *theta, self._reference(rows, over, solution)

    def _reference(self, rows: Any, over: Reductions, theta: Any) -> jax.Array:
        own = {"theta": theta} if self.operation.at_theta else {}
        return self.operation.reference(rows, over=over, **own)

    def _at(self, theta: Any, settings: Settings, over: Reductions) -> Callable[..., jax.Array]:
        """Return the answer as a function of the arrays that move, where θ is known."""

        def function(*arrays: Any) -> jax.Array:
            rows = rows_of(packed(self.of, settings, arrays), over)
            return self._reference(rows, over, known(rows, theta, over))

        return function

    def _parted(self, arrays: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Return the rows, θ and the others."""
        moving = len(self.names)
        return arrays[:moving], arrays[moving : moving + 2], arrays[moving + 2 :]

    def pushed(self, *arrays: Any, settings: Settings, over: Reductions = DENSE) -> Any:
        """Return the tangent of the answer."""
        rows, theta, tangents = self._parted(arrays)
        return [jax.jvp(self._at(theta, settings, over), rows, tangents)[1]]

    def pushed_in_closed_form(
        self, *arrays: Any, settings: Settings, over: Reductions = DENSE
    ) -> Any:
        """Return the same, not to be differentiated."""
        rows, theta, tangents = self._parted(arrays)
        assert self.operation.tangents is not None
        push, which = self.operation.tangents()[0], settings.own
        if self.of_rows:
            one = jax.numpy.ones_like(arrays[self.like])
            slopes = self._pulled_back(self.names, *rows, *theta, one, settings=settings, over=over)
            moves = [(slopes[i] * tangents[i], i in self.entries) for i in which]
            return [sum(over.sum(each) if of_entry else each for each, of_entry in moves)]
        some = [each if i in which else None for i, each in enumerate(tangents)]
        return [push(some, packed(self.of, settings, rows), theta, over)]

    def pull_back(
        self,
        names: Sequence[str],
        *arrays: Any,
        settings: Settings,
        over: Reductions = DENSE,
    ) -> Any:
        """Return the cotangents of rows by these names."""
        *before, v = arrays
        whole = self._whole(v, settings)
        pulled = self._pulled_back(names, *before, whole, settings=settings, over=over)
        return self._in_parts(names, pulled, settings)

    def _whole(self, v: jax.Array, settings: Settings) -> jax.Array:
        """Return the cotangent of an answer; of one per row in parts, JAX has it in parts."""
        return settings.over.total(v) if self.of_rows and settings.over is not None else v

    def _in_parts(self, names: Sequence[str], cotangents: Any, settings: Settings) -> Any:
        """Return cotangents; in parts, those of a number per row as parts that add up to them."""
        over: AxisRows | None = settings.over
        if over is None:
            return cotangents
        entries = {self.names[place] for place in self.entries}
        pairs = zip(names, cotangents, strict=True)
        return [each if name in entries else over.on_first(each) for name, each in pairs]

    def _pulled_back(
        self,
        names: Sequence[str],
        *arrays: Any,
        settings: Settings,
        over: Reductions = DENSE,
    ) -> Any:
        rows, theta, (cotangent,) = self._parted(arrays)
        pullback = self.pullback
        # The closed form is for rows with a number for alpha. In shards it spares messages.
        usual = over is not DENSE or self.of_rows
        if usual and pullback is not None and not self.has_alpha:
            given = packed(self.of, settings, rows)
            settled = rows_of(given, over) if self.of_rows else uncounted(given)
            with for_values():
                parts = pullback(cotangent, settled, theta, over)
                return [part() if callable(part) else part for part in parts]
        each = dict(zip(self.names, self._cotangents(arrays, settings, over), strict=True))
        entries = {self.names[place] for place in self.entries}
        return [each[name] if name in entries else total(each[name], over) for name in names]

    def _cotangents(self, arrays: Sequence[Any], settings: Settings, over: Reductions) -> Any:
        """Return the cotangents of all rows as the array code has them, to any order."""
        rows, theta, (cotangent,) = self._parted(arrays)
        return jax.vjp(self._at(theta, settings, over), *rows)[1](cotangent)

    def changed(
        self,
        which: Which,
        *arrays: Any,
        settings: Settings,
        over: Reductions = DENSE,
    ) -> Any:
        """Return how the cotangents of rows change with tangents of some of them."""
        rows, theta, (v, *tangents) = self._parted(arrays)
        along = dict(zip((self.names[i] for i in which), tangents, strict=True))
        given = packed(self.of, settings, rows)
        assert self.operation.tangents is not None
        v, tangents = self._whole(v, settings), [along.get(name) for name in self.names]
        changes = self.operation.tangents()[1](v, tangents, given, theta, over)
        return self._in_parts(self.names, changes, settings)

    def change(self, moving: int) -> Callable[[Which], Operator]:
        """Return the operators of `changed`."""

        def around(theta: Any, v: jax.Array, settings: Settings) -> Callable[..., Any]:
            def cotangents(*rows: jax.Array) -> Any:
                return self._cotangents((*rows, *theta, v), settings, settings.over or DENSE)

            return cotangents

        name = f"kofn_{self.operation.name}_cotangent_tangents"
        return changes_of(name, self.changed, around, moving, self.entries, self.of_rows)

    def by_kernel(self, site: Site, *values: Any) -> Any:
        assert self.operation.xla is not None
        by_name = site.rows(self.names, values, self.operation.xla(*site.settings.own))
        return [by_name[name] for name in ("hi", "lo", self.operation.answers[0].name)]

    def in_kinds(self, operator: Operator) -> Operator:
        return in_kinds(operator, self.names.index("alpha")) if self.has_alpha else operator

    def pull(self, name: str, names: tuple[str, ...]) -> Pull:
        """Return the operator of these cotangents, with what mends rows that a kernel left."""
        like = tuple(map(self.names.index, names))
        plain = partial(self.pull_back, names)
        kernel = None if self.back.xla is None else partial(self._pull_by_kernel, names)
        name = f"kofn_{self.operation.name}_{name}"
        operator = self.in_kinds(Operator(name, like, self.pulling, plain, kernel, True))
        if self.back.lost:
            alone = operator._replace(name=f"{name}_alone")
            mend = partial(self._pull_and_mend, alone, names.index(self.back.lost))
            operator = operator._replace(kernel=mend)
        return Pull(operator, like)

    def _pull_by_kernel(self, names: tuple[str, ...], site: Site, *values: Any) -> Any:
        assert self.back.xla is not None
        known = *self.names, "hi", "lo", "cotangent"
        own = (int(each.removeprefix("of_") in names) for each in self.back.settings)
        by_name = site.rows(known, values, self.back.xla(*own), "alpha" in names)
        return [by_name[name] for name in names]

    def _pull_and_mend(self, alone: Operator, flag: int, site: Site, *values: Any) -> Any:
        """Have the kernel pull; if it has given up on a row, the array code pulls for all."""
        settings = site.settings

        def mended(*arrays: jax.Array) -> Any:
            *before, lo, cotangent = arrays
            # It is infinite in a row that a kernel gave up on before.
            lo = jax.numpy.where(jax.numpy.isfinite(lo), lo, jax.numpy.nan)
            pulled = bind(alone, *before, lo, cotangent, settings=settings)
            lost = jax.numpy.isnan(pulled[flag])

            def again() -> Any:
                right = alone.plain(*arrays, settings=settings)
                each = (lost[..., None] if f.ndim > lost.ndim else lost for f in pulled)
                return [*map(jax.numpy.where, each, right, pulled)]

            return jax.lax.cond(lost.any(), again, lambda: pulled)

        return mlir.lower_fun(mended, multiple_results=True)(site.context, *values)

    def settings(self, settings: Settings, tangents: Sequence[Any]) -> Settings:
        """Return the settings for the tangent: constants have no cotangent by kernels."""
        constant = [tangents[self.names.index(name)] for name in self.operation.constant]
        learned = any(not isinstance(tangent, ad.Zero) for tangent in constant)
        return settings._replace(kernels=False) if learned else settings
