"""Operations as torch operators, which compiled functions call without tracing them.

Their derivatives are of the first order: second ones are refused by name. Code under a functorch
transform, in forward mode or in torch.export uses the array code, which these can see. No output of
an operator shares memory with another, or with an input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from kofn import kernels
from kofn.adapters import kept_kernels
from kofn.adapters.torch import each_alpha
from kofn.adapters.torch.segments import OF_SEGMENTS
from kofn.arrays.torch.dtensors import has_whole_rows
from kofn.arrays.torch.operator import OPERATORS, REFUSED, call, define, differentiate, refuse
from kofn.arrays.torch.state import constant_result, is_compiled
from kofn.links.link import by_id
from kofn.operations.choice import HARD, HARD_WEIGHTS, LARGEST
from kofn.operations.declared import DECLARED
from kofn.operations.operation import (
    ARRAYS,
    ENTRY,
    INDICES,
    NUMBER,
    OPTIONAL,
    PAIR,
    ROW,
    THREE,
    WIDE,
    Argument,
    Operation,
    arguments_of,
)
from kofn.operations.topk import WEIGHTS, WEIGHTS_BACK
from kofn.rows.given import Given
from kofn.solver.reductions import DENSE

if TYPE_CHECKING:
    from kofn.arrays.protocols import Context as AnyContext

    class Context(AnyContext, Protocol):
        known: dict[str, Any]
        lacks: set[str]


REGISTERED: dict[str, Plan] = {}
"""The operators by name."""


class Plan:
    """An operator: its arguments, where each NUMBER is two, a tensor and a float."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        names = _names(operation.arguments)
        rows = _names(arguments_of(operation.of.takes))
        given = [*rows, *operation.arrays, *operation.settings]
        self.names = names
        self.arrays = {name for name in names if name in _arrays(operation.arguments)}
        self.answers = [each.name for each in operation.answers]
        self.rows = [names.index(name) if name in names else None for name in rows]
        self.own = [names.index(name) for name in given[len(rows) :]]
        # The place of each argument among the rows' arguments and, after them, the others.
        self.order = [given.index(name) for name in names]
        self.shortly = _SHORTLY.get(operation.name)

    def pack(self, arguments: Sequence[Any]) -> Any:
        """Return the rows of an operator's arguments."""
        of = self.operation.of
        return of.pack(*[None if place is None else arguments[place] for place in self.rows])

    def flat(self, rows: Any, own: Sequence[Any]) -> list[Any]:
        """Return an operator's arguments."""
        given = (*self.operation.of.unpack(rows), *own)
        return [given[place] for place in self.order]

    def run(self, *arguments: Any) -> Any:
        operation, backend = self.operation, None
        if self.shortly is not None:
            answer = self.shortly(operation, *arguments)
            if answer is not None:
                return answer
        own = [arguments[place] for place in self.own]
        if not operation.name:
            return operation.kernel(None, self.pack(arguments), *own)
        # The kernels found while tracing: a later KOFN_KERNELS changes nothing.
        x = arguments[self.rows[0] or 0]
        backend = kernels.found(operation.of.kernels, x, "torch")
        answers = operation.kernel(backend, self.pack(arguments), *own)
        if type(answers) is not tuple:
            return answers
        return tuple(x.new_empty(0) if each is None else each for each in answers)

    def like(self, *arguments: Any) -> Any:
        """Return the answers as memory without entries."""
        if self.operation.fake is not None:
            return self.operation.fake(*arguments)
        packed = [None if place is None else arguments[place] for place in self.rows]
        batch = self.operation.of.batch(*packed)
        known = dict(zip(self.names, arguments, strict=True))
        made = [_new(each, packed[0], batch, known) for each in self.operation.answers]
        return tuple(made) if len(made) > 1 else made[0]


