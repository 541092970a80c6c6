"""Fenchel–Young losses of rows, and cross-entropy at labels.

The slope of a loss in the scores is (p − t)/T, which the kernels write in the place of p; its slope
in T is −Σ(p − t)z/T.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kofn import kernels
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.kinds import Array, cast, compute_dtype, dtype_name, namespace
from kofn.arrays.operations import as_numbers, at_labels, marked
from kofn.arrays.typing import Tensor
from kofn.formulas import answers, implicit, pullbacks, sloped
from kofn.links.link import Link
from kofn.operations.by_kernel import in_memory, put, weights_by_kernel
from kofn.operations.closed import closed
from kofn.operations.operation import Operation
from kofn.operations.signatures import ROWS
from kofn.operations.topk import AT_ONCE, WEIGHTS
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of
from kofn.solver.reductions import DENSE, Reductions

Backend = kernels.RowKernels
IN_CACHE = 1 << 17
"""Entries of a float32 product that is rounded to 16 bits, or of a copy of scores of 16 bits."""


def _by_kernel(backend: Backend, given: Given, *own: Any) -> tuple[Array | None, ...]:
    return loss_and_slopes(backend, given, *own)[:3]


def loss_and_slopes(
    backend: Backend, given: Given, target: Array, likely: int, slopes: int, of_alpha: int = 0
) -> tuple[Array | None, ...]:
    """Return the losses of rows and, if `slopes`, p − t and Σ(p − t)z; their slopes in alpha.

    k is the sum of a target of weights. If `likely`, the losses are −log p of labels.
    """
    loss, residual, lever, in_alpha = _together(backend, given, target, likely, slopes, of_alpha)
    if not slopes:
        return _own(loss), None, None, in_alpha
    if likely and type(given.temperature) is not float:
        in_t = from_labels(given.scores, target, residual) / given.temperature
        return _own(loss), residual, in_t, in_alpha
    return _own(loss), residual, _own(lever), in_alpha


def together(backend: Backend, given: Given, target: Array, likely: int, slopes: int) -> Any:
    """Return the same as parts of one array, which no operator may answer."""
    return _together(backend, given, target, likely, slopes, 0)[:3]


def _together(
    backend: Backend, given: Given, target: Array, likely: int, slopes: int, of_alpha: int
) -> tuple[Array, Any, Array, Any]:
    x, k, temperature, link = given[:4]
    if target.ndim == x.ndim:
        target = target_of(x, target)
    wanted = dict(of_alpha=True) if of_alpha else {}
    rows = x, target, k, temperature, link
    losses, residual, lost, *in_alpha = backend.losses(*rows, bool(likely), bool(slopes), **wanted)
    if lost:
        wide = given.wide()
        if target.ndim == x.ndim:
            target = as_numbers(target, wide.scores.dtype)
            wide = wide._replace(k=namespace(x).sum(target, axis=-1))
        losses, residual, *in_alpha = _by_parts(backend, wide, target, bool(likely), wanted)
    return losses[0], residual, losses[1], in_alpha[0] if in_alpha else None


def _own(part: Array) -> Array:
    """Return a tensor that shares no memory with its neighbours."""
    return part.clone() if hasattr(part, "clone") else part


def _by_parts(
    backend: Backend, given: Given, target: Array, likely: bool, wanted: dict[str, bool]
) -> tuple[Array, ...]:
    """Return losses with Σ(p − t)z, (2, …), and p − t, where the kernel gave up on rows.

    And the slopes in alpha, if they are wanted.
    """
    known, own = weights_by_kernel(backend, given), (given.scores, target, *given[1:4])
    losses, residual, lost, *in_alpha = backend.losses(*own, likely, known=known, **wanted)
    if lost:
        where = np.isnan(in_memory(losses)[0])
        x, k, temperature = (in_memory(array)[where] for array in given.per_row()[:3])
        with np.errstate(all="ignore"):
            link = given.link.map_alpha(lambda alpha: in_memory(alpha)[where])
            rows = rows_of(Given(x, k, temperature, link))
            theta = tuple(one[where] for one in in_memory(known[1]))
            put(losses[0], where, answers.loss(rows, in_memory(target)[where], theta=theta))
    return losses, residual, *in_alpha


def target_of(x: Array, target: Array) -> Array:
    """Return a target of weights in a dtype that `RowKernels.losses` takes, without rounding it."""
    name = dtype_name(target)
    if name in ("bool", "uint8"):
        return target
    exact = not name.startswith(("float", "bfloat")) or target.dtype == x.dtype
    return cast(target, x.dtype if exact else compute_dtype(x))


def from_labels(x: Any, labels: Array, residual: Any) -> Any:
    """Return Σ(p − t)(x − x_t): Σ(p − t) is 0, so the sum may be taken from any score."""
    x = cast(x, residual.dtype)
    apart = (x - x.gather(-1, labels[..., None])).masked_fill(residual == 0, 0.0)
    return (residual * apart).sum(-1)


def pulled_back(
    _: object, given: Given, cotangent: Array, residual: Tensor, lever: Array | None, dtype: Any
) -> tuple[Array, Array | None]:
    """Return the cotangents of the scores, and of a temperature per row."""
    temperature = given.temperature
    number = type(temperature) is float
    each = cotangent if number and temperature == 1 else cotangent / temperature
    in_t = None if lever is None or number else -each * lever
    return scaled(given.over.expand(each), residual, dtype), in_t


def scaled(each: Any, residual: Tensor, dtype: Any) -> Any:
    """Return p − t times one number of each row of tensors, (…, 1), or of all, in this dtype.

    A float32 product of whole tensors takes twice the memory of the answer, and leaves the cache.
    """
    most = IN_CACHE if residual.is_cpu else AT_ONCE
    if residual.dtype == dtype or residual.numel() <= most:
        return (each * residual).to(dtype)
    n, slopes = residual.shape[-1], residual.new_empty(residual.shape, dtype=dtype)
    each = each.reshape(-1, 1).expand(slopes.numel() // n, 1)
    whole = (slopes.view(-1, n), residual.view(-1, n), each)
    for into, some, by in zip(*(one.split(max(1, most // n)) for one in whole), strict=True):
        for part, entries in zip(into.split(most, -1), some.split(most, -1), strict=True):
            part.copy_(entries * by)
    return slopes


def _onward(
    _: object, given: Given, cotangent: Array, residual: Array, target: Array, lever: Array,
    likely: int,
) -> Array:  # fmt: skip
    """Return the cotangent of the scores for one of p − t, from which p and its slope are known."""
    if target.ndim == residual.ndim:
        return onward(given, cotangent, residual, cast(target, residual.dtype))
    target = cast(marked(residual, target[..., None]), residual.dtype)
    known, p = not likely and not given.link.smooth, stop_gradient(residual + target)
    of_label = _of_label(given.link, p, target, lever) if known else None
    return onward(given, cotangent, residual, target, of_label)


def onward(
    given: Given, cotangent: Array, residual: Array, target: Array, of_label: Array | None = None
) -> Array:
    """Return the same for a target of weights; `of_label` is p of a label, if it is known.

    Where it is far below 1, p − 1 has fewer of its digits.
    """
    p, over = residual + target, given.over
    if of_label is not None:
        low = (target == 1) & (p < 0.5)
        p = p + namespace(p).where(low, of_label[..., None] - stop_gradient(p), 0.0)
    lone = over.expand(over.sum(target)) <= 1
    return pullbacks.through_weights(cotangent, given, p, (1 - target) - residual, lone)


def _of_label(link: Link, p: Array, target: Array, lever: Array) -> Array:
    """Return p = F(z) of the label, whose z follows from Σ(p − t)z and the other entries' z."""
    xp = namespace(p)
    others = xp.where((p > 0) & (target == 0), p, 0.0)
    z = link.quantile(xp.where(others > 0, others, 0.5))
    return link.cdf((xp.sum(others * z, axis=-1) - lever) / xp.sum((1 - p) * target, axis=-1))


