"""The rows of a JAX primitive: of arrays and static settings; and their θ, solved or known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from kofn.adapters.jax.operators import Settings
from kofn.adapters.jax.threshold import threshold_of
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.flow import only_if
from kofn.operations.operation import ARRAYS, ENTRY, NUMBER, Operation, Signature, arguments_of
from kofn.rows.settled import Rows
from kofn.rows.shards.jax_axis import AxisRows
from kofn.solver.neighbours import Place
from kofn.solver.plateau import at_end
from kofn.solver.price import Price, price_at, solve
from kofn.solver.reductions import DENSE, Reductions


def names_of(of: Signature) -> tuple[str, ...]:
    """Return the names of the arrays that are rows; each may have a derivative."""
    return tuple(name for name, kind, _ in arguments_of(of.takes) if kind in (*ARRAYS, NUMBER))


def entries_of(of: Signature) -> tuple[int, ...]:
    """Return which of these have a number per entry."""
    kinds = [kind for name, kind, _ in arguments_of(of.takes) if name in names_of(of)]
    return tuple(i for i, kind in enumerate(kinds) if kind == ENTRY)


def packed(of: Signature, settings: Settings, arrays: Sequence[jax.Array]) -> Any:
    """Return rows of these arrays."""
    left, flat = iter(arrays), list[Any]()
    for name, kind, _ in arguments_of(of.takes):
        if kind in (*ARRAYS, NUMBER):
            flat += [next(left), None] if kind == NUMBER else [next(left)]
        else:
            flat.append(settings.link if name == "link" else settings.number)
    return of.pack(*flat)


def prepared(
    operation: Operation,
    of: Signature,
    settings: Settings,
    rows: Sequence[jax.Array],
    *others: jax.Array,
) -> Sequence[jax.Array]:
    """Return the arrays that are rows, as they follow from others, too."""
    given = operation.prepared(packed(of, settings, rows), *others)
    return of.tensors(given)


def solved(rows: Rows, over: Reductions) -> tuple[Sequence[jax.Array], Any]:
    """Return θ as two floats, and as array code takes it.

    In shards the first is θ as it is used, which spares the way back messages.
    """
    x, k, t = map(stop_gradient, (rows.scores, rows.k, rows.temperature))
    costs = None if rows.costs is None else stop_gradient(rows.costs)
    solution = threshold_of(x, k, t, rows.link.map_alpha(stop_gradient), over, costs)
    if rows.costs is not None:
        high, low, _, scale = solution
        return (high / scale, low / scale), solution
    return (solution if over is DENSE else _at_ends(rows, solution, over)), solution


def _at_ends(rows: Rows, pair: tuple[Any, Any], over: Reductions) -> Sequence[Any]:
    """Return θ of links that end at 1 as `implicit.place` uses it; see `plateau.at_end`."""
    if rows.link.capped is False:
        return pair
    open_ = jax.numpy.isfinite(pair[0])
    hi, lo = (jax.numpy.where(open_, part, 0) for part in pair)
    ends: Any = at_end(rows.scores, rows.k, rows.temperature, rows.link, hi, lo, over)
    return [jax.numpy.where(open_, *parts) for parts in zip(ends, pair, strict=True)]


def known(rows: Rows, theta: Sequence[jax.Array], over: Reductions) -> Any:
    """Return θ as array code takes it, from two floats.

    Rows with costs that a kernel gave up on, whose second float is infinite, are solved again: they
    may need more digits of θ than two floats have.
    """
    hi, lo = theta
    if rows.costs is None:
        return hi, lo
    arrays = rows.scores, rows.costs, rows.k, rows.temperature
    x, costs, budget, t, link = (*map(stop_gradient, arrays), rows.link)
    lost = jax.numpy.isinf(lo)
    at_price = price_at(x, costs, budget, t, link, Place(hi, jax.numpy.where(lost, 0.0, lo)), over)

    def again() -> Price:
        right, each = solve(x, costs, budget, t, link, over), (lost, lost, over.expand(lost), lost)
        return Price(*map(jax.numpy.where, each, right, at_price))  # type: ignore[arg-type]

    return only_if(lost, again, at_price)


def total(per_row: jax.Array, over: Reductions) -> jax.Array:
    """Return the sum of what all devices have of a cotangent per row."""
    return over.total(per_row) if isinstance(over, AxisRows) else per_row
