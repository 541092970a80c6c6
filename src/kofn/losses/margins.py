"""Cross-entropy of cosines with a margin: AM-softmax and ArcFace."""

from __future__ import annotations

import math
from typing import Any, Never

from kofn.adapters import labelled, route
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
from kofn.arrays.tracing import is_at_hand
from kofn.arrays.typing import ArrayT, Reduction
from kofn.losses import at_once
from kofn.losses.fenchel_young import softmax_loss
from kofn.losses.targets import Target, prepared
from kofn.losses.targets import labelled as target_of_labels
from kofn.operations.margins import PLACED, at_labels
from kofn.operations.truncated import TRUNCATED_LOSS
from kofn.rows.given import without_deleted
from kofn.rows.numbers import NUMBERS

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


def _tilt(cosine: Array, margin: Array) -> Array:
    """Return the slope of `_turned` in the cosine."""
    xp = namespace(cosine)
    square = (1 - cosine) * (1 + cosine)
    inside = square > 4 * float(xp.finfo(cosine.dtype).eps)
    per_sine = xp.where(inside, cosine / xp.sqrt(xp.where(inside, square, 1.0)), 0.0)
    tilted = xp.cos(margin) + per_sine * xp.sin(margin)
    return xp.where(cosine > -xp.cos(margin), tilted, 1.0)


AT_TARGET: Any = (lambda cosine, margin: cosine - margin), _turned
SLOPES: Any = (lambda cosine, margin: cosine * 0.0 + 1.0), _tilt
"""Of the target's cosine with its margin, by whether that is an angle."""


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
    if type(margin) in NUMBERS and 0 <= margin < math.inf:  # another one is an error
        likely: Any = TRUNCATED_LOSS, (None, None), ("exponential", None)
        given: Any = *likely, cosines, target, temperature, dim, mask, reduction
        both: Any = labelled.reduced(*given, **options | dict(margin=(margin, turned, SLOPES)))
        if both is not None:
            return both
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
    form, change, t = checked.form, AT_TARGET[turned], checked.temperature
    with form.quiet():
        known = cast(without_deleted(cosines), compute_dtype(cosines))
        x = with_undivided_rows(form.turned(known))
        m = _margin(margin, cosines, form.n, x)
        if labels.labels is None or not form.n:
            return form, _over(_with_margins(change, x, m, labels), t)
        if is_at_hand(x) and type(t) is float and type(margin) in NUMBERS:
            ones, used = cast(labels.labels, form.xp.int64), labels.used
            ones = ones if used is None else form.xp.where(used, ones, -1)
            own = float(margin), turned, t, SLOPES, form.n
            logits = route.by_kernel(PLACED, x, ones, settings=own)
            if logits is not None:
                return form, logits
        return form, _placed(change, x, *_places(x, m, labels), t)


def _again(x: Array, target: Array, *, margin: float, turned: int, t: float, ignored: int) -> Array:
    """Return the logits of rows on a device with all of their derivatives."""
    labels = target_of_labels(target, x, stop_gradient(x), ignored, x.shape[-1])
    x = cast(without_deleted(x), compute_dtype(x))
    return _placed(AT_TARGET[turned], x, *_places(x, full_like(x, (), margin), labels), t)


def _placed(change: Any, x: Array, place: Array, some: Array, margin: Array, t: Any) -> Array:
    """Return `PLACED` by array code."""
    cosine = take_along_last(x, place)
    moved = at_labels(change, cosine, margin, some, cosine)
    return replaced_along_last(_over(x, t), place, _over(moved, t), is_own=True)


def _over(x: Array, t: Any) -> Array:
    return x / t if type(t) is float else divided(x, t[..., None])


def _with_margins(change: Any, x: Array, margin: Array, labels: Target) -> Array:
    """Add the margin to the target's cosines of rows, for weights as a target."""
    xp, wanted = namespace(x), labels.dense()[..., : x.shape[-1]]
    # An index out of range marks none; a cosine of −inf is out of play and has no angle.
    wanted = xp.where(xp.isnan(wanted) | xp.isinf(stop_gradient(x)), 0.0, wanted)
    # Both branches of a `where` are differentiated.
    at = xp.where(wanted == 0, 0.0, x)
    return x + xp.where(wanted == 0, 0.0, wanted * (change(at, margin) - at))


def _places(x: Array, margin: Array, labels: Target) -> tuple[Array, Array, Array]:
    """Return the place of the label of each row, whether the label counts, and its margin."""
    assert labels.labels is not None
    xp, place = namespace(x), labels.labels[..., None]
    some = ~xp.isinf(take_along_last(stop_gradient(x), place))
    for known in (labels.used, None if labels.valid is None else labels.valid == 1):
        some = some if known is None else some & known[..., None]
    return place, some, margin if margin.ndim == 0 else of_places(margin, place)


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
