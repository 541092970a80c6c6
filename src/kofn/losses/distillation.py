"""The divergence of a student from a teacher who names its k most likely tokens alone."""

from __future__ import annotations

import math
from typing import Any, Literal, Never

from kofn import links
from kofn.adapters import route
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_choice, check_flag, check_same_kind
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import Array, adopt, cast, compute_dtype, dtype_name, full_like, is_torch
from kofn.arrays.names import unknown_keyword
from kofn.arrays.operations import as_indices, divided_as, take_along_last, with_undivided_rows
from kofn.arrays.tracing import at_hand, is_known
from kofn.arrays.typing import ArrayT, Reduction
from kofn.formulas import named as formulas
from kofn.losses.reduced import of_counted, over_rows
from kofn.losses.targets import check_reduction
from kofn.operations.rest import REST, plain
from kofn.rows.given import ONE, Given, given_for_kernels, without_deleted
from kofn.rows.kept import PADDING

__all__ = ["topk_kl"]

Tail = Literal["bucket", "renormalise"]
TAILS = ("bucket", "renormalise")


def topk_kl(
    scores: ArrayT,
    ids: Array,
    log_probs: Array,
    *,
    tail: Tail = "bucket",
    reverse: bool = False,
    temperature: float | Array = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    reduction: Reduction = "mean",
    **others: Never,
) -> ArrayT:
    """Return Σ_T p·log(p/q) + (1 − P)·log((1 − P)/(1 − Q)), KL(p‖q) on T and a bucket for the rest.

    T are the tokens that a teacher names, its k most likely, with log p; q = softmax(scores/T) is
    the student, P = Σ_T p and Q = Σ_T q. It is the divergence of two distributions over k + 1
    categories: ≥ 0, at most KL(p‖q) over all tokens, and equal to it where T has all of them. The
    sum over T alone is none of this: where Q > P it is negative.

    Both tails keep their digits where P and Q round to 1: 1 − P is taken from the logarithms, and
    1 − Q from the scores outside of T.

    Args:
        scores: the student's logits, torch.Tensor, jax.Array or numpy.ndarray of floats.
        ids: integers, the indices of T in each row: the batch shape and a last dimension k. −1 is
            padding; the others of a row differ.
        log_probs: the teacher's log p of these tokens, like `ids`, in the precision that it has. No
            gradient reaches it.
        tail: "bucket", or "renormalise": KL of p/P and q/Q on T, blind to the rest.
        reverse: KL(q‖p) in place of KL(p‖q). A named token with log p = −inf then costs +inf. Where
            the teacher's p sum to 1 up to rounding, the rest is taken to have half a rounding unit.
        temperature, dim, mask: as for `soft_topk`; of the student alone.
        reduction: "mean" over the rows with a named token and an available entry, "sum", or "none".

    Returns:
        A scalar, or the batch shape for "none"; float32 for half-precision scores. Differentiable
        any number of times; in eager PyTorch no array has the size of the scores but the gradient.

    Raises:
        TypeError, ValueError: as for `soft_topk`; ids or log_probs of another kind or shape, an
            unknown tail. Ids out of range are an error where they can be read, else NaN.

    Example:
        >>> import numpy as np
        >>> from kofn.losses import topk_kl
        >>> student = np.log(np.array([[0.6, 0.3, 0.1]]))
        >>> ids, log_p = np.array([[0]]), np.log(np.array([[0.9]]))
        >>> topk_kl(student, ids, log_p).round(4)
        np.float64(0.2263)
        >>> topk_kl(student, ids, log_p, reverse=True).round(4)
        np.float64(0.3112)
        >>> topk_kl(student, ids, log_p, tail="renormalise").round(4)
        np.float64(0.0)
    """
    if others:
        raise unknown_keyword(topk_kl, others)
    check_reduction(reduction)
    check_choice("tail", tail, TAILS)
    check_flag("reverse", reverse)
    form = form_of(scores, dim)
    entries, log_p = check_named(ids, log_probs, scores, form)
    check_range(entries, form.n)
    halves = mask is None
    checked = given_for_kernels(
        scores, ONE, links.exponential, temperature, dim, mask, halves=halves
    )
    with checked.form.quiet():
        x, xp = with_undivided_rows(checked.scores), form.xp
        checked = checked._replace(scores=x)
        entries, log_p = divided_as(entries, x), divided_as(log_p, x)
        there, wrong = entries != PADDING, (entries < PADDING) | (entries >= form.n)
        t = checked.temperature
        if not (form.n and entries.shape[-1]):  # no row counts
            nothing = cast(x[..., :0], compute_dtype(x)) / (t if type(t) is float else t[..., None])
            none = xp.sum(nothing, axis=-1), xp.any(there, axis=-1)
            return over_rows(*of_counted(*none, None), reduction)
        own = take_along_last(x, xp.where(there & ~wrong, entries, 0))
        own = xp.where(there & wrong, math.nan, cast(without_deleted(own), compute_dtype(x)))
        each = full_like(own, form.batch, t) if type(t) is float else t
        of = formulas.named(own, there, log_p, each)
        rest = None
        if tail == "bucket":
            rest = _rest(checked, xp.where(there & ~wrong, entries, x.shape[-1]), of.base)
        loss: Any = formulas.divergence(of, rest, reverse=reverse)
        return over_rows(*of_counted(loss, formulas.counted(there, x), None), reduction)


def _rest(checked: Given, entries: Array, base: Array) -> Any:
    """Return the logarithm of what the student's other entries have."""
    x = checked.scores
    if is_torch(x) and is_known(x):  # on any device
        return route.computed(REST, None, checked, (entries, base))
    if is_torch(x):
        return route.answer(REST, checked, entries, base)
    return plain(checked, entries, base)


def check_named(ids: Any, log_probs: Any, scores: Any, form: Form) -> tuple[Array, Array]:
    """Return the ids and logarithms of named entries of rows, without a gradient."""
    for name, value in (("ids", ids), ("log_probs", log_probs)):
        check_same_kind(name, value, scores)
    if not dtype_name(ids).startswith(("int", "uint")):
        raise TypeError(f"ids must be integers; got dtype {ids.dtype}")
    if not dtype_name(log_probs).startswith(("float", "bfloat")):
        raise TypeError(f"log_probs must be floats; got dtype {log_probs.dtype}")
    shape = tuple(ids.shape)
    if shape[:-1] != form.batch or not shape:
        raise ValueError(
            f"ids must have the batch shape {form.batch} (scores.shape without dim) and a last "
            f"dimension, the named tokens; got {shape}"
        )
    if tuple(log_probs.shape) != shape:
        raise ValueError(
            f"log_probs must have the shape of ids, {shape}; got {tuple(log_probs.shape)}"
        )
    entries = as_indices(adopt(ids, scores))  # of unsigned numbers, none is padding
    log_p = stop_gradient(adopt(log_probs, scores))
    single = dtype_name(log_p) in ("float16", "bfloat16", "float32")
    return entries, cast(log_p, form.xp.float32 if single else form.xp.float64)


def check_range(ids: Any, n: int) -> None:
    """Refuse ids that rows of n entries do not have, if reading them waits for no device."""
    known = at_hand(ids)
    if known is None or not math.prod(ids.shape):
        return
    least, most = int(known.min()), int(known.max())
    if least < PADDING or most >= n:
        bad = least if least < PADDING else most
        raise ValueError(f"ids must be in [0, {n}), or {PADDING} for padding; got {bad}")