def _loss(
    rows: Rows, target: Array, likely: int, over: Reductions = DENSE, theta: Any = None
) -> Array:
    if likely:
        return -at_labels(answers.log_softmax(rows), target)
    if target.ndim < rows.scores.ndim:
        target = marked(rows.scores, target[..., None])
    return answers.loss(rows, cast(target, rows.scores.dtype), over, theta=theta)


def with_number(given: Given, target: Array) -> Given:
    """Return rows with the sum of a target of weights as their k."""
    return given._replace(k=given.over.sum(as_numbers(target, compute_dtype(given.scores))))


def _with_number(given: Given, target: Array) -> Given:
    return with_number(given, target) if target.ndim == given.scores.ndim else given


def _compared(
    rows: Rows, target: Array, likely: int, *, over: Reductions, theta: Any
) -> tuple[Array, Array]:
    """Return the losses and p − t, which is 0 where the loss is a constant."""
    xp = namespace(rows.scores)
    if target.ndim < rows.scores.ndim:
        target = cast(_marked(rows.scores, target[..., None], over), rows.scores.dtype)
    if likely:
        logs = answers.log_softmax(rows, over=over)
        loss = -over.sum(xp.where(target > 0, logs, 0.0))
        moves = rows.live & over.expand(xp.isfinite(loss))
        return loss, xp.where(moves, answers.softmax(rows, over) - target, 0.0)
    placed = implicit.place(rows, over, theta)
    residual = pullbacks.of_losses(xp.ones_like(rows.k), placed, rows, target)
    return answers.loss(rows, target, over, theta=theta), residual