def _of_weights(operation: Operation, *arguments: Any) -> Any:
    *tensors, k, every_k, t, every_t, link, alpha = arguments
    cotangent, x, theta = tensors if operation is WEIGHTS_BACK else (None, *tensors, None)
    if k is not None or t is not None:
        return None
    run = kept_kernels.run_of(operation, x, every_k, every_t, link, alpha)
    if run is None:
        return None
    if cotangent is not None:
        return run(x, cotangent, theta), x.new_empty(0)
    p, theta, lost = run(x, True)
    return None if lost else (p, theta)


def _of_choice(operation: Operation, x: Tensor, *k: Any) -> Any:
    number = float(k[0]) if operation is LARGEST else k[1]
    run = kept_kernels.run_of(operation, x, number, *kept_kernels.OF_CHOICES) if number else None
    if run is None:
        return None
    return run(x) if operation is LARGEST else run(x, False)[0]


_SHORTLY: dict[str, Callable[..., Any]] = {
    **{each.name: _of_weights for each in (WEIGHTS, WEIGHTS_BACK, HARD_WEIGHTS)},
    **{each.name: _of_choice for each in (HARD, LARGEST)},
}
"""What answers an operator by kept kernels if k and T are numbers, or returns None."""


def _names(arguments: Iterable[Argument]) -> list[str]:
    names = []
    for name, kind, _ in arguments:
        names += [name, f"every_{name}"] if kind == NUMBER else [name]
    return names


def _arrays(arguments: Iterable[Argument]) -> set[str]:
    return {each.name for each in arguments if each.kind in (*ARRAYS, NUMBER, OPTIONAL)}


def _new(answer: Argument, x: Any, batch: Sequence[int], known: dict[str, Any]) -> Any:
    wide = torch.float32 if x.itemsize == 2 else None
    if not is_given(answer, known):
        return x.new_empty(0)
    if answer.kind in (ENTRY, WIDE):
        return x.new_empty(x.shape, dtype=wide if answer.kind == WIDE else None)
    if answer.kind == INDICES:
        return x.new_empty((*batch, known["k"]), dtype=torch.int64)
    before = {ROW: (), PAIR: (2,), THREE: (3,)}[answer.kind]
    return x.new_empty((*before, *batch), dtype=wide)


def is_given(answer: Argument, known: dict[str, Any]) -> bool:
    """Return whether an answer has entries: one of the arguments that it is given for is there."""
    there = (known[name] for name in answer.given_if)
    return not answer.given_if or any(hasattr(one, "ndim") or bool(one) for one in there)


def schema_of(operation: Operation) -> tuple[str, str]:
    """Return the arguments and the results of an operator, as torch writes them."""
    results = ", ".join(["Tensor"] * len(operation.answers))
    several = len(operation.answers) > 1
    return ", ".join(map(_declared, operation.arguments)), f"({results})" if several else results


def _declared(argument: Argument) -> str:
    name, kind, _ = argument
    if kind == NUMBER:
        return f"Tensor? {name}, float? every_{name}"
    if kind in ARRAYS:
        return f"Tensor {name}"
    return f"Tensor? {name}" if kind == OPTIONAL else f"{kind} {name}"


def register(*operations: Operation) -> None:
    """Make operators of operations, and of those that are their ways back."""
    for operation in operations:
        if not operation.name or operation.name in REGISTERED:
            continue
        plan = REGISTERED[operation.name] = Plan(operation)
        operator = define(operation.name, *schema_of(operation), plan.like)(plan.run)
        register(*operation.back)
        differentiate(operator, *_derivative(plan) if operation.back else (refuse,))


