"""The k-subset distribution of rows in several processes: marginals and the partition function."""

from __future__ import annotations

from typing import Any

from kofn import links
from kofn.arrays.checks import check_integer, check_same_kind, shown
from kofn.arrays.typing import Tensor
from kofn.distributed.over_shards import Group, outside_of_graphs, torch_layout_of
from kofn.distributions import k_subset as whole
from kofn.rows.shards.asked import Asked

__all__ = ["KSubset"]


class KSubset:
    """The distribution P(S) ∝ exp Σ_{i∈S} logits_i over subsets of size k of whole rows.

    It is `kofn.KSubset` of the rows that the shards of all processes make, as far as marginals and
    the partition function go. A method takes 3 all-reduces, one for each step of the search for a
    threshold, one of 40 bytes per row, and one of two numbers per row and node of a quadrature: 15
    nodes at most, 27 for float64. No process gathers a row.

    Args:
        logits, group, dim, mask: as the scores, group, dim and mask of
            `kofn.distributed.soft_topk`.
        k: an integer, or a tensor of integers per row, the same in every process.

    Raises:
        TypeError, ValueError: in the methods, in every process: k is no integer, or as for
            `kofn.distributed.soft_topk`.

    Example:
        >>> import torch
        >>> from kofn.distributed import KSubset
        >>> def marginals(shard: torch.Tensor) -> torch.Tensor:  # in every process
        ...     return KSubset(shard, 100).marginals()
    """

    def __init__(
        self,
        logits: Tensor,
        k: int | Tensor,
        *,
        group: Group = None,
        dim: int = -1,
        mask: Tensor | None = None,
    ) -> None:
        self.logits, self.group, self.dim, self.mask = logits, group, dim, mask
        self.k = k

    def marginals(self) -> Tensor:
        """Return π_i = Pr(i ∈ S) of this process's entries; all sum to k. A DTensor for DTensors.

        Its `backward` takes one all-reduce.
        """
        return _called("marginals", self.logits, self.k, self.group, self.dim, self.mask)

    def log_partition(self) -> Tensor:
        """Return log Σ_S exp Σ_{i∈S} logits_i per row, the same in every process.

        Its gradient is `marginals`, and needs no all-reduce.
        """
        return _called("log_partition", self.logits, self.k, self.group, self.dim, self.mask)

    def __repr__(self) -> str:
        shape = tuple(getattr(self.logits, "shape", ()))
        return f"KSubset(shard of logits of shape {shape}, k={shown(self.k)}, dim={self.dim})"


@outside_of_graphs
def _called(method: str, logits: Any, k: Any, group: Any, dim: int, mask: Any) -> Any:
    from kofn.subsets import of_shards  # imports PyTorch

    layout = torch_layout_of(f"kofn.distributed.KSubset.{method}", logits, group, dim)
    with layout.checking():
        k = layout.per_row("k", _checked(k, logits))
        mask = layout.per_entry("mask", mask)
    of_rows = method == "log_partition"
    if not layout.is_cut:
        choice = whole.KSubset(layout.scores, k, dim, mask)
        return layout.restored(getattr(choice, method)(), of_rows)
    shards = layout.checked(Asked(k, links.logistic, 1.0, mask))
    return layout.restored(getattr(of_shards, method)(shards), of_rows, shards.form)


def _checked(k: Any, logits: Any) -> Any:
    if not hasattr(k, "dtype"):
        return check_integer("k", k, "an integer ≥ 0, or a tensor of integers", 0)
    check_same_kind("k", k, logits, "logits")
    if "int" not in str(k.dtype):
        raise TypeError(f"k must be an integer or a tensor of integers; got dtype {k.dtype}")
    return k
