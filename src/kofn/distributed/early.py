"""Errors that a rank finds before the header: the other ranks wait there, and get them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kofn import links
from kofn.arrays.kinds import is_jax
from kofn.links import Link, table

Checked = TypeVar("Checked")


def checked_on_all_ranks(
    name: str, scores: Any, group: Any, dim: Any, check: Callable[[], Checked]
) -> Checked:
    """Return check(); the other ranks get its error, too, unless the group cannot be found."""
    try:
        return check()
    except Exception as error:
        if not is_jax(scores):
            _raise_elsewhere(name, scores, group, dim, error)
        raise


def link_of(name: str, scores: Any, group: Any, dim: Any, link: Any) -> Link:
    """Return the link given by name or as an object."""
    return checked_on_all_ranks(name, scores, group, dim, lambda: table.resolve(link))


def link_of_loss(given: Any) -> Link | None:
    """Return the link of a loss; of entmax, its alpha is given."""
    if given is None:
        return None
    return links.entmax(given[1]) if type(given) is tuple else table.resolve(given)


def _raise_elsewhere(name: str, scores: Any, group: Any, dim: Any, failure: Exception) -> None:
    """Take part in the header of the other ranks, with an error."""
    from kofn.shards.header import Arguments, handshake
    from kofn.shards.ranks import ranks_of

    try:
        groups = _groups(name, scores, group, dim)
        ranks = ranks_of(groups, name, scores)
    except Exception:
        return  # without a group there is nobody to tell

    def check() -> Any:
        raise failure

    if groups:
        handshake(ranks, scores, check, lambda _: Arguments(""))


def _groups(name: str, scores: Any, group: Any, dim: Any) -> tuple[Any, ...]:
    if not hasattr(scores, "device_mesh"):
        return (group,)
    from kofn.arrays.checks import check_dim

    return groups_of(scores, check_dim(dim, scores.ndim))


def groups_of(scores: Any, dim: int, of_rows: bool = True) -> tuple[Any, ...]:
    """Return the groups of a DTensor that have parts of a row, or of the other dimensions."""
    mesh, along = scores.device_mesh, dim + scores.ndim
    ways = enumerate(scores.placements)
    cut = [i for i, one in ways if one.is_shard() and (one.dim == along) == of_rows]
    return tuple(mesh.get_group(i) for i in cut)
