"""The node of autograd of a reduced loss of labels (test_adapters_labelled.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.adapters.torch import eager
from kofn.arrays.torch.state import cell, is_eager, is_last
from kofn.operations.losses import IN_CACHE, scaled
from kofn.operations.margins import PLACED
from kofn.operations.operation import Operation
from kofn.operations.truncated import TRUNCATED_LOSS


class Call(NamedTuple):
    """What is known of a call before its scores and target.

    An operation without `onward` gives log p, not a loss.
    """

    operation: Operation
    kernel: Callable[..., Any]
    """Its kernel, or one with answers that share memory."""
    backend: Any
    rows: Any  # without their tensors
    settings: Sequence[Any]
    divisor: int  # what the sum of the losses is divided by
    ready: Callable[..., Any] | None = None
    """Its kernel for such calls (kernels/cpu/ready.py), which answers None where it does not serve.
    """
    share: int = 1
    """What p − t is divided by already, a power of 2."""

    def answers(self, x: Any, target: Any, learned: bool) -> Any:
        """Return (the reduced loss, and what the operation answers).

        None if it is not finite, or a row may have no label: then its loss is 0.
        """
        if not self.operation.has_slopes:  # its kernel reads scores by PyTorch, which checks labels
            least, most = target.aminmax()
            if least.item() < 0 or most.item() >= x.shape[-1]:
                return None
        answers = None if self.ready is None else self.ready(x, target, learned)
        known = answers is not None
        if not known:
            rows = self.operation.of.with_tensors(self.rows, (x,))
            wanted = (int(learned),) if self.operation.has_slopes else ()
            answers = self.kernel(self.backend, rows, target, *self.settings, *wanted)
            if self.share > 1 and learned:
                answers[1].div_(self.share)
        elif not answers:
            return None
        total = answers[0].sum()
        of_all = cell(total)
        if not math.isfinite(of_all.value):
            return None
        if not known and target.ndim == x.ndim and not answers[0].min().item() > 0:
            return None
        of_all.value /= self.divisor if self.operation.has_slopes else -self.divisor
        return total, answers

    def applied(self, x: Tensor, target: Tensor) -> Any:
        """Return the reduced loss, which autograd records; or None."""
        apply = _apply if self.operation.has_slopes else _apply_logs
        return apply(self, x, target)[0]


class _Reduced(torch.autograd.Function):
    """The loss, and p − t, which is an answer to autograd, too: derivatives of any order go through
    it, and the scores are not kept.
    """

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor, target: Tensor) -> Any:
        answers = call.answers(x, target, True)
        if answers is None:
            return None, None
        whole, kept = answers
        ctx.call, ctx.dtype, ctx.is_own = call, x.dtype, True  # whether no other node keeps p − t
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(target, *map(kept.__getitem__, call.operation.kept))
        return whole, kept[1]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor | None, onward: Tensor | None) -> Any:
        call, saved, in_x = ctx.call, ctx.saved_tensors, None
        operation, rows = call.operation, call.rows
        known = dict(zip(operation.names_kept, saved[1:], strict=True))
        if cotangent is not None:
            residual, recorded = known["residual"], torch.is_grad_enabled()
            ctx.is_own = ctx.is_own and not recorded
            same = residual.dtype == ctx.dtype
            last = ctx.is_own and is_last(cotangent) and (same or residual.numel() <= IN_CACHE)
            each, divisor = cotangent, call.divisor // call.share
            if last and rows.temperature == 1.0:  # a quotient that is rounded when it multiplies
                each = cotangent.item() / divisor
            else:
                each = each if divisor == 1 else each / divisor
                each = each if rows.temperature == 1.0 else each / rows.temperature
            if last:
                in_x = residual.detach()
                in_x = in_x.mul_(each) if type(each) is not float or each != 1 else in_x
                in_x = in_x if same else in_x.to(ctx.dtype)
            elif same or recorded:  # autograd rounds what it records itself
                in_x = residual * each
            else:
                in_x = scaled(each, residual, ctx.dtype)
        if onward is not None:
            own = (saved[0], *call.settings, int(True))
            if call.share > 1:
                onward, known["residual"] = onward / call.share, known["residual"] * call.share
            known |= dict(zip(operation.own, own, strict=True), cotangent=onward)
            way = operation.onward
            more = way.kernel(call.backend, rows, *[known[name] for name in way.own])
            in_x = more if in_x is None else in_x + more
        return None, in_x, None


def _none(*_: Any) -> None:
    """Stand for the kernel, which by_array_code does not run."""


class _ReducedLogs(torch.autograd.Function):
    """−log p of labels, for which scores and θ are kept."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor, labels: Tensor) -> Any:
        answers = call.answers(x, labels, True)
        if answers is None:
            return (None,)
        ctx.call = call
        ctx.save_for_backward(labels, x, answers[1][1])
        return (answers[0],)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        call, (labels, x, theta) = ctx.call, ctx.saved_tensors
        each = (-cotangent if call.divisor == 1 else cotangent / -call.divisor).expand(labels.shape)
        operation, rows = call.operation, call.operation.of.with_tensors(call.rows, (x,))
        if not torch.is_grad_enabled() and is_eager(cotangent):
            slopes = operation.back[0].kernel(call.backend, rows, each, labels, theta)
            return None, slopes[0], None
        again = eager.Call(operation, _none, call.backend, call.rows, (), 1, 2)
        given = again, rows, (labels, x), (theta,)
        return None, eager.by_array_code(*given, each, (False, True))[1], None


class WithMargin(NamedTuple):
    """The same of cosines, whose PLACED are the logits of a Call: one pass over rows for both."""

    of_logits: Call
    placed: eager.Call

    def answers(self, x: Any, target: Any, learned: bool) -> Any:
        """Return ((the reduced loss, logits),), or None."""
        call, (margin, turned, t, *_) = self.placed, self.placed.settings
        logits, cosine, *kept = call.backend.margins(x, target, margin, turned, t, True, learned)
        # Once: what nodes of autograd keep besides tensors is there for as long as they are.
        of_x, of_logits = [(logits, cosine)], [kept]
        own = self.of_logits._replace(ready=lambda *_: of_logits.pop())
        if learned:
            logits = eager.apply_onward(call._replace(run=partial(_once, of_x)), target, x)[0]
            whole = own.applied(logits, target)
        else:
            whole, *_ = own.answers(logits, target, False) or (None,)
        return None if whole is None else ((whole, logits),)

    def applied(self, x: Tensor, target: Tensor) -> Any:
        """Return the reduced loss and logits, which autograd records; or None."""
        both = self.answers(x, target, True)
        return None if both is None else both[0]


def _once(known: list[Any], operation: Operation, backend: Any, rows: Any, *own: Any) -> Any:
    """Return what is known the first time, and later what a kernel gives."""
    return known.pop() if known else operation.kernel(backend, rows, *own)


def with_margin(
    margin: tuple[Any, ...], given: Any, backend: Any, settings: Any, count: int
) -> WithMargin:
    """Return the call of a loss, whose Call would have these arguments, with a margin."""
    number, turned, steep = margin
    own = float(number), turned, given.temperature, steep, given.form.n
    placed = eager.Call(PLACED, _none, backend, None, own, 1, 2)
    left = TRUNCATED_LOSS.of.without_tensors(given)._replace(temperature=1.0)
    return WithMargin(Call(TRUNCATED_LOSS, _none, backend, left, settings, count), placed)


_apply: Callable[..., Any] = super(torch.autograd.Function, _Reduced).apply
_apply_logs: Callable[..., Any] = super(torch.autograd.Function, _ReducedLogs).apply
