"""Norms of the Jacobian of a map."""

from __future__ import annotations

from typing import Any, Literal, Never

from kofn.adapters.theta import theta_of
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_choice
from kofn.arrays.flow import repeat
from kofn.arrays.kinds import Array, namespace
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import take_along_last, top_indices
from kofn.arrays.typing import ArrayT, LinkName
from kofn.formulas import answers
from kofn.links import Link, table
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given, given
from kofn.rows.settled import Rows, rows_of


def jacobian_norm(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    temperature: float | Array = 1.0,
    norm: Literal["l2", "l1"] = "l2",
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return ‖J‖ of soft_topk, J = ∂p/∂(scores/T) = diag(w) − wwᵀ/W, w = F′, W = Σw.

    Divided by the temperature it is the norm of ∂p/∂scores: how much of a gradient comes back, and
    how steep the map is. "l2" is the largest eigenvalue, exactly, found without the matrix;
    "l1" is ½Σ|J_ij| = W − Σw²/W (softmax: 1 − Σp²).

    Args:
        scores, k, link, temperature, dim, mask: as for `soft_topk`; k = 1 and "exponential" for
            softmax, "linear" for sparsemax.
        norm: "l2" or "l1".

    Returns:
        A number with the batch shape, float32 for half-precision scores. No gradient. 0 where no
        weight moves: everything or nothing chosen, all scores of a bounded link beyond its reach.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ValueError for another norm.

    Source: docs/metrics.md.

    Example:
        >>> import numpy as np
        >>> from kofn import metrics
        >>> pair = np.array([0.0, 0.0])
        >>> metrics.jacobian_norm(pair, 1, link="exponential"), metrics.jacobian_norm(pair, 1)
        (np.float64(0.5), np.float64(0.25))
    """
    if others:
        raise unknown_keyword(jacobian_norm, others)
    check_choice("norm", norm, ("l1", "l2"))
    link = table.resolve(link).map_alpha(stop_gradient)
    checked = given(stop_gradient(scores), k, link, temperature, dim, mask)
    x, k, t = map(stop_gradient, checked[:3])
    with checked.form.quiet():
        rows = rows_of(Given(x, k, t, checked.link))
        norms: Any = evaluate(_spectral if norm == "l2" else _summed, rows)
        return norms


def _spectral(rows: Rows) -> Array:
    scale, u = _scaled_slopes(rows)
    return scale * _largest_eigenvalue(u)


def _summed(rows: Rows) -> Array:
    scale, u = _scaled_slopes(rows)
    xp = namespace(u)
    total = xp.sum(u, axis=-1)
    # W − Σw²/W as Σ w(W − w)/W.
    rest = xp.sum(u * (total[..., None] - u), axis=-1)
    return scale * rest / xp.where(total > 0, total, 1.0)


def _scaled_slopes(rows: Rows) -> tuple[Array, Array]:
    """Return the largest slope, and all slopes divided by it, so that no square underflows."""
    w = answers.slopes(rows, theta=theta_of(rows))
    xp = namespace(w)
    scale = xp.max(w, axis=-1)
    return scale, w / xp.where(scale > 0, scale, 1.0)[..., None]


def _largest_eigenvalue(u: Array) -> Array:
    """Return the greatest eigenvalue of diag(u) − uuᵀ/Σu, for u in [0, 1] with the largest entry 1
    (or all 0).

    It lies between the two largest entries, where Σ u_i/(u_i − λ) rises from −∞ to ∞ through 0:
    the secular equation of a rank-one change, halved as often as the dtype has bits. Distances
    from λ = second + share·(first − second) are differences of entries, so nothing cancels.
    """
    xp = namespace(u)
    n = u.shape[-1]
    if n < 2:
        return 0.0 * xp.sum(u, axis=-1)
    order = top_indices(u, n)
    ordered = take_along_last(u, order)
    first, rest = ordered[..., 0], ordered[..., 1:]
    second = rest[..., 0]
    width = first - second
    below = second[..., None] - rest

    def halve(bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        share = (low + high) / 2
        distance = below + (width * share)[..., None]
        safe = xp.where(distance > 0, distance, 1.0)
        pull = xp.sum(xp.where(rest > 0, rest / safe, 0.0), axis=-1)
        lower = pull * (width * (1 - share)) > first
        return xp.where(lower, share, low), xp.where(lower, high, share)

    ends = xp.zeros_like(second), xp.ones_like(second)
    bits = 54 if "64" in str(u.dtype) else 26
    low, high = repeat(u, bits, halve, ends)
    eigenvalue = xp.where(width > 0, second + width * (low + high) / 2, first)
    # One entry alone that moves: it cannot. NaN stays.
    return xp.where(second > 0, eigenvalue, 0.0 * second)
