"""Kernels of calls like earlier ones on torch tensors, kept by the shape; autograd knows nothing of
them (test_adapters_short.py, test_nn_router_quantile_limits.py).
"""

from __future__ import annotations

import sys
from typing import Any

from kofn import kernels
from kofn.arrays import torch as of_torch
from kofn.kernels.contract import kind_of
from kofn.links import exponential
from kofn.links.link import BuiltIn, by_id
from kofn.operations.operation import Operation
from kofn.rows.given import Given

MOST = 256
"""Kernels that are kept; before there are more, all are forgotten."""

OF_CHOICES = 1.0, exponential.id, None  # the temperature and the link of kernels without

_kept: dict[Any, Any] = {}
"""By the shape of the rows and all that the kernel knows of them; or that there is none."""


def run_of(operation: Operation, x: Any, k: Any, t: Any, link: Any, alpha: Any) -> Any:
    """Return the function of cpu/ready.py that runs an operator on such a tensor, or None.

    The numbers are a compiled program's, which has the kernels that it was traced with.
    """
    key = operation.ready, x.shape, x.dtype, k, t, link, alpha
    run = _kept.get(key)
    if run is None:
        run = _keep(key, _run_of(operation, x, k, t, link, alpha))
    usual = run and x.is_cpu and x.is_contiguous() and not x.is_neg()
    return run if usual else None


def _run_of(operation: Operation, x: Any, k: Any, t: Any, link: Any, alpha: Any) -> Any:
    usual = type(k) is type(t) is float and type(alpha) in (float, type(None))
    inner, ready = by_id(link, alpha) if usual and x.is_floating_point() else None, kernels.ready()
    if inner is None or ready is None or not x.is_cpu:
        return None
    if kind_of(inner) is None or not ready.serves(operation.ready, x.shape, x.itemsize):
        return None
    rows = ready.Rows(tuple(x.shape), x.dtype, k, t, inner)
    return getattr(ready, operation.ready)(rows)


def again(operation: Operation, rows: Given) -> Any:
    """Return kernels whose `weights` are of short rows like these, k and T arrays; or None."""
    x: Any = rows.scores
    link, make = rows.link, getattr(kernels.ready(), f"{operation.ready}_again", None)
    if make is None or not x.is_cpu or not isinstance(link, BuiltIn):
        return None
    return make(tuple(x.shape), x.dtype, link) if kernels.ready().are_few(x.shape) else None


def tally(indices: Any, counts: Any) -> bool:
    """Add to counts how often indices name them, all at hand; return whether it was done."""
    torch = sys.modules["torch"]
    if not (is_usual(indices, torch.int64) and is_usual(counts, torch.int64)):
        return False
    ready = kernels.ready() if kernels.wanted() else None
    if ready is not None:
        ready.loads.tally(indices, counts)
    return ready is not None


def tally_of(scores: Any) -> Any:
    """Return what adds up the choices of such scores where these are, without a wait; or None."""
    if not of_torch.state.is_plain(scores):
        return None
    chooser = kernels.serving_of("choice", scores, "torch", offered="tally")
    return None if chooser is None else chooser.tally


def required(scores: Any, bias: Any, k: Any, mean: Any, tokens: Any) -> bool:
    """Add the bias that rows of scores require to a mean, as nn/routing/quantile.py says; return
    whether that was possible: the numbers are finite, and all of them at hand.
    """
    usual = _are_tokens(scores, bias, mean, counts=tokens)
    run = _load("required", scores, k) if usual else None
    return bool(run and run(scores, bias, mean, tokens))


def binned(scores: Any, bias: Any, k: Any, outliers: Any, histogram: Any, bins_of: Any) -> bool:
    """Count what rows of scores require, as nn/routing/quantile.py says; return likewise.

    `outliers` are the `allowed_outliers` of histogram.py, `bins_of` is a function of the range.
    """
    usual = _are_tokens(scores, bias, counts=histogram)
    run = _load("binned", scores, k, *outliers) if usual else None
    return bool(run and run(scores, bias, histogram, bins_of))


def _are_tokens(scores: Any, *others: Any, counts: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not of_torch.state.is_eager(scores) or scores.ndim != 2:
        return False
    usual = (is_usual(each, torch.float32) for each in (scores, *others))
    return is_usual(counts, torch.int64) and all(usual)


def _load(name: str, scores: Any, k: Any, *settings: Any) -> Any:
    """Return that function of choice/loads.py, or None."""
    if type(k) is not int or not kernels.wanted():
        return None
    key = name, scores.shape, k, *settings
    run = _kept.get(key)
    if run is None:
        ready, shape = kernels.ready(), tuple(scores.shape)
        serves = ready is not None and ready.takes(shape)
        run = _keep(key, getattr(ready.loads, name)(shape, k, *settings) if serves else False)
    return run


def is_usual(x: Any, dtype: Any) -> bool:
    """Return whether the memory of a tensor holds its numbers, of that dtype, in order."""
    usual = type(x) is sys.modules["torch"].Tensor and x.dtype is dtype and x.is_cpu
    return usual and x.is_contiguous() and not x.is_neg()


def _keep(key: Any, run: Any) -> Any:
    if len(_kept) >= MOST:
        _kept.clear()
    _kept[key] = run or False
    return run