def _derivative(plan: Plan) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the pullback of an operator's first answer, and the function that keeps its arrays."""
    ways = [Plan(back) for back in plan.operation.back]
    needed = [name for way in ways for name in way.names]
    saved = [*dict.fromkeys(n for n in needed if n in plan.arrays or n in plan.answers)]
    count = len(plan.names)

    def keep(ctx: Context, inputs: Sequence[Any], output: Any) -> None:
        answers = output if isinstance(output, tuple) else (output,)
        known = dict(zip(plan.answers, answers, strict=True))
        known.update(zip(plan.names, inputs, strict=True))
        ctx.save_for_backward(*(known[name] for name in saved))
        ctx.known = {n: v for n, v in known.items() if n not in {*plan.answers, *plan.arrays}}
        ctx.known["dtype"] = inputs[plan.rows[0] or 0].dtype
        ctx.lacks = {each.name for each in plan.operation.answers if not is_given(each, known)}
        ctx.set_materialize_grads(False)

    def pullback(ctx: Context, *cotangents: Tensor | None) -> Any:
        cotangent, *others = cotangents
        if any(other is not None for other in others):
            raise RuntimeError(REFUSED)
        slopes: dict[str, Any] = {}
        if cotangent is not None:
            known = {**ctx.known, **dict(zip(saved, ctx.saved_tensors, strict=True))}
            wanted = dict(zip(plan.names, ctx.needs_input_grad, strict=True))
            known |= {"cotangent": cotangent} | {f"of_{n}": int(w) for n, w in wanted.items()}
            for way in ways:
                if not any(wanted[name] for names in way.operation.cotangents for name in names):
                    continue
                if not ctx.lacks.isdisjoint(way.names):
                    raise RuntimeError(REFUSED)
                slopes |= _pulled(way, known, wanted)
        return tuple(slopes.get(name) for name in plan.names) if count > 1 else slopes.get("x")

    return pullback, keep


def _pulled(way: Plan, known: dict[str, Any], wanted: dict[str, bool]) -> dict[str, Any]:
    """Return cotangents by the names of the arguments."""
    back, arguments = way.operation, [known[name] for name in way.names]
    answers = (
        getattr(OPERATORS, back.name).default(*arguments) if back.name else way.run(*arguments)
    )
    answers = answers if isinstance(answers, tuple) else (answers,)
    slopes: dict[str, Any] = {}
    for names, answer in zip(back.cotangents, answers, strict=True):
        parts = answer if len(names) > 1 else (answer,)
        slopes |= {n: parts[i] for i, n in enumerate(names) if wanted[n]}
    return slopes


def serving(operation: Operation, rows: Any, x: Tensor) -> tuple[Operation, Any]:
    """Return the operation whose operator serves these rows, and what calls it; or None for that.

    The rows are a compiled function's, or DTensors.
    """
    if not (is_compiled() or has_whole_rows(x)):
        return operation, None
    if not _is_dense(rows):
        if operation.name not in OF_SEGMENTS or x.device.type != "cpu":
            return operation, None
        operation = OF_SEGMENTS[operation.name]
    link = rows.link if operation.has_link else None
    number, alpha = (None, None) if link is None else link.static_and_array_alpha()
    if alpha is not None:
        if operation.of.serves is None:
            return operation, None
        number = 1.5  # any that kernels serve: the operator looks at the alphas when it runs
    name = None if link is None else link.id
    served = _is_served(operation.name, x.device.type, x.dtype, name, number)
    return operation, _run if served else None


def _is_dense(rows: Any) -> bool:
    return type(rows) is not Given or rows.over is DENSE


@constant_result
def _is_served(
    name: str, device: str, dtype: torch.dtype, link: str | None, number: float | None
) -> bool:
    if name not in REGISTERED:
        return False
    operation, like = REGISTERED[name].operation, torch.empty(0, dtype=dtype, device=device)
    which = None if link is None else by_id(link, number)
    backend = kernels.serving_of(operation.of.kernels, like, "torch", which, operation.offered)
    return backend is not None


def _run(operation: Operation, _: object, rows: Any, *own: Any) -> Any:
    """Call the operator of an operation: torch.compile traces the caller, or rows are DTensors."""
    if not operation.name:
        return operation.kernel(None, rows, *own)
    return call(operation.name, *REGISTERED[operation.name].flat(rows, own))


register(*DECLARED, *OF_SEGMENTS.values(), *each_alpha.DECLARED)
