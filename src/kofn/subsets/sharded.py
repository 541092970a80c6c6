"""Sharding rules of the operators of k-subsets for DTensor; see `rows/sharded.py`."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor.experimental import register_sharding

from kofn.rows.sharded import placements, second
from kofn.subsets import torch_operators as operators


def _like_all(*arguments: Any) -> Any:
    """Return the placements of an answer that is sharded as every argument is."""
    batch = min(argument.ndim for argument in arguments)
    return [([way], [way] * len(arguments)) for way in placements(batch)]


def _marginals(y: Any, k: Any) -> Any:
    return [([way, second(way)], [way, way]) for way in placements(k.ndim)]


def _marginals_backward(cotangent: Any, y: Any, k: Any, placed: Any) -> Any:
    return [([way], [way, way, way, second(way)]) for way in placements(k.ndim)]


for _operator, _rule in (
    (operators.subset_log_count, _like_all),
    (operators.subset_log_count_backward, _like_all),
    (operators.subset_tails, _like_all),
    (operators.subset_tails_backward, _like_all),
    (operators.subset_covariance, _like_all),
    (operators.subset_marginals, _marginals),
    (operators.subset_marginals_backward, _marginals_backward),
):
    register_sharding(_operator)(_rule)
