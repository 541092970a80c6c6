"""The one place that decides what computes an operation: a kernel, a torch operator, a JAX
primitive, or array code.

`rows` are the checked arguments of a map (`Given`), or whatever else the signature of an operation
says, such as an array alone. Array code settles them (`rows/settled.py`) when it begins.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, overload

from kofn import kernels
from kofn.adapters import array_code, kept_kernels, segments
from kofn.adapters.theta import theta_of
from kofn.arrays import torch as of_torch
from kofn.arrays.flow import namespace_like
from kofn.arrays.form import Form
from kofn.arrays.kinds import Array, framework, is_torch
from kofn.arrays.typing import ArrayT
from kofn.formulas import choice
from kofn.links.link import Link
from kofn.operations.choice import HARD
from kofn.operations.operation import Operation
from kofn.rows.given import Given, given_again
from kofn.rows.numbers import TEMPERATURES
from kofn.solver.reductions import DENSE


@overload
def answer(
    operation: Operation, rows: Given[ArrayT], *arrays: Array, settings: Sequence[Any] = ()
) -> ArrayT: ...
@overload
def answer(
    operation: Operation, rows: ArrayT, *arrays: Array, settings: Sequence[Any] = ()
) -> ArrayT: ...
@overload
def answer(
    operation: Operation, rows: Any, *arrays: Array, settings: Sequence[Any] = ()
) -> Any: ...
def answer(operation: Operation, rows: Any, *arrays: Array, settings: Sequence[Any] = ()) -> Any:
    """Return the answer of an operation on rows, by the fastest code that serves them."""
    fast = by_kernel(operation, rows, *arrays, settings=settings)
    return by_array_code(operation, rows, *arrays, settings=settings) if fast is None else fast


def by_array_code(
    operation: Operation, rows: Any, *arrays: Array, settings: Sequence[Any] = ()
) -> Any:
    """Return the answer of an operation by array code."""
    # The kernel of an elementwise operation is array code, with a way back in closed form.
    closed = operation.closed or (operation if operation.elementwise else None)
    if closed is not None and _has_way_back(closed, rows):
        return computed(closed, theta_of, rows.per_row(), arrays, settings)
    return array_code.answer(operation, rows, arrays, _unlearned(operation, settings))


def by_kernel(operation: Operation, rows: Any, *arrays: Array, settings: Sequence[Any] = ()) -> Any:
    """Return the answer of an operation by compiled code; None if none serves the rows."""
    kind = rows.form.kind if type(rows) is Given else framework(_scores(rows))
    if kind == "torch":
        return _of_torch(operation, rows, arrays, settings)
    if kind == "jax":
        from kofn.adapters.jax import answers

        return answers.answer(operation, rows, arrays, settings)
    backend = serving(operation, rows, "numpy")
    if backend is None:
        return None
    own = _unlearned(operation, settings)
    return _first(_run_of(rows)(operation, backend, rows, *arrays, *own))


def hard(given: Given[ArrayT], k: Any) -> ArrayT:
    """Return the hard choice of rows, without a gradient.

    `k` is the caller's. On JAX `given.k` is an array even for a number, which tells how
    many entries there are to find before the program runs.
    """
    chosen: ArrayT | None = by_kernel(HARD, given)
    if chosen is not None:
        return chosen
    if framework(given.scores) == "jax" and given.over is DENSE:
        from kofn.adapters.jax.choice import hard as on_jax

        return on_jax(given, k)  # type: ignore[return-value]  # of the kind of scores
    return choice.hard(given, k)  # type: ignore[return-value]


def again(operation: Operation, x: Any, k: Array, link: Link) -> Callable[[Array, Array], Any]:
    """Return the answer of an operation as a function of scores and temperatures, for a search.

    The scores are like x, whose rows were checked before, and nothing is learned. What serves them
    is asked once, not at each of many passes.
    """
    rows, kind = given_again(x, k, k, link), framework(x)
    known = kind == "numpy" or (kind == "torch" and of_torch.state.is_plain(x))
    numbers = link.alpha is None or type(link.alpha) is float
    backend = serving(operation, rows, str(kind)) if known and numbers else None
    if backend is None or (kind == "torch" and _is_learned(operation, rows)):
        return lambda x, t: answer(operation, given_again(x, k, t, link))
    if kind == "torch":
        backend = kept_kernels.again(operation, rows) or backend
    xp, kernel, batch = namespace_like(x), operation.kernel, rows.batch
    _, k, _, link, form, _ = rows
    least, greatest = TEMPERATURES[form.dtype_name]

    def weights(x: Array, t: Array) -> Any:
        t = xp.where((t > 0) & (t < math.inf), xp.clip(t, least, greatest), math.nan)
        answers = kernel(backend, Given(x, k, xp.broadcast_to(t, batch), link, form))
        return answers[0] if type(answers) is tuple else answers

    return weights


def computed(
    operation: Operation,
    backend: Any,
    rows: Any,
    arrays: Sequence[Array],
    settings: Sequence[Any] = (),
) -> Any:
    """Return the answer of an operation by its kernel function, differentiable on eager torch."""
    run = _run_of(rows)
    if is_torch(_scores(rows)) and _is_learned(operation, rows, arrays):
        return _recorded(operation, run, backend, rows, arrays, settings)
    return _first(run(operation, backend, rows, *arrays, *settings))


def may_learn(operation: Operation, rows: Any) -> bool:
    """Return whether an operation on these rows may be differentiated."""
    x = _scores(rows)
    if not is_torch(x):
        return framework(x) == "jax"
    state = of_torch.state
    known = state.is_eager(x) or state.is_compiled() or of_torch.dtensors.has_whole_rows(x)
    return not known or _is_learned(operation, rows)


def _scores(rows: Any) -> Any:
    return rows[0] if isinstance(rows, tuple) else rows


def _of_torch(
    operation: Operation, rows: Any, arrays: Sequence[Array], settings: Sequence[Any]
) -> Any:
    # Short rows wait for every call of a function here.
    state, x = of_torch.state, rows[0] if isinstance(rows, tuple) else rows
    alpha = rows.link.alpha if operation.each_alpha else None
    if alpha is not None and type(alpha) is not float:
        operation, rows = _of_each_alpha(operation), rows.wide()
    if state.is_plain(x):
        backend = serving(operation, rows, "torch")
        if backend is None:
            return None
        dense = type(rows) is not Given or type(rows.form) is Form or rows.over is DENSE
        run = _run if dense else segments.call
    else:
        # torch.compile cannot trace the code above.
        from kofn.adapters.torch import operators

        operation, run = operators.serving(operation, rows, x)
        backend = None
    if run is None:
        return None
    if arrays and any(each.device != x.device for each in arrays):
        return None  # no kernel looks where an address is
    learned = _is_learned(operation, rows, arrays)
    # Without a way back, autograd would have no gradient, and nothing would say so.
    if learned and not operation.back:
        return None
    if learned and operation.constant and _learns(operation, rows, operation.constant):
        return None
    if operation.has_slopes:
        settings = *settings, *_flags_of(operation, rows, learned), int(learned)
    if not learned or (backend is None and state.is_compiled()):
        if run is _run:
            answers = operation.kernel(backend, rows, *arrays, *settings)
        else:
            answers = run(operation, backend, rows, *arrays, *settings)
        return answers[0] if type(answers) is tuple else answers
    return _recorded(operation, run, backend, rows, arrays, settings)


def _recorded(*call: Any) -> Any:
    # An import statement takes half a microsecond, even for a module that is there.
    name = f"{__package__}.torch.eager"
    return (sys.modules.get(name) or import_module(name)).recorded(*call)


def _of_each_alpha(operation: Operation) -> Operation:
    from kofn.adapters.torch import each_alpha

    declared: Operation = getattr(each_alpha, operation.each_alpha)
    return declared


def serving(operation: Operation, rows: Any, kind: str) -> Any:
    """Return the kernels for these rows, which nothing traces or transforms; or None."""
    link = rows.link if operation.has_link else None
    if type(rows) is Given and type(rows.form) is not Form and _is_hidden(rows):
        return None
    x = rows[0] if isinstance(rows, tuple) else rows
    if operation.of.serves is not None:
        return operation.of.serves(x, link, kind, operation.offered)
    which, offered = operation.of.kernels, operation.offered
    return kernels.serving_of(which, x, kind, link, offered, operation.name)


def _is_hidden(given: Given) -> bool:
    """Return whether the rows are segments, and what says where they are cannot be read."""
    return given.over is not DENSE and given.order is None


def _run_of(rows: Any) -> Any:
    if type(rows) is not Given or type(rows.form) is Form or rows.over is DENSE:
        return _run
    return segments.call


def _run(operation: Operation, backend: Any, rows: Any, *own: Any) -> Any:
    return operation.kernel(backend, rows, *own)


def _first(answers: Any) -> Any:
    return answers[0] if type(answers) is tuple else answers


def _unlearned(operation: Operation, settings: Sequence[Any]) -> Sequence[Any]:
    """Return all settings of a call in which nothing is learned."""
    return (*settings, 0) if operation.has_slopes else settings


def _is_learned(operation: Operation, rows: Any, arrays: Sequence[Any] = ()) -> bool:
    """Return whether autograd records an argument that has a cotangent."""
    if not sys.modules["torch"].is_grad_enabled():
        return False
    for tensor in operation.of.tensors(rows):  # sooner than any() of a generator
        if tensor.requires_grad:
            return True
    if not operation.learned_arrays:
        return False
    pairs = zip(operation.arrays, arrays, strict=True)
    return any(name in operation.learned_arrays and each.requires_grad for name, each in pairs)


def _flags_of(operation: Operation, rows: Any, learned: bool) -> list[int]:
    """Return what an operation asks of its tensors: whether each has a gradient."""
    return [int(learned and _learns(operation, rows, (name,))) for name in operation.asks]


def _learns(operation: Operation, rows: Any, names: Sequence[str]) -> bool:
    """Return whether one of these tensors of the rows has a gradient."""
    pairs = zip(operation.of.learnable(rows), operation.of.tensors(rows), strict=True)
    return any(name in names and tensor.requires_grad for name, tensor in pairs)


def _has_way_back(operation: Operation, rows: Given) -> bool:
    """Return whether eager torch needs the way back of an operation, and it has all cotangents.

    It has none of k and alpha: those are constants of it.
    """
    if not is_torch(rows.scores):
        return False
    state = of_torch.state
    alpha = rows.link.alpha
    tensors = [each for each in (*rows[:3], alpha) if is_torch(each)]
    if not all(map(state.is_eager, tensors)) or not _is_learned(operation, rows):
        return False
    constants = [each for each in (rows.k, alpha) if is_torch(each)]
    return not any(each.requires_grad for each in constants)
