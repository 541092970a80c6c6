"""The search for prices as a custom torch operator for torch.compile and vmap.

It has no derivative: as for `kofn::threshold` in `adapters/torch/threshold.py`, these are attached
afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kofn.arrays.torch.operator import map_batches, refuse_untranslated
from kofn.arrays.torch.state import is_plain
from kofn.links.link import Link, by_id
from kofn.maps.assignment.on_device import searching
from kofn.maps.assignment.search import Prices, prices


@torch.library.custom_op("kofn::assignment_prices", mutates_args=())
def assignment_prices(
    x: Tensor, k: Tensor, c: Tensor, t: Tensor, alpha: Tensor | None,
    link: str, number: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Search for the prices of columns; the link's α is `alpha` (per matrix) or `number`."""
    which = by_id(link, number if alpha is None else alpha)
    start: Any = _prices(x, k, c, t, which)
    # The outputs of an operator may not share memory.
    beta, warm, live, full = (each.clone() for each in start)
    return beta, warm, live, full


def _prices(x: Tensor, k: Tensor, c: Tensor, t: Tensor, link: Link) -> Prices:
    with torch.no_grad():
        return prices(x, k, c, t, link, searching(x, link))


def prices_of(x: Tensor, k: Tensor, c: Tensor, t: Tensor, link: Link) -> Prices:
    """Return the prices; by the operator only where something traces or transforms the scores."""
    if is_plain(x):
        return _prices(x, k, c, t, link)
    number, alpha = link.static_and_array_alpha()
    solution = assignment_prices(x, k, c, t, alpha, link.id, number)
    return Prices(*solution)


@assignment_prices.register_fake
def _(x: Tensor, k: Tensor, c: Tensor, t: Tensor, *_: Any) -> tuple[Tensor, ...]:
    refuse_untranslated("assignment_prices")
    live, full = (x.new_empty(x.shape, dtype=torch.bool) for _ in range(2))
    return x.new_empty(c.shape), x.new_empty(t.shape), live, full


map_batches(assignment_prices)
