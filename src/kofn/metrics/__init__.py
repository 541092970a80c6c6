"""Metrics of weights and of maps: sparsity, softness and sensitivity."""

from kofn.arrays.names import answer_for_others
from kofn.metrics.entropies import renyi_entropy, tsallis_entropy
from kofn.metrics.jacobian import jacobian_norm
from kofn.metrics.sparse_softmax import sparse_softmax_entropy
from kofn.metrics.temperature import temperature_for
from kofn.metrics.weights import (
    effective_support,
    entropy,
    hard_gap,
    order_violations,
    sparsity,
    support_size,
)

__all__ = [
    "effective_support",
    "entropy",
    "hard_gap",
    "jacobian_norm",
    "order_violations",
    "renyi_entropy",
    "sparse_softmax_entropy",
    "sparsity",
    "support_size",
    "temperature_for",
    "tsallis_entropy",
]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)
