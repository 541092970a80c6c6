"""The cotangent of entmax's alpha, from the weights of rows alone."""

from __future__ import annotations

from kofn.arrays.kinds import Array, cast, namespace
from kofn.arrays.typing import ArrayT


def in_alpha(p: ArrayT, cotangent: Array, alpha: Array) -> ArrayT:
    """Return the cotangent of the alpha of each row for cotangents g of log p: in float64.

    The cotangents of p are g/p. It is Σ g (∂ log F − s Σ F ∂ log F/Σ F s), with F = p and s = F′/F.
    With a = α − 1 and L = log p, inside of the support s = e^{−aL} and, up to a multiple of s,
    which θ takes up, ∂ log F/∂α = −(L/a + (e^{−aL} − 1)/a²), which is −L²/2 at a = 0. A NaN in a
    row stays in it. Source: Correia, Niculae & Martins, "Adaptively Sparse Transformers" (2019),
    for k = 1.
    """
    xp = namespace(p)
    p, g = cast(p, xp.float64), cast(cotangent, xp.float64)
    a = (cast(alpha, xp.float64) - 1)[..., None]
    inside = (p > 0) & (p < 1)
    log, some = xp.log(xp.where(inside, p, 1.0)), xp.where(inside, p, 0.0)
    y = a * log  # ≤ 0
    e = xp.expm1(-y)
    series = xp.full_like(y, -1 / 5040)
    for each in (1 / 720, -1 / 120, 1 / 24, -1 / 6, 1 / 2):
        series = series * y + each
    near = y > -1e-2
    slope_of_log = log * log * xp.where(near, series, (y + e) / xp.where(near, 1.0, y * y))
    slope = e + 1
    total = xp.sum(some * slope, axis=-1)
    shift = xp.sum(some * slope_of_log, axis=-1) / xp.where(total > 0, total, 1.0)
    pulled = xp.sum(xp.where(inside, g, 0.0) * (slope_of_log - slope * shift[..., None]), axis=-1)
    return 0 * xp.sum(p, axis=-1) - pulled
