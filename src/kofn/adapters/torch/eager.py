"""Operations on eager torch tensors: one autograd function for all.

It has first derivatives by the ways back that a declaration names. Second ones are the
array code's, at the known θ. Eager DTensors come here, too: their kernels are torch's
operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from kofn.adapters import array_code
from kofn.arrays.torch.dtensors import has_whole_rows
from kofn.arrays.torch.state import is_eager
from kofn.operations.operation import Operation

if TYPE_CHECKING:
    from kofn.arrays.protocols import Context as AnyContext

    class Context(AnyContext, Protocol):
        call: Call
        dtype: torch.dtype

    Tensors = Sequence[Tensor]


Run = Callable[..., Any]
"""(operation, backend, rows, *arrays, *settings) -> answers"""


class Call(NamedTuple):
    """The record that autograd keeps of a call besides tensors."""

    operation: Operation
    run: Run
    backend: Any
    rows: Any  # without their tensors
    settings: Sequence[Any]
    arrays: int  # how many there are; they stand before the tensors of the rows
    tensors: int  # of these and of the rows
    # The kernels of a call like an earlier one, if it is: see adapters/short.py.
    ready: Callable[..., tuple[Tensor, Tensor, bool]] | None = None
    ready_back: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None


def recorded(
    operation: Operation, run: Run, backend: Any, rows: Any, arrays: Tensors, settings: Any
) -> Tensor:
    """Return the answer of an operation on tensors, one of them learned."""
    of = operation.of
    tensors, count = of.tensors(rows), len(arrays)
    left = of.without_tensors(rows)
    call = Call(operation, run, backend, left, settings, count, count + len(tensors))
    onward = operation.onward is not None and operation.goes_onward(rows, *arrays)
    if onward and (len(tensors) == 1 or not any(one.requires_grad for one in tensors[1:])):
        answer: Tensor = apply_onward(call, *arrays, *tensors)[0]
    else:
        answer = apply(call, *arrays, *tensors)
    return answer


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, call: Call, *tensors: Tensor) -> Any:
        if call.ready is not None:
            answer, theta, lost = call.ready(tensors[0], True)
            if not lost:
                ctx.call = call
                ctx.save_for_backward(*tensors, theta)
                return answer
        operation, run, backend, rows, settings, arrays, *_ = call
        rows = operation.of.with_tensors(rows, tensors[arrays:])
        answers = run(operation, backend, rows, *tensors[:arrays], *settings)
        answers = answers if type(answers) is tuple else (answers,)
        ctx.call = call
        known: Sequence[Tensor | None] = tensors
        if not operation.keeps_scores:
            known = (*tensors[:arrays], None, *tensors[arrays + 1 :])
        # Saved through autograd, which frees the tensors, runs hooks and detects changes in place.
        ctx.save_for_backward(*known, *map(answers.__getitem__, operation.kept))
        return answers[0]

    @staticmethod
    def backward(ctx: Context, cotangent: Tensor) -> Any:
        saved, call = ctx.saved_tensors, ctx.call
        operation, count = call.operation, call.tensors
        # Whether the way back is to be differentiated, or transformed: then it is array code.
        again = torch.is_grad_enabled() or not (is_eager(cotangent) or has_whole_rows(cotangent))
        if call.ready_back is not None and not again:
            return None, call.ready_back(saved[0], cotangent, saved[1])
        rows = operation.of.with_tensors(call.rows, saved[call.arrays : count])
        if count == 1 and operation.is_direct and not again:  # most calls
            in_scores = call.run(operation.back[0], call.backend, rows, cotangent, *saved[1:])
            return None, in_scores[0] if type(in_scores) is tuple else in_scores
        tensors, kept, wanted = saved[:count], saved[count:], ctx.needs_input_grad[1:]
        if again:
            return None, *by_array_code(call, rows, tensors, kept, cotangent, wanted)
        return None, *_by_way_back(call, call.run, rows, tensors, kept, cotangent, wanted)


class _Onward(torch.autograd.Function):
    """The same where the scores alone are learned, and not kept: `Operation.onward` needs none.

    The second answer is one to autograd, too, so derivatives of any order go through it.
    """

    @staticmethod
    def forward(ctx: Context, call: Call, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        operation, run, backend, rows, settings, arrays, *_ = call
        others, rows = tensors[:arrays], operation.of.with_tensors(rows, tensors[arrays:])
        answers = run(operation, backend, rows, *others, *settings)
        kept = map(answers.__getitem__, operation.kept)
        ctx.save_for_backward(*others, None, *tensors[arrays + 1 :], *kept)
        ctx.call, ctx.dtype = call, tensors[arrays].dtype
        ctx.set_materialize_grads(False)
        return answers[0], answers[1]

    @staticmethod
    def backward(ctx: Context, cotangent: Tensor | None, onward: Tensor | None) -> Any:
        (operation, run, backend, rows, settings, arrays, count, *_) = ctx.call
        saved, dtype, in_scores = ctx.saved_tensors, ctx.dtype, None
        rows = operation.of.with_tensors(rows, saved[arrays:count])
        values: Sequence[Any] = (*saved[:arrays], *settings, *saved[count:])
        known = dict(zip(operation.own + operation.names_kept, values, strict=True))
        for way, each in ((operation.back[0], cotangent), (operation.onward, onward)):
            if each is None or way is None:
                continue
            again = torch.is_grad_enabled() or not (is_eager(each) or has_whole_rows(each))
            known["cotangent"], known["dtype"] = each, each.dtype if again else dtype
            by = _plainly if again and way.plain is not None else run
            in_x = by(way, backend, rows, *[known[name] for name in way.own])
            in_x = in_x[0] if type(in_x) is tuple else in_x
            in_scores = in_x if in_scores is None else in_scores + in_x
        if in_scores is not None and in_scores.dtype is not dtype:
            in_scores = in_scores.to(dtype)
        return *[None] * (arrays + 1), in_scores, *[None] * (count - arrays - 1)


# Function.apply asks whether a transform is active, which callers know.
apply: Callable[..., Any] = super(torch.autograd.Function, _Recorded).apply
apply_onward: Callable[..., Any] = super(torch.autograd.Function, _Onward).apply


def _by_way_back(
    call: Call, run: Run, rows: Any, tensors: Tensors, kept: Tensors, cotangent: Tensor, wanted: Any
) -> Sequence[Tensor | None]:
    """Return the cotangents of tensors by the ways back of an operation."""
    operation, _, backend, _, settings, arrays, *_ = call
    known: dict[str, Any] = dict(zip(operation.names_kept, kept, strict=True))
    known["cotangent"] = cotangent
    if arrays or settings:
        known |= dict(zip(operation.own, (*tensors[:arrays], *settings), strict=True))
    names = operation.arrays + operation.of.learnable(rows)
    learned = dict(zip(names, wanted, strict=True))
    slopes: dict[str, Tensor | None] = {}
    for back in operation.back:
        if not any(learned.get(name) for parts in back.cotangents for name in parts):
            continue
        own = [known[n] if n in known else _value_of(n, rows, learned) for n in back.own]
        answers = run(back, backend, rows, *own)
        answers = answers if type(answers) is tuple else (answers,)
        for parts, answer in zip(back.cotangents, answers, strict=True):
            for place, name in enumerate(parts):
                # Taking a tensor apart costs as much as the rest, and most learn the scores alone.
                if learned.get(name):
                    slopes[name] = answer if len(parts) == 1 else answer[place]
    return [slopes.get(name) for name in names]


def _value_of(name: str, rows: Any, learned: dict[str, bool]) -> Any:
    """Return a way back's setting: the dtype of the scores, or whether a tensor is learned."""
    return rows[0].dtype if name == "dtype" else int(learned[name.removeprefix("of_")])


def _plainly(operation: Operation, _: object, rows: Any, *own: Any) -> Any:
    """Run a way back by its array code, which takes the place of its kernel."""
    assert operation.plain is not None
    return operation.plain(rows, *own)


def by_array_code(
    call: Call,
    rows: Any,
    tensors: Tensors,
    kept: Tensors,
    cotangent: Tensor,
    wanted: Sequence[bool],
) -> Sequence[Tensor | None]:
    """Return the cotangents of tensors with a graph, for second derivatives."""
    operation, _, _, _, settings, arrays, *_ = call
    if all(back.plain is not None for back in operation.back):
        with torch.enable_grad():
            return _by_way_back(call, _plainly, rows, tensors, kept, cotangent, wanted)
    theta = dict(zip(operation.names_kept, kept, strict=True)).get("theta")
    with torch.enable_grad():
        some = [tensor for tensor, want in zip(tensors, wanted, strict=True) if want]
        answer: Tensor = array_code.answer(operation, rows, tensors[:arrays], settings, theta)
        options: dict[str, Any] = dict(create_graph=True, allow_unused=True)
        slopes = iter(torch.autograd.grad(answer, some, cotangent, **options))
    return [next(slopes) if want else None for want in wanted]
