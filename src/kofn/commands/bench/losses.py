"""Losses and logarithms for `kofn bench --case losses`, beside PyTorch's cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kofn
from kofn import losses


def functions(shape: tuple[int, int], k: int) -> Iterator[tuple[str, str, Callable[[Any], Any]]]:
    """Yield (name, group, function of scores); targets are drawn here, alike in every run."""
    count, n = shape
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(n, (count,), generator=generator)
    hot = torch.zeros(shape, dtype=torch.bool)
    hot.scatter_(-1, torch.rand(shape, generator=generator).topk(k).indices, True)
    yield "F.cross_entropy", "baseline", lambda x: F.cross_entropy(x.to(_wide(x)), labels)
    for name in ("softmax_loss", "sparsemax_loss", "entmax_loss", "accuracy_loss"):
        yield name, "kofn", partial(getattr(losses, name), target=labels)
    yield "topk_loss", "kofn", partial(losses.topk_loss, target=hot)
    yield "fenchel_young_loss", "kofn", partial(kofn.fenchel_young_loss, target=hot)
    yield "topk_cross_entropy", "kofn", partial(losses.topk_cross_entropy, target=labels, k=5)
    small = partial(losses.sparse_softmax_loss, target=labels, k=k)
    yield "sparse_softmax_loss", "kofn", small
    yield "am_softmax", "kofn", lambda x: losses.am_softmax(x / 8, labels)[0]
    yield "arcface", "kofn", lambda x: losses.arcface(x / 8, labels)[0]
    yield "log_soft_topk", "kofn", partial(kofn.log_soft_topk, k=k)
    yield "log_softmax", "kofn", partial(kofn.log_soft_topk, k=1, link="exponential")
    yield "sparse_softmax", "kofn", partial(kofn.sparse_softmax, k=k)
    yield "taylor_softmax", "kofn", kofn.taylor_softmax


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
