"""JAX primitives for rows: one kernel call on a CPU, array code elsewhere.

An operator is a JAX primitive, so vmap, scan, shard_map and explicit meshes know what to do with
it, and the choice between kernel and array code is made where a program is lowered. Only there is
it known for which platform, on how many devices, and whether the program is exported, which native
calls are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive

from kofn import kernels
from kofn.adapters.jax import repair
from kofn.adapters.jax.groups import in_groups
from kofn.adapters.jax.spread import spread
from kofn.arrays.jax.layout import is_exported, is_whole, with_devices
from kofn.arrays.jax.private import ad, batching, mlir
from kofn.arrays.kinds import promoting
from kofn.kernels.contract import kind_of
from kofn.links.link import Link, by_id


class Settings(NamedTuple):
    """The static arguments of an operator."""

    link: str
    number: float | None  # α, if it is a number; of a hard choice k, if it is one
    kernels: bool  # whether a kernel may serve
    reference: Any = None  # the array code of one device, where the operator does not have it
    last_is_own: bool = False  # whether the last argument has a last dimension of its own
    own: tuple[Any, ...] = ()  # the settings of a declared operation
    over: Any = None  # inside jax.shard_map, the AxisRows of which the arrays are one device's part

    def link_of(self, alpha: jax.Array | None = None) -> Link:
        return by_id(self.link, self.number if alpha is None else alpha)

    def given_to(self, code: Callable[..., Any]) -> Callable[..., Any]:
        """Return array code with these settings, for whole rows or for parts."""
        over = {} if self.over is None else {"over": self.over}
        return partial(code, settings=self, **over)


class Operator(NamedTuple):
    """The ways to compute an operator."""

    name: str
    like: tuple[int, ...]  # the arguments that its answers have shape and dtype of
    entries: tuple[int, ...]  # the arguments with a dimension more than one number per row
    plain: Callable[..., Any]  # the array code: (*arrays, settings=, over=)
    kernel: Callable[..., Any] | None = None  # (site, *values) -> what XLA has in their place
    in_shards: bool = False  # whether the array code takes shards of rows, by `over`
    in_groups: bool = False  # whether a CPU computes few rows at a time by the array code
    ascending: bool = False  # whether what XLA fills up the last shard with is to come last, as NaN

    def own_last(self, settings: Settings) -> tuple[int, ...]:
        """Return the arguments whose last dimension is not the scores'."""
        return self.entries[-1:] if settings.last_is_own else ()


class Site(NamedTuple):
    """Where a program is lowered: what can be called there, and the shapes of the arguments."""

    module: Any
    context: Any
    settings: Settings

    @property
    def shapes(self) -> Any:
        return self.context.avals_in

    def call(
        self, attributes: Any, shapes: Sequence[Any], values: Any, results: Any, over: Any = None
    ) -> Any:
        """Call the handler; the answer `over[i]` takes the memory of the argument i."""
        context = self.context.replace(avals_in=shapes, avals_out=results)
        lowered = jax.ffi.ffi_lowering(self.module.ROWS, operand_output_aliases=over)
        return lowered(context, *values, **attributes)

    def rows(
        self, names: Sequence[str], values: Any, calls: Sequence[str], of_alpha: bool = False
    ) -> dict[str, Any]:
        """Return the answers of calls of xla/targets.py for rows, by name; `names` are of `values`.

        Each call takes these values, or answers of the calls before it. Without a number for α it
        takes one per row. The last gives an answer "alpha", too, if `of_alpha`.
        """
        alphas = ("alpha",) if "alpha" in names and self.settings.number is None else ()
        known = dict(zip(names, zip(values, self.shapes, strict=True), strict=True))
        (_, x), (_, per_row) = known["x"], known["t"]
        outputs: dict[str, Any] = {}
        for name in calls:
            call = self.module.CALLS[name]
            taken = [known[each] for each in (*call.takes.split(", "), *alphas)]
            given, shapes = ([each[i] for each in taken] for i in (0, 1))
            last = of_alpha and name == calls[-1]
            parts = [each.split(" ") for each in call.gives.split(", ")]
            parts += [["alpha", "r"]] if last else []
            likes = [x if kind == "n" else per_row for _, kind in parts]
            way = self.settings.link_of(), x.shape[-1], x.dtype, bool(alphas), last
            attributes = self.module.plan(name, *way)
            answers = self.call(attributes, shapes, given, likes, call.over)
            for (part, _), answer, like in zip(parts, answers, likes, strict=True):
                outputs[part], known[part] = answer, (answer, like)
        return outputs


def native() -> Any:
    """Return the module of kernels that XLA can call, or None if there are none here."""
    module = _native()
    return module if module is not None and module.available(*repair.FINISH) else None


