"""Soft assignment: weights of a matrix whose rows and columns sum to given numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Never, overload

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_flag, check_integer
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.flow import namespace_like, only_if_like
from kofn.arrays.kinds import Array, cast, contiguous, full_like, is_jax, is_torch, namespace, quiet
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT, LinkName, Namespace
from kofn.arrays.without_onnx import refuse
from kofn.links import Link, table
from kofn.links.link import by_id
from kofn.maps.assignment.arguments import Matrices, matrices
from kofn.maps.assignment.implicit import attached
from kofn.maps.assignment.margins import Open, Settled, closed_price, opened
from kofn.maps.assignment.newton import theta_of, weights_of
from kofn.maps.assignment.search import Prices, prices
from kofn.maps.assignment.sight import spread_of
from kofn.maps.topk import hard_topk
from kofn.rows.compiled import whole

__all__ = ["soft_assignment", "soft_assignment_prices"]


@overload
def soft_assignment(
    scores: ArrayT,
    k: float | Array,
    capacity: float | Array | None = None,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    hard: bool = False,
    rounds: None = None,
    **others: Never,
) -> ArrayT: ...
@overload
def soft_assignment(
    scores: ArrayT,
    k: float | Array,
    capacity: float | Array | None = None,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    hard: bool = False,
    rounds: int,
    **others: Never,
) -> tuple[ArrayT, ArrayT]: ...
def soft_assignment(
    scores: ArrayT,
    k: float | Array,
    capacity: float | Array | None = None,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    hard: bool = False,
    rounds: int | None = None,
    **others: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Return weights F((scores − α − β)/temperature): rows sum to k, columns to their capacity.

    α is a price per row and β one per column, found so that both margins hold; each weight is in
    [0, 1]. These weights maximise Σ w·scores − T ΣΩ(w) for the regulariser Ω of the link, which
    is the optimal transport between two margins whose plan has no entry above 1.

    Args:
        scores: torch.Tensor, jax.Array or numpy.ndarray of floats, (…, m, n): batches of matrices
            with m rows and n columns. −inf is never chosen, nor is a score at or below half of the
            dtype's least number. +inf gives NaN: it has no finite price.
        k: what each row sums to, in [0, n]: a number, or an array that broadcasts to
            `scores.shape[:-1]`. A row without available entries takes nothing, whatever its k.
        capacity: what each column sums to, in [0, m]: a number, or an array that broadcasts to
            (…, n). By default, columns with available entries share Σk equally. Its sum has to be
            Σk up to rounding (1e-5, more for half-precision arrays); it is then multiplied by
            Σk/Σcapacity. So where Σk changes alone, all columns grow in proportion.
        link: F, by name or as a kofn.Link, as for `soft_topk`; the α of links.entmax is a number or
            broadcasts to the batch shape, `scores.shape[:-2]`.
        temperature: > 0, in the units of the scores; a number, or an array that broadcasts to the
            batch shape. Where scores are so far apart that prices as floats cannot meet the
            margins, it is raised until they do.
        mask: boolean, broadcasts to `scores`; False entries are never chosen.
        hard: return 0 and 1 with the soft weights' gradient (straight-through): of each row, its k
            entries that are largest less their columns' prices; of a fractional k, one entry is its
            fraction. Rows sum to k exactly; columns to their capacity only roughly, the closer the
            lower the temperature is.
        rounds: stop after so many rounds of columns, then rows, as Sinkhorn's iteration does, and
            return (weights, distance). Rows then sum to k, and columns miss their capacity by
            `distance` at most, of the shape `scores.shape[:-2]`. Both have the derivatives of
            these rounds. Not with hard=True.

    Returns:
        Weights with the shape, dtype and device of `scores`, differentiable twice in scores, k,
        capacity, temperature and the link's alpha. They are computed in float64, but for JAX, whose
        dtype is the scores'. A matrix is NaN if it has a NaN, if arrays of margins do not
        match, or if its mask or −inf leave no weights with these margins. A row or column that
        takes nothing, or all that is available, has weights of 0 or 1 without a gradient. The
        gradients of k and capacity are 0 where a column takes all that is available, and where the
        entries between 0 and 1 leave the matrix in parts without a row or column in common, as
        whole margins may: for links with ends, and at low temperatures, to rounding, for all.

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype or shape, a number is out of
            range, or k and capacity are numbers that do not match, or that no row or column with
            as few entries as mask and −inf leave can meet. This is seen of NumPy arrays and of
            eager tensors on a CPU; elsewhere such numbers give NaN, but for those that do not match
            without a mask. Entries of arrays of margins are not checked.

    Source: Cuturi, "Sinkhorn distances" (2013), without the bound on entries; Blondel, Martins &
    Niculae (2020) for the regularisers; Su, "MoE journey" 6 (2026), for prices of two margins.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_assignment
        >>> scores = np.array([[3.0, 1.0, 0.0], [2.5, 2.0, 0.0], [2.0, 0.5, 1.0], [3.0, 2.0, 1.5]])
        >>> soft_assignment(scores, 1).round(3)  # each column takes 4/3
        array([[0.469, 0.292, 0.24 ],
               [0.309, 0.483, 0.208],
               [0.274, 0.226, 0.5  ],
               [0.282, 0.333, 0.386]])
        >>> capacity = np.array([2.0, 1.0, 1.0])
        >>> soft_assignment(scores, 1, capacity, temperature=0.1).round(3)
        array([[0.998, 0.002, 0.   ],
               [0.185, 0.815, 0.   ],
               [0.184, 0.   , 0.815],
               [0.633, 0.183, 0.185]])
        >>> soft_assignment(scores, 1, capacity, temperature=0.1, hard=True)
        array([[1., 0., 0.],
               [0., 1., 0.],
               [0., 0., 1.],
               [1., 0., 0.]])
    """
    if others:
        raise unknown_keyword(soft_assignment, others)
    refuse("soft_assignment")
    link, is_hard = table.resolve(link), check_flag("hard", hard)
    if rounds is not None:
        check_integer("rounds", rounds, "None, or an integer ≥ 1", 1)
        if is_hard:
            raise ValueError(f"hard must be False with rounds; got rounds={rounds!r}")
    given = matrices(scores, k, capacity, link, temperature, mask)
    if rounds is not None:
        return _by_rounds(scores, given, link, rounds)
    if 0 in given.x.shape[-2:]:
        nothing: Any = cast(_empty(given), scores.dtype)
        return nothing
    answer = cast(_called(_hard_weights if is_hard else _weights, given, link), scores.dtype)
    if is_dtensor(scores):
        from kofn.arrays.torch.dtensors import placed_as

        return placed_as(answer, scores)
    return answer


