"""Functions as torch operators, which compiled code calls without tracing them.

Each has a first derivative at most: second ones are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from kofn.arrays.torch.guards import forget
from kofn.arrays.torch.private import recorded_by
from kofn.arrays.torch.state import batched, is_eager

REFUSED = (
    "a compiled function has first derivatives only; for second derivatives, call the function "
    "without torch.compile, or compile torch.func.grad of it"
)

NAMESPACE = __package__.removesuffix(".arrays.torch").replace(".", "_")
"""Of the operators: "kofn", or a name of its own where the files lie elsewhere (wheels/hub)."""
OPERATORS = getattr(torch.ops, NAMESPACE)


def call(name: str, *arguments: Any) -> Any:
    """Call an operator from a function that torch.compile traces."""
    answer = getattr(OPERATORS, name).default(*arguments)
    forget()
    return answer


def define(
    name: str, arguments: str, results: str, fake: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Any]:
    """Register a function as an operator of this name; `fake` gives the results' shapes.

    This is torch.library.custom_op without its search for memory that is shared, which takes as
    long as a short row. No output may share memory with another, or with an input.
    """

    def register(function: Callable[..., Any]) -> Any:
        full = f"{NAMESPACE}::{name}"
        tags = (torch.Tag.pt2_compliant_tag,)
        torch.library.define(full, f"({arguments}) -> {results}", tags=tags)
        torch.library.impl(full, "CompositeExplicitAutograd", function)
        torch.library.register_fake(full, fake)
        operator = getattr(OPERATORS, name).default
        _FUNCTIONS[operator] = function
        return operator

    return register


def map_batches(operator: Any) -> None:
    """Let vmap call an operator on rows, a link and its number, with the mapped dimension first.

    Arguments that are not mapped are repeated.
    """

    def rule(info, in_dims, *arguments):  # type: ignore[no-untyped-def]
        *arrays, link, number = arguments
        answers = operator(*batched(arrays, in_dims, info.batch_size), link, number)
        return answers, (0,) * len(answers)

    operator.register_vmap(rule)


def refuse_untranslated(name: str) -> None:
    """Say early in torch.onnx.export what PyTorch's own error does not.

    It is for operators that torch.export keeps.
    """
    if not translated and torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            f"torch.onnx.export needs a translation of kofn::{name}: import kofn.onnx and give it "
            "custom_translation_table=kofn.onnx.translations(), with dynamo=True"
        )


translated: list[bool] = []
"""Not empty once kofn.onnx has made translations: whether they are given cannot be seen."""


_FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def differentiate(
    operator: Any, pullback: Callable[..., Any], keep: Callable[..., Any] | None = None
) -> None:
    """Give an operator a derivative, as torch.library.register_autograd does."""
    parts = recorded_by(operator, pullback, keep)
    if parts is None:
        torch.library.register_autograd(operator, pullback, setup_context=keep)
        return
    function, (recorded, below, python) = _FUNCTIONS[operator], parts

    def call(keyset: Any, *arguments: Any) -> Any:
        # Compiled code records nothing here, and a second dispatch takes as long as a short row.
        if _may_learn(arguments) or keyset.has(python) or not is_eager(arguments[0]):
            return recorded(keyset, *arguments)
        with below():
            return function(*arguments)

    name = operator.name().partition("::")[2]
    _LIBRARY.impl(name, call, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]


def _may_learn(arguments: Iterable[Any]) -> bool:
    learned = (isinstance(each, Tensor) and each.requires_grad for each in arguments)
    return torch.is_grad_enabled() and any(learned)


_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def refuse(ctx: Any, *cotangents: Tensor | None) -> Any:
    raise RuntimeError(REFUSED)
