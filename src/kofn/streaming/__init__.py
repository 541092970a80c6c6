"""Rows of any length, from memory-mapped files or in pieces: choose k of 10⁹ in little memory.

Each function reads its scores block by block, in two or three passes, and needs about 100 MB. All
entries of the arrays are one row, whatever their shapes; to `soft_assignment`, their rows are one
matrix. There are no gradients.

    scores = numpy.load("scores.npy", mmap_mode="r")
    kofn.streaming.topk_indices(scores, 1000)

docs/streaming.md has figures; the command `kofn apply` does the same from file to file.
"""

from kofn.arrays.names import answer_for_others
from kofn.streaming.assignment.weights import soft_assignment, soft_assignment_prices
from kofn.streaming.maps import hard_topk, soft_topk, soft_topk_threshold, topk_indices
from kofn.streaming.ordered import quantile, topk

__all__ = [
    "hard_topk",
    "quantile",
    "soft_assignment",
    "soft_assignment_prices",
    "soft_topk",
    "soft_topk_threshold",
    "topk",
    "topk_indices",
]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