def _native() -> Any:
    # None where Numba has no release for this Python or machine, or JAX has no jax.ffi.
    return kernels.module("kofn.kernels.cpu.xla.targets")


def wanted() -> bool:
    """Return whether there are kernels here, and they are not turned off."""
    return kernels.wanted() and _native() is not None


def served(link: Link) -> bool:
    return kind_of(link) is not None and wanted()


class Rules(NamedTuple):
    """The derivatives of a primitive: JAX's rules, without the primitive itself."""

    jvp: Callable[..., Any]
    transpose: Callable[..., Any] | None = None


RULES: dict[Operator, Rules] = {}
"""An operator that is not here has no derivative."""


@cache
def primitive_of(operator: Operator) -> Primitive:
    """Return the primitive of an operator, with all the rules that JAX asks for."""
    primitive = Primitive(operator.name)
    primitive.multiple_results = True
    primitive.def_impl(partial(_run, primitive))
    primitive.def_abstract_eval(partial(_abstract, operator))
    batching.primitive_batchers[primitive] = promoting(partial(_batched, operator))
    mlir.register_lowering(primitive, promoting(partial(_lowered, primitive, operator)))
    for_cpu = promoting(partial(_lowered_for_cpu, primitive, operator))
    mlir.register_lowering(primitive, for_cpu, platform="cpu")
    if operator in RULES:
        jvp, transpose = RULES[operator]
        ad.primitive_jvps[primitive] = promoting(jvp)
        if transpose is not None:
            ad.primitive_transposes[primitive] = promoting(transpose)
    return primitive


def _run(primitive: Primitive, *arrays: jax.Array, **settings: Any) -> Any:
    with jax.disable_jit(False):
        return _compiled(primitive, **settings)(*arrays)


@lru_cache(maxsize=512)
def _compiled(primitive: Primitive, **settings: Any) -> Any:
    return jax.jit(partial(primitive.bind, **settings))


def _abstract(operator: Operator, *arrays: Any, settings: Settings) -> list[Any]:
    return [arrays[i].update(weak_type=False) for i in operator.like]


def _batched(
    operator: Operator, arrays: Sequence[jax.Array], axes: Sequence[Any], *, settings: Settings
) -> tuple[list[jax.Array], tuple[int, ...]]:
    """Move the new dimension to the front; repeat the arrays that do not have it."""
    size = next(a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None)

    def first(array: jax.Array, axis: int | None) -> jax.Array:
        if axis is None:
            return jax.numpy.broadcast_to(array, (size, *array.shape))
        return jax.numpy.moveaxis(array, axis, 0)

    parts = map(first, arrays, axes)
    return bind(operator, *parts, settings=settings), (0,) * len(operator.like)


def bind(operator: Operator, *arrays: jax.Array, settings: Settings) -> list[jax.Array]:
    """Call an operator with its arrays sharded over the same mesh axes."""
    rows = [a.max(-1) if i in operator.entries else a for i, a in enumerate(arrays)]
    zero: Any = sum(map(jax.numpy.zeros_like, rows))
    zeros = [zero[..., None] if i in operator.entries else zero for i in range(len(arrays))]
    like = [a + z.astype(a.dtype) for a, z in zip(arrays, zeros, strict=True)]
    if settings.over is not None:
        like = [settings.over.own(each) for each in like]
    return primitive_of(operator).bind(*like, settings=settings)


def _lowered(
    primitive: Primitive, operator: Operator, context: Any, *values: Any, settings: Settings
) -> Any:
    module = context.module_context
    alone = settings.over is not None or is_whole(module.axis_context)
    if operator.in_shards and not alone and not is_exported(module):
        spread_out = with_devices(context)
        if spread_out is not None:
            call = partial(primitive.bind, settings=settings)
            placed = spread(operator, settings, call)
            return mlir.lower_fun(placed, multiple_results=True)(spread_out, *values)
    plain = settings.given_to(operator.plain)
    return mlir.lower_fun(plain, multiple_results=True)(context, *values)


def _lowered_for_cpu(
    primitive: Primitive, operator: Operator, context: Any, *values: Any, settings: Settings
) -> Any:
    module = context.module_context
    # XLA would gather shards for a native call, and for rows in groups.
    if settings.over is not None or not is_whole(module.axis_context):
        return _lowered(primitive, operator, context, *values, settings=settings)
    allowed = settings.kernels and operator.kernel and not is_exported(module)
    target = native() if allowed else None
    if operator.kernel and target:
        return operator.kernel(Site(target, context, settings), *values)
    plain = partial(operator.plain, settings=settings)
    if operator.in_groups:
        plain = partial(in_groups, plain, operator.entries)
    return mlir.lower_fun(plain, multiple_results=True)(context, *values)
