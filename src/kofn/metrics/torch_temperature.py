"""The search for a temperature as a custom torch operator, for torch.compile and vmap."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.adapters.torch import eager as eager  # loaded with PyTorch: no call waits for it
from kofn.adapters.torch import threshold as threshold  # the other operators come with it
from kofn.adapters.torch.operators import register

# Dynamo may go over a function twice: the first time must not load what the second then finds.
from kofn.arrays.torch import namespace as namespace
from kofn.arrays.torch.operator import refuse_untranslated
from kofn.links.link import by_id
from kofn.maps.argmax import operations as argmax_operations
from kofn.metrics.temperature_search import SOLVERS
from kofn.rows.given import Given
from kofn.subsets.conditional_bernoulli import MARGINALS
from kofn.subsets.operations import COVARIANCE, LOG_COUNT, TAILS

register(argmax_operations.COMPILED, COVARIANCE, LOG_COUNT, MARGINALS, TAILS)


@torch.library.custom_op("kofn::temperature", mutates_args=())
def temperature(
    x: Tensor,
    k: Tensor,
    target: Tensor,
    alpha: Tensor | None,
    link: str,
    number: float | None,
    name: str,
    per_row: bool,
) -> Tensor:
    """Run a search of `metrics/temperature_search.py`, without a gradient and without tracing it.

    α, where the link has one, is `alpha`, per row, or `number`, one for all of them.
    """
    which = by_id(link, number if alpha is None else alpha)
    solution: Any = SOLVERS[name, per_row](Given(x, k, torch.ones_like(k), which), target)
    return solution


@temperature.register_fake
def _(x, k, target, alpha, link, number, name, per_row):  # type: ignore[no-untyped-def]
    refuse_untranslated("temperature")
    return x.new_empty(k.shape if per_row else ())


@temperature.register_vmap
def _(info, in_dims, x, k, target, alpha, *rest):  # type: ignore[no-untyped-def]
    """Run one item after another, because a temperature for a batch belongs to one item."""

    def item(value: Tensor | None, dim: int | None, i: int) -> Tensor | None:
        return value if value is None or dim is None else value.select(dim, i)

    rows = zip((x, k, target, alpha), in_dims, strict=False)
    parts = list(rows)
    temperatures = [
        temperature(*(item(*part, i) for part in parts), *rest) for i in range(info.batch_size)
    ]
    return torch.stack(temperatures), 0