def soft_assignment_prices(
    scores: ArrayT,
    k: float | Array,
    capacity: float | Array | None = None,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    mask: Array | None = None,
    **others: Never,
) -> tuple[ArrayT, ArrayT]:
    """Return α and β of soft_assignment: weights are F((scores − α − β)/T), and Σβ is 0.

    They are the prices of a unit of each row's k and of each column's capacity: what the maximum
    of Σ w·scores − T ΣΩ(w) gains by one more unit. An entry with a score above α + β has a weight
    above F(0). Prices are for links shifted to mean zero, as θ of `soft_topk_threshold` is.

    Args:
        scores, k, capacity, link, temperature, mask: as for `soft_assignment`.

    Returns:
        α, of the shape `scores.shape[:-1]`, and β, (…, n), differentiable; float32 for
        half-precision scores. The mean of the finite β is 0, for α + 1 and β − 1 give the same
        weights. A price is +inf where a row or column takes nothing, and −inf where it takes all
        that is available; NaN if it has no available entries, or is settled by others in part.

    Raises:
        TypeError, ValueError: as for `soft_assignment`.

    Source: as for `soft_assignment`.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_assignment_prices
        >>> scores = np.array([[3.0, 1.0, 0.0], [2.5, 2.0, 0.0], [2.0, 0.5, 1.0], [3.0, 2.0, 1.5]])
        >>> capacity = np.array([2.0, 1.0, 1.0])
        >>> rows, columns = soft_assignment_prices(scores, 1, capacity, temperature=0.1)
        >>> rows.round(3)
        array([1.701, 1.95 , 1.451, 2.248])
        >>> columns.round(3)
        array([ 0.698, -0.098, -0.599])
    """
    if others:
        raise unknown_keyword(soft_assignment_prices, others)
    refuse("soft_assignment_prices")
    link = table.resolve(link)
    given = matrices(scores, k, capacity, link, temperature, mask)
    if 0 in given.x.shape[-2:]:
        alpha, beta = _no_prices(given)
    else:
        alpha, beta = _called(_prices, given, link)
    dtype = scores.dtype if scores.dtype.itemsize > 2 else namespace(scores).float32
    both: Any = cast(alpha, dtype), cast(beta, dtype)
    return both


