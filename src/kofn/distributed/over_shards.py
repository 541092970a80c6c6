"""The way of a map of rows that lie in several processes, or on several JAX devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_flag
from kofn.arrays.dtensor import is_dtensor
from kofn.arrays.kinds import framework, is_jax, quiet_for
from kofn.arrays.without_onnx import refuse
from kofn.distributed.layout import SCORES, Layout, Scores
from kofn.links import Link, table
from kofn.operations.choice import HARD
from kofn.operations.operation import ENTRY, Operation
from kofn.rows.integral import require_integral
from kofn.rows.shards.asked import Asked

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

Group: TypeAlias = "ProcessGroup | DeviceMesh | None"
AxisName = str | tuple[str, ...] | None
Answer = TypeVar("Answer")
Given = ParamSpec("Given")


class Map(NamedTuple):
    """A map of rows in several processes."""

    name: str
    operation: Operation
    whole: Callable[..., Any]
    """whole(scores, …, link=, temperature=, dim=, mask=) of rows that no process shares."""
    has_integral: bool = False


def outside_of_graphs(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Make a function that torch.compile leaves out of its graphs, and that JAX's rules suit."""

    @wraps(function)
    def called(*arguments: Given.args, **others: Given.kwargs) -> Answer:
        refuse("distributed.*")
        torch = sys.modules.get("torch")
        if torch is None or not torch.compiler.is_compiling():
            with quiet_for("jax" if any(map(is_jax, arguments)) else None):
                return function(*arguments, **others)
        from kofn.arrays.torch.untraced import outside_of_graphs  # imports the compiler

        return outside_of_graphs(function, *arguments, **others)

    return called


@outside_of_graphs
def over_shards(
    of: Map,
    scores: Any,
    k: Any,
    group: Any,
    axis_name: AxisName,
    link: Any,
    temperature: Any,
    dim: int,
    mask: Any,
    hard: Any = None,
    costs: Any = None,
) -> Any:
    """Return this process's part of a map, or its number per row.

    With costs, k is the budget. `hard` is None for a map without this argument.
    """
    layout = layout_of(f"kofn.distributed.{of.name}", scores, group, axis_name, dim)
    operation, of_rows = of.operation, of.operation.answers[0].kind != ENTRY
    with layout.checking():
        link = layout.link(link_of(link))
        flags = {} if hard is None else {"hard": check_flag("hard", hard)}
        if of.has_integral:
            require_integral(link, layout.scores)
        k = layout.per_row("k" if costs is None else "budget", k)
        temperature = layout.per_row("temperature", temperature)
        costs, mask = layout.per_entry("costs", costs), layout.per_entry("mask", mask)
    if not layout.is_cut:
        numbers = (k,) if costs is None else (costs, k)
        options = dict(link=link, temperature=temperature, dim=dim, mask=mask, **flags)
        return layout.restored(of.whole(layout.scores, *numbers, **options), of_rows)
    words = f", hard={hard}" if flags else ""
    rows = layout.checked(Asked(k, link, temperature, mask, costs), words)
    if operation is HARD or (hard and costs is not None):
        weights = layout.chosen(rows)
    else:
        weights = layout.answer(operation, rows)
        if hard:
            weights = layout.chosen(rows) + (weights - stop_gradient(weights))
    return layout.restored(weights, of_rows, rows.form)


def layout_of(
    name: str, scores: Any, group: Any, axis_name: AxisName, dim: Any, of: Scores = SCORES
) -> Layout:
    """Return how the rows of scores lie; raise an error for arguments of another framework."""
    if not is_jax(scores):
        if axis_name is None:
            return torch_layout_of(name, scores, group, dim, of)
        raise TypeError(
            f"{name}: axis_name is for JAX arrays inside jax.shard_map; {of.name} is "
            f"{framework(scores) or type(scores).__name__}; pass group, the processes with the rest"
        )
    if group is not None:
        raise TypeError(
            f"{name}: group is for torch tensors; {of.name} is a JAX array; pass axis_name, "
            "the axes of jax.shard_map along which its rows lie"
        )
    if axis_name is None:
        raise ValueError(
            f"{name}: {of.name} is a JAX array; give axis_name, the axes of jax.shard_map along "
            "which its rows lie; outside of shard_map, kofn's own functions take arrays on any mesh"
        )
    from kofn.distributed.on_axes import OnAxes

    return OnAxes(name, scores, dim, axis_name, of)


def torch_layout_of(name: str, scores: Any, group: Any, dim: Any, of: Scores = SCORES) -> Layout:
    """Return how the rows of a shard or of a DTensor lie."""
    if is_dtensor(scores):
        from kofn.distributed.on_mesh import OnMesh

        return OnMesh(name, scores, dim, group, of)
    from kofn.distributed.on_group import OnGroup

    return OnGroup(name, scores, dim, (group,), of)


def link_of(link: Any) -> Link:
    """Return the link that is given by its name, as an object, or as a call that makes one."""
    return link() if isinstance(link, partial) else table.resolve(link)
