"""The choice of the code that solves for the thresholds: kernel, compiled or plain."""

from __future__ import annotations

import numpy as np

from kofn.arrays.kinds import Array, is_jax, is_torch
from kofn.links.link import Link
from kofn.rows import kernel_rows
from kofn.solver.reductions import DENSE, Reductions
from kofn.solver.segments import SegmentRows
from kofn.solver.threshold import solve


def threshold(
    x: Array, k: Array, temperature: Array, link: Link, over: Reductions = DENSE
) -> tuple[Array, Array]:
    """Solve as `kofn.solver.threshold.solve`, by the fastest route, without derivatives."""
    if over is not DENSE:
        return _of_other_rows(x, k, temperature, link, over)
    if is_torch(x):
        from kofn.rows.torch_threshold import threshold_of

        return threshold_of(x, k, temperature, link)
    if is_jax(x):
        from kofn.rows.jax_threshold import threshold as compiled

        return compiled(x, k, temperature, link)
    fused = kernel_rows.threshold(x, k, temperature, link)
    return solve(x, k, temperature, link) if fused is None else (fused[0], fused[1])


def _of_other_rows(
    x: Array, k: Array, temperature: Array, link: Link, over: Reductions
) -> tuple[Array, Array]:
    if is_torch(x) and isinstance(over, SegmentRows):
        from kofn.rows.torch_segments import threshold_of

        return threshold_of(x, k, temperature, link, over)
    if hasattr(over, "ranks"):
        from kofn.rows.group import search

        return search.threshold_of(x, k, temperature, link, over)  # type: ignore[arg-type]
    return solve(x, k, temperature, link, over)


def integral_ends(link: Link, like: Array) -> tuple[float, float, float]:
    """Return (z, G(−z), G(z) − z) at a large z as numbers, even while `like` is traced."""
    if is_torch(like):
        from kofn.rows.torch_threshold import integral_ends as ends

        return ends(link.id)
    if is_jax(like):
        from kofn.rows.jax_threshold import integral_ends as ends

        return ends(link.id)
    return link.integral_ends(np.asarray(2.0**26))
