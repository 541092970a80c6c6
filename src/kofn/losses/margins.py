"""Cross-entropy of cosines with a margin: AM-softmax and ArcFace."""

from __future__ import annotations

import math
from typing import Any, Never

from kofn.arrays.autodiff import divided, stop_gradient
from kofn.arrays.checks import check_mask, check_number, check_same_kind
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import (
    Array,
    cast,
    cast_like,
    compute_dtype,
    framework,
    full_like,
    is_torch,
    move_axis,
    namespace,
)
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import (
    of_places,
    replaced_along_last,
    take_along_last,
    with_undivided_rows,
)
from kofn.arrays.tracing import is_known
from kofn.arrays.typing import ArrayT, Reduction
from kofn.losses import at_once
from kofn.losses.fenchel_young import softmax_loss
from kofn.losses.targets import Target, labelled, prepared
from kofn.rows.given import without_deleted

__all__ = ["am_softmax", "arcface"]


def am_softmax(
    cosines: ArrayT,
    target: Array,
    *,
    margin: float | Array = 0.35,
    temperature: float | Array = 1 / 30,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> tuple[ArrayT, ArrayT]:
    """Return (loss, logits) of AM-softmax, logits = (cos − margin·target)/T.

    The target must lead by the margin. Use it to train embeddings for retrieval by classification.
    Measure accuracy from `cosines`, not from the logits, which contain the margin.

    Args:
        cosines: of the angle between each embedding and each class's centre, (…, n) along `dim`:
            `F.normalize(x) @ F.normalize(centres).T` in PyTorch.
        margin: a number, or one per class (n,), which may be learned.
        temperature: in cosines, the inverse of the scale of other libraries.
        target, dim, mask, weight, label_smoothing, ignore_index, reduction: as for
            `softmax_loss`.

    Returns:
        `softmax_loss` of the logits, and the logits, like `cosines`.

    Raises:
        TypeError, ValueError: as for `softmax_loss`; a `margin` of another shape.

    Source: Wang, Cheng, Liu & Liu, "Additive Margin Softmax for Face Verification" (2018).

    In the articles (docs/from_the_articles.md): AM-Softmax, a margin softmax.

    Example:
        >>> import numpy as np
        >>> from kofn.losses import am_softmax
        >>> loss, logits = am_softmax(np.array([[0.8, 0.3, -0.2]]), np.array([0]))
        >>> loss.round(4), logits.round(1)
        (np.float64(0.0110), array([[13.5,  9. , -6. ]]))
    """
    if others:
        raise unknown_keyword(am_softmax, others)
    return _with_margin(
        0, cosines, target, margin, temperature, dim, mask, reduction,
        weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index,
    )  # fmt: skip


def arcface(
    cosines: ArrayT,
    target: Array,
    *,
    margin: float | Array = 0.5,
    temperature: float | Array = 1 / 64,
    dim: int = -1,
    mask: Array | None = None,
    weight: Array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    **others: Never,
) -> tuple[ArrayT, ArrayT]:
    """Return (loss, logits) of ArcFace; the target's logit is cos(φ + margin)/T for a cosine cos φ.

    The margin is an angle. Beyond φ = π − margin, where cos(φ + margin) would rise again, the
    logit goes on falling as (cos φ − margin·sin margin)/T. At cos φ = ±1, where the slope of
    sin φ is infinite, it is taken as 0; cosines that rounding takes beyond are safe, too.

    Args:
        cosines, target, temperature, dim, mask, weight, label_smoothing, ignore_index, reduction:
            as for `am_softmax`.
        margin: an angle in [0, π), or one per class (n,), which may be learned.

    Returns:
        As for `am_softmax`.

    Raises:
        TypeError, ValueError: as for `am_softmax`.

    Source: Deng, Guo, Xue & Zafeiriou, "ArcFace: Additive Angular Margin Loss for Deep Face
    Recognition" (2019).

    Example:
        >>> import numpy as np
        >>> from kofn.losses import arcface
        >>> loss, logits = arcface(np.array([[0.8, 0.3, -0.2]]), np.array([0]))
        >>> loss.round(4), logits.round(1)
        (np.float64(0.0007), array([[ 26.5,  19.2, -12.8]]))
    """
    if others:
        raise unknown_keyword(arcface, others)
    if isinstance(margin, (int, float)) and margin >= math.pi:
        raise ValueError(f"margin must be an angle in [0, π), or an array; got {margin!r}")
    return _with_margin(
        1, cosines, target, margin, temperature, dim, mask, reduction,
        weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index,
    )  # fmt: skip


def _turned(cosine: Array, margin: Array) -> Array:
    """Return cos(φ + margin) for cos φ, continued so that it decreases in φ everywhere."""
    xp = namespace(cosine)
    square = (1 - cosine) * (1 + cosine)
    # Within rounding of ±1 the dtype would decide the slope of the root.
    inside = square > 4 * float(xp.finfo(cosine.dtype).eps)
    sine = xp.where(inside, xp.sqrt(xp.where(inside, square, 1.0)), 0.0)
    turned = cosine * xp.cos(margin) - sine * xp.sin(margin)
    return xp.where(cosine > -xp.cos(margin), turned, cosine - margin * xp.sin(margin))


AT_TARGET: Any = (lambda cosine, margin: cosine - margin), _turned


def _with_margin(
    turned: int,
    cosines: Array,
    target: Array,
    margin: Any,
    temperature: Any,
    dim: int,
    mask: Array | None,
    reduction: Reduction,
    **options: Any,
) -> tuple[Any, Any]:
    ignored = options["ignore_index"]
    form_of(cosines, dim, "cosines")  # errors name the argument by the caller's word
    if mask is not None:
        check_mask(mask, cosines, "cosines")
    known = at_once.with_margin(
        cosines, target, margin, turned, temperature, dim, reduction, ignored, _again
    )
    form, logits = known or _logits(
        cosines, target, margin, turned, temperature, dim, mask, reduction, ignored
    )
    dim = form.dim
    with form.quiet():
        shown = logits if dim == -1 else move_axis(logits, -1, dim)
        loss = softmax_loss(shown, target, dim=dim, mask=mask, reduction=reduction, **options)
        return loss, form.restored(logits)


def _logits(
    cosines: Array, target: Array, margin: Any, turned: int, temperature: Any, dim: int,
    mask: Array | None, reduction: Reduction, ignored: Any,
) -> tuple[Form, Any]:  # fmt: skip
    """Return the form of the cosines, and the logits of their rows."""
    checked, labels = prepared(
        cosines, target, temperature, dim, mask, reduction, ignore_index=ignored
    )
    form, at_target = checked.form, AT_TARGET[turned]
    with form.quiet():
        known = cast(without_deleted(cosines), compute_dtype(cosines))
        x = with_undivided_rows(form.turned(known))
        m, t = _margin(margin, cosines, form.n, x), checked.temperature
        if labels.labels is None or not form.n:
            return form, _over(_with_margins(at_target, x, m, labels), t)
        place, moved = _at_label(at_target, x, m, labels)
        if is_torch(x) and is_known(x) and type(t) is float:  # one array, and no copy of it
            numbers: Any = x / t
            return form, numbers.scatter_(-1, cast(place, form.xp.int64), moved / t)
        return form, _over(replaced_along_last(x, place, moved), t)


def _again(x: Array, target: Array, *, margin: float, turned: int, t: float, ignored: int) -> Array:
    """Return the logits of rows on a device with all of their derivatives."""
    labels = labelled(target, x, stop_gradient(x), ignored, x.shape[-1])
    x = cast(without_deleted(x), compute_dtype(x))
    place, moved = _at_label(AT_TARGET[turned], x, full_like(x, (), margin), labels)
    return _over(replaced_along_last(x, place, moved), t)


def _over(x: Array, t: Any) -> Array:
    return x / t if type(t) is float else divided(x, t[..., None])


def _with_margins(at_target: Any, x: Array, margin: Array, labels: Target) -> Array:
    """Add the margin to the target's cosines of rows, for weights as a target."""
    xp, wanted = namespace(x), labels.dense()[..., : x.shape[-1]]
    # An index out of range marks none; a cosine of −inf is out of play and has no angle.
    wanted = xp.where(xp.isnan(wanted) | xp.isinf(stop_gradient(x)), 0.0, wanted)
    # Both branches of a `where` are differentiated.
    at = xp.where(wanted == 0, 0.0, x)
    return x + xp.where(wanted == 0, 0.0, wanted * (at_target(at, margin) - at))


def _at_label(at_target: Any, x: Array, margin: Array, labels: Target) -> tuple[Array, Array]:
    """Return the places of one label per row, and the cosines there with the margin."""
    assert labels.labels is not None
    xp, place = namespace(x), labels.labels[..., None]
    cosine = take_along_last(x, place)
    margin = margin if margin.ndim == 0 else of_places(margin, place)
    some = ~xp.isinf(stop_gradient(cosine))
    for known in (labels.used, None if labels.valid is None else labels.valid == 1):
        some = some if known is None else some & known[..., None]
    at = xp.where(some, cosine, 0.0)
    return place, xp.where(some, at_target(at, margin), cosine)


def _margin(margin: Any, cosines: Array, n: int, x: Array) -> Array:
    if framework(margin) is None:
        number = check_number("margin", margin, low=0.0, allowed="a number ≥ 0")
        return full_like(x, (), number)  # one that is annealed is not to be kept
    check_same_kind("margin", margin, cosines, "cosines")
    if tuple(margin.shape) not in ((), (n,)):
        raise ValueError(
            f"margin must be one number, or one for each of the entries along dim, {(n,)}; "
            f"got the shape {tuple(margin.shape)}"
        )
    return cast_like(margin, x)
