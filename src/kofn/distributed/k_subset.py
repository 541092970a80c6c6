"""The k-subset distribution of rows in several processes: marginals and the partition function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kofn import links
from kofn.arrays.checks import check_integer, check_same_kind, shown
from kofn.distributed.early import checked_on_all_ranks
from kofn.distributions import k_subset as whole

if TYPE_CHECKING:
    from torch import Tensor

    from kofn.distributed.over_shards import Group

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
        return self._called("marginals", of_rows=False)

    def log_partition(self) -> Tensor:
        """Return log Σ_S exp Σ_{i∈S} logits_i per row, the same in every process.

        Its gradient is `marginals`, and needs no all-reduce.
        """
        return self._called("log_partition", of_rows=True)

    def _called(self, method: str, of_rows: bool) -> Any:
        from kofn.distributed.placements import on_shards

        name = f"kofn.distributed.KSubset.{method}"
        given = self.logits, self.group, self.dim
        k = checked_on_all_ranks(name, *given, lambda: _checked(self.k, self.logits))

        def run(logits: Any, groups: Any, *, k: Any, mask: Any) -> Any:
            if not groups:
                return getattr(whole.KSubset(logits, k, self.dim, mask), method)()
            from kofn.distributed import subset_sums
            from kofn.shards.given import shards as checked

            link = links.logistic
            shards = checked(name, logits, k, link, 1.0, self.dim, mask, groups)
            found = getattr(subset_sums, method)(shards)
            return found if of_rows else shards.form.restored(found)

        return on_shards(
            name,
            run,
            self.logits,
            self.dim,
            self.group,
            per_row=dict(k=k),
            per_entry=dict(mask=self.mask),
            of_rows=of_rows,
        )

    def __repr__(self) -> str:
        shape = tuple(getattr(self.logits, "shape", ()))
        return f"KSubset(shard of logits of shape {shape}, k={shown(self.k)}, dim={self.dim})"


def _checked(k: Any, logits: Any) -> Any:
    if not hasattr(k, "dtype"):
        return check_integer("k", k, "an integer ≥ 0, or a tensor of integers", 0)
    check_same_kind("k", k, logits, "logits")
    if "int" not in str(k.dtype):
        raise TypeError(f"k must be an integer or a tensor of integers; got dtype {k.dtype}")
    return k