def _by_rounds(scores: Any, given: Matrices, link: Link, rounds: int) -> Any:
    if 0 in given.x.shape[-2:]:
        nothing = _empty(given)
        answers = nothing, namespace(nothing).sum(nothing, axis=(-2, -1))
    else:
        from kofn.maps.assignment.rounds import weights_by_rounds

        answers = _called(weights_by_rounds, given, link, rounds=rounds)
    return tuple(cast(each, scores.dtype) for each in answers)


def _empty(given: Matrices) -> Array:
    """Return weights of matrices without entries; every argument has a derivative of 0 in them."""
    xp, parts = namespace(given.x), [each for each in given if isinstance(each, type(given.x))]
    return given.x + sum(xp.sum(each) * 0.0 for each in parts[1:])


def _no_prices(given: Matrices) -> tuple[Array, Array]:
    """Return the prices of matrices without entries, NaN."""
    xp, nothing = namespace(given.x), _empty(given)
    pairs = ((given.k, xp.sum(nothing, axis=-1)), (given.c, xp.sum(nothing, axis=-2)))
    alpha, beta = (
        xp.where(xp.zeros_like(margin, dtype=xp.bool), margin + zero, math.nan)
        for margin, zero in pairs
    )
    return alpha, beta


def _called(function: Any, given: Matrices, link: Link, **more: int) -> Any:
    """Call a function of matrices, compiled as a whole for JAX, by process for DTensors."""
    number = link.alpha if isinstance(link.alpha, float) else None
    alpha = None if isinstance(link.alpha, float) else given.alpha
    if is_dtensor(given.x):
        from kofn.arrays.torch.dtensors import locally

        return locally(
            lambda *own: _called(function, Matrices(*own), link, **more), *given[:4], alpha
        )
    # NumPy has no arrays of one number, but scalars, which branches do not look at.
    arrays = [each if each is None else each[None] for each in (*given[:4], alpha)]
    if is_jax(given.x):
        from kofn.arrays.jax.compile import bound

        answer = whole(bound(function, link_id=link.id, number=number, **more), *arrays)
    else:
        with quiet(given.x):
            answer = function(*arrays, link_id=link.id, number=number, **more)
    return tuple(each[0] for each in answer) if isinstance(answer, tuple) else answer[0]


class _Solved(NamedTuple):
    """The open part of matrices whose columns are the shorter side, and their prices."""

    open: Open
    beta: Array
    full: Array  # entries whose weight the margins have settled as 1
    link: Link
    turned: bool  # the rows and columns are the caller's columns and rows
    unit: Array  # of the scores, temperature and prices; 1 but for scores of extreme size


def _solved(
    arrays: tuple[Array, Array, Array, Array, Any], link_id: str, number: float | None
) -> _Solved:
    x, k, c, t, alpha = arrays
    link = by_id(link_id, number if alpha is None else alpha)
    turned = x.shape[-2] < x.shape[-1]
    if turned:
        x, k, c = _turned(x), c, k
    x = contiguous(x)  # NumPy's functions may round otherwise where numbers lie apart in memory
    xp = namespace_like(x)
    x, t, unit = _in_units(xp, x, t)
    fixed = [stop_gradient(each) for each in (x, k, c, t)]
    beta, warm, live, full = _prices_of(fixed, link.map_alpha(stop_gradient))
    # T times a constant: a raised temperature has the derivatives of the one given.
    p = opened(xp, x, k, c, t * (warm / fixed[3]), Settled(live, full, full))
    return _Solved(*attached(p, beta, link, full, turned), full, link, turned, unit)


