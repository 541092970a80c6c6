"""Losses and logarithms for `kofn bench --case losses`, beside PyTorch's cross-entropy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import kofn
from kofn import losses
from kofn.commands.bench.cases import Case, Contender, Map, ours


def contenders(case: Case) -> Iterator[Contender]:
    """Yield the losses of a case; targets are drawn here, alike in every run."""
    target, k = labels(case), case.k
    by_torch = cross_entropy(target)
    yield Contender("F.cross_entropy", "baseline", by_torch, by_torch)
    of_labels = ("softmax_loss", "sparsemax_loss", "entmax_loss", "accuracy_loss")
    yield from ours(
        {
            **{name: partial(getattr(losses, name), target=target) for name in of_labels},
            "topk_loss": partial(losses.topk_loss, target=chosen(case)),
            "fenchel_young_loss": partial(kofn.fenchel_young_loss, target=chosen(case)),
            "topk_cross_entropy": partial(losses.topk_cross_entropy, target=target, k=5),
            "sparse_softmax_loss": partial(losses.sparse_softmax_loss, target=target, k=k),
            "am_softmax": lambda x: losses.am_softmax(x / 8, target)[0],
            "arcface": lambda x: losses.arcface(x / 8, target)[0],
            "log_soft_topk": partial(kofn.log_soft_topk, k=k),
            "log_softmax": partial(kofn.log_soft_topk, k=1, link="exponential"),
            "sparse_softmax": partial(kofn.sparse_softmax, k=k),
            "taylor_softmax": kofn.taylor_softmax,
        }
    )


def cross_entropy(target: Tensor) -> Map:
    """Return PyTorch's cross-entropy in float32, or in float64 of scores that are."""

    def cross_entropy(x: Tensor) -> Tensor:
        return F.cross_entropy(x if x.dtype == torch.float64 else x.float(), target)

    return cross_entropy


def labels(case: Case) -> Tensor:
    """Draw the index of an entry for each row."""
    rows, n = case.shape
    return torch.randint(n, (rows,), generator=torch.Generator().manual_seed(2))


def chosen(case: Case) -> Tensor:
    """Draw k entries of each row, as booleans."""
    drawn = torch.rand(case.shape, generator=torch.Generator().manual_seed(2))
    return torch.zeros(case.shape, dtype=torch.bool).scatter(-1, drawn.topk(case.k).indices, True)
