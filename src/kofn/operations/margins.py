"""Logits of cosines with a margin on the one of each row's label, which is all that it touches.

(Tests: test_losses_family.py; on a device tests/kernels/gpu/interpreted/losses.py,
test_kernels_gpu.py.)
"""

from __future__ import annotations

from typing import Any

from kofn.arrays.kinds import Array, full_like, namespace
from kofn.arrays.typing import Tensor
from kofn.operations.operation import Operation
from kofn.operations.signatures import scores


def _back(
    backend: Any, x: Tensor, cotangent: Tensor, target: Tensor, slope: Tensor, t: float,
    ignored: int,
) -> Tensor:  # fmt: skip
    slopes: Tensor = backend.margin_gradients(x, cotangent, target, slope, t, ignored)
    return slopes


MARGINED = Operation(
    name="",
    takes="x n, target r, margin float, turned int, t float, ignored int, again any",
    gives="logits N, slope r",
    of=scores("x", "rows"),
    kernel=lambda backend, *own: backend.margins(*own[:-1]),
    plain=lambda x, target, again, **own: again(x, target, **own),
    back=(
        Operation(
            name="",
            takes="cotangent N, target r, slope r, t float, ignored int",
            gives="x n",
            of=scores("x", "rows"),
            kernel=_back,
        ),
    ),
    offered="RATED",
)
"""(x − margin)/T at labels, or if `turned` cos(φ + margin)/T, and x/T elsewhere.

`again` is for derivatives: again(x, target, margin=, turned=, t=, ignored=) is it.
"""


def at_labels(change: Any, cosine: Array, margin: Any, some: Array, others: Any) -> Array:
    """Return change(cosine, margin) of labels that count, and `others` in the place of the rest."""
    xp = namespace(cosine)
    # Both branches of a `where` are differentiated.
    return xp.where(some, change(xp.where(some, cosine, 0.0), margin), others)


def _placed_slopes(
    backend: Any, x: None, cotangent: Any, cosine: Any, labels: Any, margin: float, turned: int,
    t: float, steep: Any,
) -> Any:  # fmt: skip
    return backend.margin_gradients(cotangent, labels, cosine, margin, turned, 1 / t)


def _placed_back(
    _: None, cotangent: Any, cosine: Any, labels: Any, margin: float, turned: int, t: float,
    steep: Any,
) -> Any:  # fmt: skip
    """Return the cotangent of the scores with all of its derivatives."""
    some, slopes_of_all = cosine.isfinite()[..., None], cotangent / t
    place = labels[..., None].where(some, 0)
    slope = at_labels(steep[turned], cosine[..., None], full_like(cosine, (), margin), some, 1.0)
    at_place = slopes_of_all.gather(-1, place) * slope
    return slopes_of_all.scatter(-1, place, at_place)


def _placed_onward(_: object, x: None, cotangent: Any, labels: Any, cosine: Any, n: int) -> Any:
    """Return the cotangent of the scores for that of the labels' cosines."""
    some = cosine.isfinite()
    place, each = labels.where(some, 0), cotangent.where(some, 0.0)
    return cotangent.new_zeros((*labels.shape, n)).scatter(-1, place[..., None], each[..., None])


PLACED = Operation(
    name="",
    takes="x n, labels r, margin float, turned int, t float, steep any, n int",
    gives="logits n, cosine r",
    of=scores("x", "choice"),
    kernel=lambda backend, *own: backend.margins(*own[:-2])[:2],
    back=(
        Operation(
            name="",
            takes="cotangent n, cosine r, labels r, margin float, turned int, t float, steep any",
            gives="x n",
            of=scores("x", "choice"),
            kernel=_placed_slopes,
            plain=_placed_back,
        ),
    ),
    onward=Operation(
        name="",
        takes="cotangent r, labels r, cosine r, n int",
        gives="x n",
        of=scores("x", "choice"),
        kernel=_placed_onward,
    ),
    offered="margins",
)
"""The logits of MARGINED, on a CPU, for labels that are in range, or −1 where none counts.

The second answer is the cosine of the label, of which second derivatives are: so autograd keeps
numbers per row, and no scores. `steep` are the slopes of both changes at labels.
"""