def _in_units(xp: Namespace[Any], x: Array, t: Array) -> tuple[Array, ...]:
    """Return scores and T of each matrix in a unit in which squares of scores are floats."""
    spread, info = spread_of(xp, stop_gradient(x)), xp.finfo(x.dtype)
    large = spread > float(info.max) ** 0.5
    unit = xp.where(large, spread, 1.0)

    def small() -> tuple[Array, Array]:
        least = full_like(unit, (), float(info.smallest_normal))
        return x / unit[..., None, None], xp.maximum(t / unit, least)

    return *only_if_like(x)(large, small, (x, t)), unit


def _prices_of(arrays: Any, link: Link) -> Prices:
    x, k, c, t = arrays
    if is_torch(x):
        from kofn.maps.assignment.torch_search import prices_of

        return prices_of(x, k, c, t, link)
    return prices(x, k, c, t, link)


def _turned(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _weights(*arrays: Any, link_id: str, number: float | None) -> Array:
    return _weights_at(_solved(arrays, link_id, number))


def _weights_at(s: _Solved) -> Array:
    y = s.open.x - s.beta[..., None, :]
    weights = weights_of(s.link, y, s.open.k, s.open.t[..., None])
    xp = namespace(y)
    weights = xp.where(s.full & ~xp.isnan(s.beta)[..., None, :], 1.0, weights)
    return _turned(weights) if s.turned else weights


def _hard_weights(*arrays: Any, link_id: str, number: float | None) -> Array:
    s = _solved(arrays, link_id, number)
    soft = _weights_at(s)
    fixed = stop_gradient(soft)
    xp, p = namespace(soft), Open(*map(stop_gradient, s.open))
    beta, x, k, full = stop_gradient(s.beta), p.x, p.k, s.full
    if s.turned:
        y, link = p.x - beta[..., None, :], s.link.map_alpha(stop_gradient)
        beta = theta_of(link, y, p.k, p.t[..., None])
        x, k, full = _turned(p.x), p.c, _turned(full)
    live = x > -math.inf
    y = xp.where(live, x - xp.where(xp.isfinite(beta), beta, 0.0)[..., None, :], -math.inf)
    chosen = xp.where(full, 1.0, hard_topk(y, k))
    return xp.where(xp.isnan(fixed), math.nan, chosen) + (soft - fixed)


def _prices(*arrays: Any, link_id: str, number: float | None) -> tuple[Array, Array]:
    s = _solved(arrays, link_id, number)
    xp, p = namespace(s.beta), s.open
    y = p.x - s.beta[..., None, :]
    alpha = theta_of(s.link, y, p.k, p.t[..., None])
    x = _turned(arrays[0]) if s.turned else arrays[0]
    live, open_ = x > -math.inf, p.x > -math.inf
    known = ~xp.any(xp.isnan(x), axis=(-2, -1)) & ~xp.any(xp.isnan(s.beta), axis=-1)
    ends = [_ends(x, live, open_, s.full, known, axis) for axis in (-1, -2)]
    pairs = zip((alpha, s.beta), ends, strict=True)
    prices_of_both = [xp.where(moving, each, end) for each, (moving, end) in pairs]
    alpha, beta = reversed(prices_of_both) if s.turned else prices_of_both
    finite = xp.isfinite(stop_gradient(beta))
    number_open = xp.sum(finite, axis=-1)
    mean = xp.sum(xp.where(finite, beta, 0.0), axis=-1) / xp.where(number_open > 0, number_open, 1)
    mean = mean[..., None]
    unit = s.unit[..., None]
    return (alpha + mean) * unit, (beta - mean) * unit


def _ends(
    like: Array, live: Array, open_: Array, full: Array, known: Array, axis: int
) -> tuple[Array, Array]:
    """Return which rows, or columns, have a price by an equation, and the prices of the others.

    A price is +∞ where nothing may be taken, and −∞ where everything is.
    """
    xp = namespace(live)
    end = closed_price(like, xp.sum(full, axis=axis), xp.sum(live, axis=axis))
    return xp.any(open_, axis=axis) | ~known[..., None], end
