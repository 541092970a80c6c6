"""Checked arguments of a map over the shards of rows, the same on every rank."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.checks import check_number, shown
from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import framework, full_like
from kofn.arrays.torch.state import is_eager, is_recorded
from kofn.links.link import Link
from kofn.rows.given import ONE, Given, last_mask, without_deleted
from kofn.rows.numbers import (
    NUMBERS,
    budget_of,
    costs_of,
    per_row_of,
    spread,
    temperature_or_number,
)
from kofn.rows.shards.asked import Asked
from kofn.rows.shards.header import NONE, Arguments, handshake
from kofn.rows.shards.ranks import Ranks
from kofn.rows.shards.reductions import GroupRows


class Shards(NamedTuple):
    """A rank's part of the rows, `dim` last in the compute dtype, and what holds for whole rows.

    k is not compared with the number of entries yet, which no rank knows before the first sum.
    """

    scores: Tensor  # −inf where excluded; one such entry if this rank has none
    k: Tensor  # per row, float64; NaN where a tensor of k is negative; with costs, the budget
    k_number: float | None  # k as it was given, if that was a number
    temperature: Tensor  # per row
    link: Link  # an inner link; its parameter is a number or per row
    form: Form  # of this rank's scores
    over: GroupRows
    costs: Tensor | None = None  # as given: NaN, < 0 and inf included

    @property
    def given(self) -> Given[Tensor]:
        """Return the same as rows of this rank alone."""
        return Given(self.scores, self.k, self.temperature, self.link, None, self.costs)

    @property
    def ranks(self) -> Ranks:
        return self.over.ranks

    @property
    def size(self) -> int:
        """Return how many entries of each row this rank has."""
        return self.form.n


def shards(
    over: GroupRows, scores: Any, dim: int, asked: Asked, others: Arguments = NONE
) -> Shards:
    """Check this rank's arguments, and that the other ranks have the same.

    Args:
        over: the reductions of the rows, and the ranks that hold the other parts.
        others: further arguments that must be the same.
    """

    def check() -> Shards:
        return _checked(over, scores, dim, asked)

    def arguments(checked: Shards) -> Arguments:
        own = _arguments_of(checked, asked)
        return Arguments(own.words + others.words, [*own.numbers, *others.numbers])

    return handshake(over.ranks, scores, check, arguments)


def form_of_shard(
    name: str, scores: Any, dim: int, of: str = "scores", integers: bool = False
) -> Form:
    """Check this rank's scores for the function of this name; `of` is what it calls them."""
    form = form_of(scores, dim, of, integers)
    if form.kind != "torch":
        raise TypeError(f"{name} takes a torch.Tensor; got {shown(scores)}")
    return form


def _checked(over: GroupRows, scores: Any, dim: int, asked: Asked) -> Shards:
    """Check this rank's arguments."""
    k, link, temperature, mask, costs = asked
    form = form_of_shard(over.ranks.name, scores, dim)
    require_eager(over.ranks.name, scores, k, temperature, link.alpha, costs)
    x = form.rows(without_deleted(scores))
    if mask is not None:
        x = torch.where(last_mask(mask, scores, form), x, -math.inf)  # type: ignore[call-overload]  # of torch
    batch = tuple(x.shape[:-1])
    if form.n == 0:
        # Joined to the scores, whose part of the graph the other ranks have, too.
        x = torch.cat([x, full_like(x, (*batch, 1), -math.inf)], -1)
    like = x.detach()
    inner = link.inner
    if framework(inner.alpha) is not None:
        alpha = spread(per_row_of("alpha", inner.alpha, batch, like, form.dim), batch, like)
        inner = inner.with_alpha(torch.where((alpha >= 1) & (alpha < math.inf), alpha, math.nan))  # type: ignore[call-overload]  # of torch
    if costs is None:
        number, per_row = k_of(k, batch, like, form.dim)
    else:
        number, per_row = None, budget_of(k, batch, like, form.dim)  # type: ignore[assignment]  # of torch
        given, costs = costs, costs_of(costs, scores, x, form)
        if form.n == 0 and isinstance(given, Tensor):  # the graph that the other ranks have
            costs = costs + (0 * given.to(x.dtype)).sum()
    t = temperature_or_number(temperature, batch, like, form.dim)
    t = full_like(like, batch, t) if isinstance(t, float) else t
    return Shards(x, per_row, number, t, inner, form, over, costs)  # type: ignore[arg-type]  # of torch


def k_of(k: Any, batch: tuple[int, ...], like: Tensor, dim: int) -> tuple[float | None, Tensor]:
    """Return k as a number, if it is one, and per row in float64."""
    if k is ONE:  # one, or none along an empty dimension
        return None, torch.ones(batch, dtype=torch.float64, device=like.device)
    if type(k) in NUMBERS or framework(k) is None:
        number = check_number("k", k, low=0.0, allowed="a number in [0, n]")
        return number, torch.full(batch, number, dtype=torch.float64, device=like.device)
    per_row = spread(per_row_of("k", k, batch, like, dim).double(), batch, like.double()[..., :0])  # type: ignore[attr-defined]  # of torch
    return None, torch.where(per_row >= 0, per_row, math.nan)  # type: ignore[call-overload]  # of torch


def require_eager(name: str, *arrays: Any) -> None:
    """Refuse what no all-reduce of kofn's can be differentiated by, or traced into."""
    if not all(is_eager(array) for array in arrays if isinstance(array, Tensor)):
        raise TypeError(
            f"{name} takes plain tensors and DTensors, in eager PyTorch: torch.func (grad, vmap, "
            "jvp), forward-mode differentiation and tracing cannot follow its all-reduces between "
            "processes. Use backward() or torch.autograd.grad"
        )


def _arguments_of(checked: Shards, asked: Asked) -> Arguments:
    """Return what must be the same on all ranks, in words that an error can repeat."""
    k, _, temperature, _, costs = asked
    form, link = checked.form, checked.link
    shape = [*map(str, form.batch)]
    shape.insert(len(shape) + 1 + form.dim, "*")
    number, alpha = link.static_and_array_alpha()
    recorded = is_recorded(checked.scores)
    wanted = f"k {_described(k)}"
    if checked.costs is not None:
        has = "with" if is_recorded(checked.costs) else "without"
        costs = f"in a tensor {has} a gradient" if isinstance(costs, Tensor) else repr(costs)
        wanted = f"costs {costs}, budget {_described(k)}"
    words = (
        f"got scores of shape ({', '.join(shape)}), {form.dtype_name}, "
        f"{'with' if recorded else 'without'} a gradient; link {link.id} {number}, "
        f"{wanted}, temperature {_described(temperature)}, alpha {_described(alpha)}"
    )
    given = (k, checked.k), (temperature, checked.temperature), (alpha, alpha)
    numbers: list[Any] = [per_row for one, per_row in given if isinstance(one, Tensor)]
    return Arguments(words, numbers)


def _described(value: Any) -> str:
    if value is ONE:
        return "1"
    if not isinstance(value, Tensor):
        return f"{value!r}"
    return f"of shape {tuple(value.shape)} {'with' if is_recorded(value) else 'without'} a gradient"