def _marked(x: Array, labels: Array, over: Reductions) -> Array:
    """Return where the labels are; in shards they count from the first entry of the row."""
    positions = getattr(over, "positions", None)
    return marked(x, labels) if positions is None else positions(x.shape[-1]) == labels


LOSS = Operation(
    name="gap",
    takes="x n, target n, k #, t #, link, likely int, slopes int",
    gives="loss r, residual N if slopes, lever r if slopes",
    of=ROWS,
    kernel=_by_kernel,
    reference=_loss,
    without_theta="likely",
    back=(
        Operation(
            name="",
            takes="cotangent r, t #, residual N, lever r, dtype dtype",
            gives="x n, t r",
            of=ROWS,
            kernel=pulled_back,
            elementwise=True,
        ),
    ),
    prepared=_with_number,
    xla=lambda likely, labels: [
        "weights",
        "likelihoods" if likely else "label_losses" if labels else "losses",
    ],
    compared=_compared,
    moves_as=WEIGHTS,
    onward=Operation(
        name="",
        takes="cotangent N, residual N, target n, lever r, t #, link, likely int",
        gives="x n",
        of=ROWS,
        kernel=_onward,
        elementwise=True,
    ),
    # F′ = p^(2 − α) has no accurate digits next to p = 0, where p − t has not.
    goes_onward=lambda given, target: given.link.alpha is None or target.ndim < given.scores.ndim,
    offered="losses",
    each_alpha="LOSS",
    functions="fenchel_young_loss, topk_loss, sparsemax_loss, entmax_loss, segment_topk_loss",
)
_SLOPED: dict[str, Any] = dict(pullback=sloped.of_losses, keeps=("slope", "constant", "whole"))
PLAIN_LOSS = replace(
    closed("loss r", answers.loss, pullbacks.of_losses, "target n"), sloped=sloped.loss, **_SLOPED
)
"""The loss for a target of weights by array code: k is given, and is the sum of the target."""
LIKELIHOOD = Operation(
    name="",
    takes="x n, target n, k #, t #, link",
    gives="loss r",
    of=ROWS,
    kernel=lambda _, given, *arrays: sloped.cross_entropy(rows_of(given), *arrays, over=given.over),
    reference=sloped.cross_entropy,
    at_theta=False,
    sloped=sloped.likelihood,
    **_SLOPED,
)
"""Cross-entropy −Σ t·log softmax for a target of weights; k is 1."""
SMOOTHED_LIKELIHOOD = replace(LIKELIHOOD, takes="x n, target n, idle n, k #, t #, link")
"""The same with the entries whose share of the smoothing has the weight 0."""
