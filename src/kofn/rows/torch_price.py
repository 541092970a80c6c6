"""The price as a custom torch operator for torch.compile and vmap, without a derivative.

As for `kofn::threshold` in `rows/torch_threshold.py`, derivatives are attached afterwards.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kofn.arrays.torch_operator import refuse_untranslated
from kofn.arrays.torch_state import batched, is_plain
from kofn.links.link import Link, by_id
from kofn.rows.price_precision import solved
from kofn.solver.price import Price


@torch.library.custom_op("kofn::price", mutates_args=())
def price(
    x: Tensor,
    costs: Tensor,
    budget: Tensor,
    temperature: Tensor,
    alpha: Tensor | None,
    link: str,
    number: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve for the price; the link's α is `alpha` (per row) or `number` (one for all rows)."""
    which = by_id(link, number if alpha is None else alpha)
    high, low, distance, scale = solved(x, costs, budget, temperature, which)
    # The outputs of an operator may not share memory.
    return high.clone(), low.clone(), distance.clone(), scale.clone()


def price_of(x: Tensor, costs: Tensor, budget: Tensor, temperature: Tensor, link: Link) -> Price:
    """Return the price; by the operator only where something traces or transforms `x`."""
    if is_plain(x):
        with torch.no_grad():
            return solved(x, costs, budget, temperature, link)
    number, alpha = link.static_and_array_alpha()
    return Price(*price(x, costs, budget, temperature, alpha, link.id, number))


@price.register_fake
def _(
    x: Tensor,
    costs: Tensor,
    budget: Tensor,
    temperature: Tensor,
    alpha: Tensor | None,
    link: str,
    number: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = (x.new_empty(x.shape[:-1]) for _ in range(3))
    high, low, scale = rows
    refuse_untranslated("price")
    return high, low, x.new_empty(x.shape), scale


@price.register_vmap
def _(info, in_dims, x, costs, budget, temperature, alpha, link, number):  # type: ignore[no-untyped-def]
    """Move batch dimensions to the front; repeat arguments that are not batched."""
    rows = batched((x, costs, budget, temperature, alpha), in_dims, info.batch_size)
    return price(*rows, link, number), (0, 0, 0, 0)
