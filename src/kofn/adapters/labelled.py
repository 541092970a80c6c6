"""Losses of plain torch tensors for one label per row, or weights, with their mean, as one node of
autograd (test_adapters_labelled.py).

Of rows and labels that are as usual, nothing but the sum of the losses has to be looked at: a label
out of range, and a row that does not count, would show there.
"""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import Any

from kofn import kernels, links
from kofn.arrays import torch as of_torch
from kofn.links import table
from kofn.operations.losses import IN_CACHE, LOSS, together
from kofn.operations.operation import Operation
from kofn.rows.given import ONE, given_for_kernels
from kofn.rows.numbers import NUMBERS

MOST = 256
"""Calls that are kept; before there are more, all are forgotten."""

_kept: dict[Any, Any] = {}
"""By all but the numbers of scores and target: their Call, or False if there is none."""


def reduced(
    operation: Operation, settings: tuple[Any, ...], link: tuple[Any, Any], scores: Any,
    target: Any, temperature: Any, dim: Any, mask: Any, reduction: Any,
    weight: Any = None, label_smoothing: Any = 0.0, ignore_index: Any = -100, k: Any = ONE,
    margin: Any = None,
) -> Any:  # fmt: skip
    """Return the mean or the sum of losses whose slope is (p − t)/T, or of −log p; None if the call
    is another. With a `margin`, settings of PLACED, return the logits, too.

    `link` is one by its name, or as an object, and alpha of entmax, or None; other arguments are
    the caller's, unchecked.
    """
    if mask is not None or weight is not None or type(label_smoothing) not in NUMBERS:
        return None
    if label_smoothing != 0 or type(reduction) is not str or not are_rows(scores, target, dim):
        return None
    torch, shape, dtype = sys.modules["torch"], scores.shape, target.dtype
    is_labels = dtype is torch.int64 and target.shape == shape[:-1]
    if not (is_labels or (dtype in (scores.dtype, torch.bool) and target.shape == shape)):
        return None
    if type(ignore_index) is not int or type(temperature) not in NUMBERS:
        return None
    if type(link[0]) is not str or type(link[1]) not in (*NUMBERS, type(None)):
        return None
    if is_labels and is_narrow(scores) and (margin is not None or not operation.has_slopes):
        # Of these losses no kernel reads 16-bit scores; a wider copy of them costs far less.
        wide = reduced(
            operation, settings, link, scores.float(), target, temperature, dim, None, reduction,
            None, 0.0, ignore_index, k, margin,
        )  # fmt: skip
        return (wide[0], wide[1].to(scores.dtype)) if type(wide) is tuple else wide
    own = is_labels, settings, link, temperature, reduction, ignore_index, k, margin
    key = operation, shape, scores.dtype, dtype, *own
    call: Any = _kept.get(key)
    if call is None:
        if len(_kept) >= MOST:
            _kept.clear()
        _kept[key] = call = _call_of(operation, scores, target, *own) or False
    if not call:
        return None
    if scores.requires_grad and torch.is_grad_enabled():
        return call.applied(scores, target)
    answers = call.answers(scores, target, False)
    return None if answers is None else answers[0]


def _of_wider(ready: Any, scores: Any, each: Any) -> Any:
    """Return a kernel of losses of 16-bit scores like these, by a wider copy where one thread
    works: it takes less time than blocks of few rows.
    """
    wider, count = ready.wider(scores), scores.numel()
    return lambda x, *own: each(wider(x), *own) if ready.is_for_one(count) else None


def _of_wider_rows(ready: Any, scores: Any, kernel: Any) -> Any:
    """Return the same of an operation's kernel, which otherwise goes by blocks."""
    wider, count = ready.wider(scores), scores.numel()

    def of_rows(backend: Any, rows: Any, *own: Any) -> Any:
        if ready.is_for_one(count):
            rows = rows._replace(scores=wider(rows.scores))
        return kernel(backend, rows, *own)

    return of_rows


def is_narrow(scores: Any) -> bool:
    """Return whether the scores are of 16-bit floats."""
    return bool(scores.is_floating_point() and scores.itemsize == 2)


def are_rows(scores: Any, target: Any, dim: Any) -> bool:
    """Return whether these are plain tensors in main memory, with rows along the last dimension."""
    state = None if sys.modules.get("torch") is None else of_torch.state
    if state is None or not (state.is_eager(scores) and state.is_eager(target)):
        return False
    known = scores.is_cpu and target.is_cpu and kernels.wanted()
    return bool(known and type(dim) is int and dim == -1)


def _call_of(
    operation: Operation, scores: Any, target: Any, is_labels: bool, settings: Any, link: Any,
    temperature: Any, reduction: str, ignored: int, k: Any, margin: Any,
) -> Any:  # fmt: skip
    """Return a Call of torch/labelled.py for such arguments; None if they do not make one."""
    torch, shape = sys.modules["torch"], scores.shape
    # Only slopes, p − t, are wider than such scores, so that nothing is rounded twice.
    served = torch.is_floating_point(scores) and (scores.itemsize > 2 or operation.has_slopes)
    if not served or 0 in shape or 0 <= ignored < shape[-1] or reduction not in ("mean", "sum"):
        return None
    if k is not ONE and not 1 <= k <= shape[-1]:
        return None
    whole = table.resolve(link[0]) if link[1] is None else links.entmax(link[1])
    k = k if k is ONE else float(k)
    given = given_for_kernels(scores, k, whole, temperature, -1, None)
    asked = given.link if operation.has_link else None
    backend = kernels.serving_of(operation.of.kernels, scores, "torch", asked, operation.offered)
    alpha = given.link.alpha
    if backend is None or not (alpha is None or (is_labels and type(alpha) is float)):
        return None
    if not is_labels and operation is not LOSS:
        return None
    if margin is not None and (scores.itemsize == 2 or not is_labels):
        return None
    home = import_module(f"{__package__}.torch.labelled")
    make = home.Call
    count = math.prod(shape[:-1]) if reduction == "mean" else 1
    left = operation.of.without_tensors(given)
    if margin is not None:
        return home.with_margin(margin, given, backend, settings, count)
    each, share, ready = None, 1, kernels.ready()
    narrow = is_narrow(scores)
    copied = narrow and scores.numel() <= IN_CACHE and target.dtype is not scores.dtype
    if operation is not LOSS:
        kernel = operation.kernel
        kernel = _of_wider_rows(ready, scores, kernel) if copied else kernel
        return make(operation, kernel, backend, left, settings, count)
    if math.prod(shape[:-1]) <= ready.MOST and copied == narrow:
        # Products with powers of 2 have no rounding, whatever comes first.
        share = count if temperature == 1 and count & (count - 1) == 0 else 1
        dtype = torch.float32 if narrow else scores.dtype
        rows = ready.Rows(tuple(shape), dtype, *map(float, given[1:3]), given.link)
        each = ready.losses(rows, target, share)
        each = _of_wider(ready, scores, each) if copied and each is not None else each
    share = 1 if each is None else share
    return make(operation, together, backend, left, settings, count, each, share)
