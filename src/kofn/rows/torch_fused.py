"""The kernels for functions under torch.compile, which calls them as operators without tracing.

Second derivatives are refused. Code under a functorch transform, in forward mode or in torch.export
uses the plain operations, which these can see.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn import kernels
from kofn.arrays.torch_operator import call
from kofn.arrays.torch_state import constant_result, is_compiled
from kofn.kernels.contract import kind_of
from kofn.links.link import by_id

# torch.compile cannot trace an import in the first call. The operators are registered here.
from kofn.rows import torch_each_alpha as torch_each_alpha
from kofn.rows import torch_halves as torch_halves
from kofn.rows import torch_operators as torch_operators
from kofn.rows.given import Given


def serves(given: Given, what: str = "SERVED") -> bool:
    """Return whether the rows of a compiled function go to the operators.

    `what` is the attribute of RowKernels that has the links served, or is None.
    """
    if not is_compiled():
        return False
    number, alpha = given.link.static_and_array_alpha()
    x = given.scores
    return alpha is None and _is_served(x.device.type, x.dtype, given.link.id, number, what)


def serves_each_alpha(given: Given) -> bool:
    """Return whether rows with an alpha each go to an operator that asks for their alphas."""
    x = given.scores
    return is_compiled() and _is_served(x.device.type, x.dtype, given.link.id, 1.5, "SERVED")


@constant_result
def _is_served(device: str, dtype: torch.dtype, link: str, number: float | None, what: str) -> bool:
    which = by_id(link, number)
    backend = kernels.serving(torch.empty(0, dtype=dtype, device=device), which, "torch")
    offered = None if backend is None else getattr(backend, what)
    return kind_of(which) in offered if isinstance(offered, tuple) else offered is not None


def serves_choices(x: Tensor) -> bool:
    return is_compiled() and _choices_are_served(x.device.type, x.dtype)


@constant_result
def _choices_are_served(device: str, dtype: torch.dtype) -> bool:
    like = torch.empty(0, dtype=dtype, device=device)
    return kernels.serving_choice(like, "torch") is not None


def weights_of(given: Given) -> Tensor:
    return call("weights", given.scores, *_arguments(given))[0]


def hard_weights_of(given: Given) -> Tensor:
    """Return the hard choice with the gradient of the weights."""
    return call("hard_weights", given.scores, *_arguments(given))[0]


def log_weights_of(given: Given) -> Tensor:
    return call("log_weights", given.scores, *_arguments(given))[0]


def located_of(given: Given) -> Tensor:
    """Return θ."""
    return call("located", given.scores, *_arguments(given))[0]


def value_of(given: Given, slopes: bool) -> Tensor:
    return call("value", given.scores, *_arguments(given), slopes)[0]


def gap_of(given: Given, target: Tensor, likely: bool, slopes: bool) -> Tensor:
    return call("gap", given.scores, target, *_arguments(given), likely, slopes)[0]


class Choices:
    """The ChoiceKernels of a compiled function."""

    @staticmethod
    def hard(x: Tensor, k: Any) -> Tensor:
        return call("hard", x, *_number_or_tensor(k))

    @staticmethod
    def largest(x: Tensor, k: int) -> Tensor:
        return call("largest", x, k)


def truncated_of(given: Given, k: int | None, p: float | None) -> Tensor:
    x, t = given.scores, _number_or_tensor(given.temperature)
    return call("truncated", x, k, p, *t)


def truncated_loss_of(
    given: Given, labels: Tensor, k: int | None, p: float | None, slopes: bool
) -> Tensor:
    x, t = given.scores, _number_or_tensor(given.temperature)
    return call("truncated_loss", x, labels, k, p, *t, slopes)[0]


def _arguments(given: Given) -> tuple[Any, ...]:
    number = given.link.static_and_array_alpha()[0]
    k, t = _number_or_tensor(given.k), _number_or_tensor(given.temperature)
    return *k, *t, given.link.id, number


def _number_or_tensor(number: Any) -> tuple[Tensor | None, float | None]:
    return (None, number) if type(number) is float else (number, None)
