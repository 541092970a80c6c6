"""The way of a map of rows that lie in several processes, or on several JAX devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kofn.arrays.checks import check_flag
from kofn.arrays.form import Form
from kofn.distributed import on_axes
from kofn.distributed.early import checked_on_all_ranks, link_of
from kofn.formulas.answers import require_integral
from kofn.links import Link
from kofn.operations.choice import HARD
from kofn.operations.operation import ENTRY, Operation

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    Group = ProcessGroup | DeviceMesh | None


class Map(NamedTuple):
    """A map of rows in several processes."""

    name: str
    operation: Operation
    whole: Callable[..., Any]
    """whole(scores, …, link=, temperature=, dim=, mask=) of rows that no process shares."""
    has_integral: bool = False


def over_shards(
    of: Map,
    scores: Any,
    group: Any,
    axis_name: Any,
    link: Any,
    temperature: Any,
    dim: int,
    mask: Any,
    hard: Any = None,
    **numbers: Any,
) -> Any:
    """Return this process's part of a map, or its number per row.

    `numbers` are k, or costs and budget; `hard` is None for a map without this argument.
    """
    name, operation = f"kofn.distributed.{of.name}", of.operation
    link = link_of(name, scores, group, dim, link)
    flags = {} if hard is None else {"hard": hard}
    if hard is not None:
        checked_on_all_ranks(name, scores, group, dim, lambda: check_flag("hard", hard))
    of_rows = operation.answers[0].kind != ENTRY
    if on_axes.is_asked(name, scores, group, axis_name):
        if of.has_integral:
            require_integral(link, scores)
        arguments = scores, [*numbers.values()][-1], link, temperature, dim, mask
        own = numbers.get("costs")
        return on_axes.answer(name, axis_name, operation, bool(hard), *arguments, own)
    from kofn.distributed.placements import on_shards

    def run(
        scores: Any, groups: Any, *, temperature: Any, alpha: Any, mask: Any, **own: Any
    ) -> Any:
        numbered = [own[each] for each in numbers]  # the costs, if any, then k or the budget
        inner = with_alpha(link, alpha)
        if not groups:
            return of.whole(
                scores, *numbered, link=inner, temperature=temperature, dim=dim, mask=mask, **flags
            )
        arguments = scores, numbered[-1], inner, temperature, dim, mask, groups
        found, form = _of_scores(of, name, hard, own.get("costs"), *arguments)
        return found if of_rows else form.restored(found)

    costs = {key: value for key, value in numbers.items() if key == "costs"}
    rows = {key: value for key, value in numbers.items() if key != "costs"}
    return on_shards(
        name,
        run,
        scores,
        dim,
        group,
        per_row=dict(**rows, temperature=temperature, alpha=array_alpha(link)),
        per_entry=dict(**costs, mask=mask),
        of_rows=of_rows,
    )


def _of_scores(of: Map, name: str, hard: Any, costs: Any, *arguments: Any) -> tuple[Any, Form]:
    """Return the answer for this process's shard, and the form of its scores."""
    from kofn.adapters.torch_shards import answer, knapsack_choice
    from kofn.shards import choice, given, header

    def others(checked: given.Shards) -> header.Arguments:
        if of.has_integral:
            require_integral(arguments[2], checked.scores)
        return header.Arguments("" if hard is None else f", hard={hard}")

    shards = given.shards(name, *arguments, others=others, costs=costs)
    if of.operation is HARD:
        return choice.hard(shards), shards.form
    if hard and costs is not None:
        return knapsack_choice(shards), shards.form
    found = answer(of.operation, shards)
    if hard:
        found = choice.hard(shards) + (found - found.detach())
    return found, shards.form


def with_alpha(link: Link, alpha: Any) -> Link:
    """Return the link with this process's part of a learned alpha."""
    if alpha is None:
        return link
    from kofn.links import entmax

    return entmax(alpha)


def array_alpha(link: Link) -> Any:
    """Return the alpha of a link if it is a tensor."""
    return link.inner.static_and_array_alpha()[1]
