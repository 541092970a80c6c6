"""The maps for rows whose entries lie in several processes: no process gathers a row.

Every function takes this process's shard of the scores and `group`, or a DTensor that knows its
mesh. `import kofn` alone does not load this.
"""

from kofn.arrays.names import answer_for_others
from kofn.distributed.choices import hard_topk, soft_topk, soft_topk_sum, soft_topk_threshold
from kofn.distributed.distillation import topk_kl
from kofn.distributed.k_subset import KSubset
from kofn.distributed.knapsack import soft_knapsack, soft_knapsack_threshold, soft_knapsack_value
from kofn.distributed.losses import (
    entmax_loss,
    fenchel_young_loss,
    softmax_loss,
    sparsemax_loss,
    topk_loss,
)
from kofn.distributed.ordered import quantile, topk
from kofn.distributed.softmax import entmax, softmax, sparsemax
from kofn.distributed.sparse_softmax import (
    sparse_softmax,
    sparse_softmax_entropy,
    sparse_softmax_loss,
)

__all__ = [
    "soft_topk",
    "soft_topk_threshold",
    "soft_topk_sum",
    "hard_topk",
    "topk",
    "quantile",
    "softmax",
    "sparsemax",
    "entmax",
    "sparse_softmax",
    "sparse_softmax_entropy",
    "softmax_loss",
    "sparsemax_loss",
    "entmax_loss",
    "topk_loss",
    "fenchel_young_loss",
    "sparse_softmax_loss",
    "topk_kl",
    "soft_knapsack",
    "soft_knapsack_threshold",
    "soft_knapsack_value",
    "KSubset",
]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
