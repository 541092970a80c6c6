"""Projections onto the simplex: whole, capped, or with few entries."""

from __future__ import annotations

import math
from typing import Never

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, framework, full_like
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import power_of_two
from kofn.arrays.typing import ArrayT
from kofn.maps.softmax import sparsemax
from kofn.maps.topk import hard_topk, soft_topk
from kofn.projections.vectors import Vectors, vectors

__all__ = ["projection_capped_simplex", "projection_simplex", "projection_sparse_simplex"]

USUAL = 1e-20, 1e20
"""The scales that are temperatures of any type as they are; others are brought to 1."""


def projection_simplex(
    x: ArrayT,
    scale: float | Array = 1.0,
    *,
    dim: int | None = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return argmin_p ‖p − x‖² for p ≥ 0, Σp = scale.

    It is scale · sparsemax(x, temperature=scale), with the derivatives of both.

    Args:
        x: torch.Tensor, jax.Array or numpy.ndarray of floats, any shape.
        scale: > 0, the sum of the entries, in the units of x; a number, or an array that
            broadcasts to the batch shape and may have a gradient.
        dim: the dimension that vectors lie along; None takes all of `x` as one vector, which is
            what optax does.
        mask: boolean, broadcasts to `x`; False entries become 0.

    Returns:
        An array like `x`. A vector without available entries becomes 0, one with a NaN becomes NaN.
        As in all of kofn, −inf counts as masked.

    Raises:
        TypeError: x has another kind or dtype.
        ValueError: scale is not above 0; a shape that does not fit.

    Source: Held, Wolfe & Crowder, "Validation of subgradient optimization" (1974); Duchi et al.,
    "Efficient Projections onto the l1-Ball" (2008).

    Example:
        >>> import numpy as np
        >>> from kofn.projections import projection_simplex
        >>> projection_simplex(np.array([2.5, 3.0, -1.0]), 2.0)
        array([0.75, 1.25, 0.  ])
    """
    if others:
        raise unknown_keyword(projection_simplex, others)
    given = vectors(x, dim)
    with given.form.quiet():
        return given.restored(on_simplex(given, given.rows, scale, given.mask(mask)))


def projection_capped_simplex(
    x: ArrayT, k: float | Array, *, dim: int | None = -1, mask: Array | None = None, **others: Never
) -> ArrayT:
    """Return argmin_p ‖p − x‖² for 0 ≤ p ≤ 1, Σp = k.

    The corners of this set are the choices of k entries. It is soft_topk(x, k, link="linear").

    Args:
        x, dim, mask: as for `projection_simplex`.
        k: in [0, n]; a number, or an array that broadcasts to the batch shape, NaN where it is out
            of range. It may have a gradient.

    Returns:
        An array like `x`.

    Raises:
        TypeError, ValueError: as for `soft_topk`.

    Source: Wang & Lu, "Projection onto the Capped Simplex" (2015).

    Example:
        >>> import numpy as np
        >>> from kofn.projections import projection_capped_simplex
        >>> projection_capped_simplex(np.array([2.0, 0.5, 0.25, -1.0]), 2)
        array([1.   , 0.625, 0.375, 0.   ])
    """
    if others:
        raise unknown_keyword(projection_capped_simplex, others)
    given = vectors(x, dim)
    total = k if framework(k) is None else given.per_vector("k", k, positive=False)
    return given.restored(soft_topk(given.rows, total, link="linear", mask=given.mask(mask)))


def projection_sparse_simplex(
    x: ArrayT,
    k: int | Array,
    scale: float | Array = 1.0,
    *,
    dim: int | None = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return argmin_p ‖p − x‖² for p ≥ 0, Σp = scale, and at most k entries other than 0.

    The k largest entries are projected onto the simplex; of equal ones, the first are
    kept. The gradient is this projection's.

    Args:
        x, scale, dim, mask: as for `projection_simplex`.
        k: the most entries other than 0: an integer in [0, n], or an array of integers that
            broadcasts to the batch shape, NaN where it is no such number.

    Returns:
        An array like `x`; zeros for k = 0.

    Raises:
        TypeError, ValueError: as for `projection_simplex`; ValueError for k outside of [0, n].

    Source: Kyrillidis et al., "Sparse Projections onto the Simplex" (2013).

    Example:
        >>> import numpy as np
        >>> from kofn.projections import projection_sparse_simplex
        >>> projection_sparse_simplex(np.array([0.5, 0.4, 0.3, 0.3]), 2)
        array([0.55, 0.45, 0.  , 0.  ])
    """
    if others:
        raise unknown_keyword(projection_sparse_simplex, others)
    given = vectors(x, dim)
    chosen, xp = hard_topk(given.rows, given.count(k), mask=given.mask(mask)), given.form.xp
    with given.form.quiet():
        projected = on_simplex(given, given.rows, scale, chosen > 0)
        bad = xp.any(xp.isnan(chosen), axis=-1)[..., None]
        return given.restored(xp.where(bad, math.nan, projected))


def on_simplex(
    given: Vectors[ArrayT], rows: Array, scale: float | Array, mask: Array | None = None
) -> Array:
    """Return `rows`, in the form of `given`, projected onto the simplex of that scale."""
    size = given.per_vector("scale", scale, positive=True)
    if isinstance(size, float) and USUAL[0] <= size <= USUAL[1]:
        return size * sparsemax(rows, temperature=size, mask=mask)  # size has no gradient
    # In units of the scale, and less the maximum: an entry that overflows then is far below.
    xp = given.form.xp
    each = (*given.batch, 1)
    number = full_like(rows, each, size) if isinstance(size, float) else xp.reshape(size, each)
    unit = power_of_two(stop_gradient(number))
    known = stop_gradient(rows if mask is None else xp.where(mask, rows, -math.inf))
    top = xp.max(known, axis=-1)[..., None] if known.shape[-1] else unit
    less_top = rows - xp.where(xp.isfinite(top), top, 0.0)
    share = sparsemax(less_top / unit, temperature=(number / unit)[..., 0], mask=mask)
    return xp.where(share == 0, 0.0, number * share)  # which may carry any cotangent
