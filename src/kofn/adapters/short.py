"""Calls on torch tensors like the tensors of a call before: nothing is checked again.

What follows from the shape, the dtype and the numbers of such a call takes longer to find than the
answer of a small one does. From the second call on it is kept here, of gates from the first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kofn import kernels
from kofn.adapters import kept_kernels
from kofn.adapters.kept_kernels import is_usual
from kofn.arrays import torch as of_torch
from kofn.arrays.dtensor import is_dtensor
from kofn.links import table
from kofn.links.link import BuiltIn
from kofn.operations.choice import GATES, LARGEST
from kofn.operations.operation import Operation
from kofn.operations.topk import WEIGHTS
from kofn.rows.given import ONE, Given, given_for_kernels, widened
from kofn.rows.numbers import NUMBERS

MOST = 256
"""Calls that are kept; before there are more, all are forgotten."""

_EAGER = f"{__package__}.torch.eager"
_kept: dict[Any, Any] = {}
"""By all but the scores: their Call of adapters/torch/eager.py, or whether there is one."""


def answer(
    operation: Operation, scores: Any, k: Any, link: Any, temperature: Any, dim: Any,
    learns: bool = True, call: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """Return the answer of an operation on scores; None if a call is to be checked.

    It has no gradient unless it `learns`. Its Call may be known.
    """
    if type(dim) is not int or dim != -1:
        return None
    if call is None:
        call = _kept_of(operation, scores, k, link, temperature)
    if not call:
        return None
    if mask is not None:
        scores = _masked(scores if learns else scores.detach(), mask)
        if scores is None:
            return None
    learned = learns and scores.requires_grad and sys.modules["torch"].is_grad_enabled()
    if learned:
        return sys.modules[_EAGER].apply(call, scores)
    p, _, lost = call.ready(scores, learned)
    return None if lost else p


def weights_and_places(scores: Any, k: int, link: Any, temperature: Any, dim: Any) -> Any:
    """Return the weights of unmasked scores, and the indices of the k largest, of a small call;
    None if it is to be checked.
    """
    if type(dim) is not int or dim != -1 or k <= 0 or not _are_few(scores):
        return None
    call = _kept_of(WEIGHTS, scores, k, link, temperature, True)
    run = call and kept_kernels.run_of(LARGEST, scores, float(k), *kept_kernels.OF_CHOICES)
    weights = answer(WEIGHTS, scores, k, link, temperature, dim, True, call) if run else None
    return None if weights is None else (weights, run(scores))


def _masked(scores: Any, mask: Any) -> Any:
    """Return scores with −inf where a mask says so; None if it is to be checked."""
    torch = sys.modules["torch"]
    usual = type(mask) is torch.Tensor and mask.dtype is torch.bool and mask.is_cpu
    if not usual or mask.layout is not torch.strided:
        return None
    if mask.shape not in (scores.shape, scores.shape[-1:]):
        return None
    # A checkpoint compares the shape of what is kept for the way back, and the answer of `where`
    # lies in memory as the mask does.
    return torch.where(mask.expand(scores.shape), scores, -math.inf).contiguous()


def _are_few(scores: Any) -> bool:
    """Return whether scores are those of an eager call on few rows in main memory."""
    if sys.modules.get("torch") is None or not of_torch.state.is_eager(scores):
        return False
    if not kernels.wanted() or not scores.is_cpu or scores.is_nested or scores.ndim == 0:
        return False
    ready = kernels.ready()
    return ready is not None and bool(ready.are_few(scores.shape))


def gates(
    scores: Any, k: Any, link: Any, temperature: Any, bias: Any, again: Callable[..., Any],
    counts: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Return (gates, indices, whether they were counted) of a normalized mixture, by one node of
    autograd; None as `answer`.

    The bias is per entry, or None. The function `again` of scores and indices returns gates that
    have second derivatives. None as well where a row has a NaN, which spoils its gates. To each of
    `counts`, at most two tensors, is added how often an entry is chosen, if all can be written.
    """
    if type(k) is not int or k <= 0:
        return None
    halves = scores.itemsize == 2 and _are_few(scores)
    if halves and not of_torch.state.is_autocast(scores):  # they are copied sooner than dealt with
        wide = gates(widened(scores), k, link, temperature, bias, again, counts)
        return None if wide is None else (wide[0].to(scores.dtype), *wide[1:])
    call = _kept_of(GATES, scores, k, link, temperature, True)
    if not call:
        return None
    if bias is not None:
        if not of_torch.state.is_plain(bias) or bias.shape != scores.shape[-1:]:
            return None
        bias = bias.resolve_neg().to(scores.dtype).contiguous()
    from kofn.adapters.torch.gates import apply

    for each in counts:
        if not is_usual(each, sys.modules["torch"].int64) or each.shape != scores.shape[-1:]:
            counts = ()
    shares, indices = apply(call, again, scores, bias, counts)
    return None if shares is None else (shares, indices, len(counts) > 0)


