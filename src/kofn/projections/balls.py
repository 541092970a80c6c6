"""Projections onto the l1 ball, and onto vectors with few entries."""

from __future__ import annotations

import math
from typing import Never

from kofn.arrays.kinds import Array, scalar
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import ArrayT
from kofn.maps.topk import hard_topk
from kofn.projections.simplex import on_simplex
from kofn.projections.vectors import along, vectors

__all__ = ["projection_l1_ball", "projection_sparse_vector"]


def projection_l1_ball(
    x: ArrayT, scale: float | Array = 1.0, *, dim: int | None = -1, **others: Never
) -> ArrayT:
    """Return argmin_p ‖p − x‖² for Σ|p| ≤ scale.

    A vector inside the ball stays as it is. Outside, its magnitudes are projected onto the simplex:
    each loses the same, and small ones become 0.

    Args:
        x, scale, dim: as for `projection_simplex`.

    Returns:
        An array like `x`.

    Raises:
        TypeError, ValueError: as for `projection_simplex`.

    Source: Duchi et al., "Efficient Projections onto the l1-Ball" (2008).

    Example:
        >>> import numpy as np
        >>> from kofn.projections import projection_l1_ball
        >>> projection_l1_ball(np.array([[1.5, -1.0, 0.25], [0.5, -0.25, 0.0]]))
        array([[ 0.75, -0.25,  0.  ],
               [ 0.5 , -0.25,  0.  ]])
    """
    if others:
        raise unknown_keyword(projection_l1_ball, others)
    given = vectors(x, dim)
    rows, xp = given.rows, given.form.xp
    size = along(given.per_vector("scale", scale, positive=True))
    sizes, sign = xp.abs(rows), xp.where(rows < 0, scalar(rows, -1.0), 1.0)
    with given.form.quiet():
        inside = xp.sum(sizes, axis=-1)[..., None] <= size
        return given.restored(xp.where(inside, rows, sign * on_simplex(given, sizes, scale)))


def projection_sparse_vector(
    x: ArrayT, k: int | Array, *, dim: int | None = -1, **others: Never
) -> ArrayT:
    """Return argmin_p ‖p − x‖² for at most k entries of p other than 0: the k largest by magnitude.

    Args:
        x, dim: as for `projection_simplex`.
        k: as for `projection_sparse_simplex`. Of equal magnitudes, the first ones are kept.

    Returns:
        An array like `x`, whose gradient goes to the entries that are kept. A vector with a NaN
        becomes NaN.

    Raises:
        TypeError: x has another kind or dtype.
        ValueError: k is outside of [0, n]; a shape that does not fit.

    Source: Blumensath & Davies, "Iterative Thresholding for Sparse Approximations" (2008).

    Example:
        >>> import numpy as np
        >>> from kofn.projections import projection_sparse_vector
        >>> projection_sparse_vector(np.array([0.5, -2.0, 1.0, -0.25]), 2)
        array([ 0., -2.,  1.,  0.])
    """
    if others:
        raise unknown_keyword(projection_sparse_vector, others)
    given = vectors(x, dim)
    rows, xp = given.rows, given.form.xp
    kept = hard_topk(xp.abs(rows), given.count(k))
    bad = xp.isnan(kept) | xp.any(xp.isnan(rows), axis=-1)[..., None]
    # Not a product: 0 · ∞ is NaN.
    return given.restored(xp.where(bad, math.nan, xp.where(kept > 0, rows, 0.0)))
