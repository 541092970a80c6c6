"""Losses between scores and targets. docs/losses.md says which loss to use when.

Targets are integers, the index of the correct entry (the batch shape), or weights with the shape
of the scores: one-hot, k-hot, or soft. Rows whose integer is `ignore_index`, and fully masked
rows, have loss 0 and are excluded from the mean; a mean over no rows is 0.
"""

from kofn.arrays.names import answer_for_others
from kofn.losses.distillation import topk_kl
from kofn.losses.fenchel_young import (
    entmax_loss,
    fenchel_young_loss,
    softmax_loss,
    sparsemax_loss,
    topk_loss,
)
from kofn.losses.likelihood import (
    accuracy_loss,
    epsilon_cross_entropy,
    perturbed_accuracy_loss,
    topk_cross_entropy,
)
from kofn.losses.margins import am_softmax, arcface
from kofn.losses.segments import segment_sparse_softmax_loss, segment_topk_loss
from kofn.losses.sparse_softmax import sparse_softmax_loss

__all__ = [
    # cross-entropy and its relatives: convex, 0 only at the target
    "softmax_loss",
    "sparsemax_loss",
    "entmax_loss",
    "topk_loss",
    "segment_topk_loss",
    "fenchel_young_loss",
    # likelihoods of other maps
    "sparse_softmax_loss",
    "segment_sparse_softmax_loss",
    "topk_cross_entropy",
    "epsilon_cross_entropy",
    # a teacher's most likely tokens
    "topk_kl",
    # accuracy itself
    "accuracy_loss",
    "perturbed_accuracy_loss",
    # cosines with a margin
    "am_softmax",
    "arcface",
]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