def compiled_gates(scores: Any, k: Any, link: Any, temperature: Any, bias: Any) -> Any:
    """Return (gates, indices) where torch.compile traces the caller, by an operator; or None."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(scores, torch.Tensor) or not of_torch.state.is_compiled():
        return None
    usual = scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64)
    if not usual or is_dtensor(scores) or type(temperature) is not float or type(k) is not int:
        return None
    fits = bias is None or (bias.shape == scores.shape[-1:] and not is_dtensor(bias))
    if not (fits and 0 < k <= scores.shape[-1] and 0 < temperature < math.inf) or 0 in scores.shape:
        return None
    from kofn.adapters.torch import compiled_gates

    return compiled_gates.gates(scores, k, table.resolve(link).inner, temperature, bias)


def _kept_of(
    operation: Operation, x: Any, k: Any, link: Any, temperature: Any, at_once: bool = False
) -> Any:
    """Return the Call kept for such a call, or made `at_once`; false if there is none."""
    if sys.modules.get("torch") is None or not of_torch.state.is_eager(x) or not x.is_cpu:
        return None
    if type(temperature) not in NUMBERS or (type(k) not in NUMBERS and k is not ONE):
        return None
    which = link if type(link) is str else _which(link)
    if which is None or x.is_nested or x.is_neg() or not x.is_contiguous():
        return None
    key = operation, x.shape, x.dtype, k, which, temperature
    kept = _kept.get(key)
    if kept is None:
        if len(_kept) >= MOST:
            _kept.clear()
        _kept[key] = kept = True
        # A checkpoint that runs this call again has to keep the same tensors for its way back.
        if not at_once:
            return None
    if kept is True:
        given = given_for_kernels(x, k, table.resolve(link), temperature, -1, None, halves=True)
        _kept[key] = kept = _call_of(operation, given) or False
    return kept if kernels.wanted() else None


def _which(link: Any) -> tuple[str, float | None] | None:
    """Return what says which built-in link an object is; None for any other."""
    if not isinstance(link, BuiltIn) or type(link.alpha) not in (float, type(None)):
        return None
    return link.id, link.alpha


def _call_of(operation: Operation, given: Given) -> Any:
    """Return a Call for such arguments, or None if there is none."""
    x, k, t, link, form, _ = given
    backend = kernels.serving_of("rows", x, "torch", link, operation.offered)
    numbers = k, t, 0.0 if link.alpha is None else link.alpha
    if backend is None or any(type(each) is not float for each in numbers):
        return None
    ready = kernels.ready()
    if not form.n or not ready.serves(operation.ready, x.shape, x.itemsize):
        return None
    from kofn.adapters.torch.eager import Call

    rows = ready.Rows(tuple(x.shape), x.dtype, k, t, link)
    there, back = (getattr(ready, each.ready)(rows) for each in (operation, *operation.back))
    left = operation.of.without_tensors(given)
    return Call(operation, _run, backend, left, (), 0, 1, there, back)


def _run(operation: Operation, backend: Any, rows: Any, *own: Any) -> Any:
    return operation.kernel(backend, rows, *own)
