"""A teacher of which a student sees the most likely tokens, and what it is compared by."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from kofn.losses import topk_kl

TOKENS, WIDTH, NAMED, BATCH, UPDATES = 256, 32, 8, 64, 5


class Teacher(nn.Module):
    """Logits by a random perceptron of a point, with a peak and a long tail."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, TOKENS))
        with torch.no_grad():
            for each in self.net.parameters():
                each.mul_(3.0)

    def forward(self, x: Tensor) -> Tensor:
        return (2.0 * self.net(x)).log_softmax(-1)


def student() -> nn.Module:
    """Return a network that is narrower than the teacher."""
    return nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, TOKENS))


def full(scores: Tensor, log_p: Tensor) -> Tensor:
    """Return KL(p‖q) over all tokens, of each row."""
    return (log_p.exp() * (log_p - scores.log_softmax(-1))).sum(-1)


def truncated(scores: Tensor, ids: Tensor, log_p: Tensor) -> Tensor:
    """Return the sum over the named tokens alone, which may be negative."""
    return (log_p.exp() * (log_p - scores.log_softmax(-1).gather(-1, ids))).sum(-1)


def costs(method: str, scores: Tensor, log_p: Tensor) -> Tensor:
    """Return what a method minimises, of each row."""
    if method == "full":
        return full(scores, log_p)
    named, ids = log_p.topk(NAMED)
    if method in ("truncated", "clamped"):
        found = truncated(scores, ids, named)
        return found.clamp(min=0) if method == "clamped" else found
    tail: Literal["bucket", "renormalise"] = "bucket" if method == "bucket" else "renormalise"
    return topk_kl(scores, ids, named, tail=tail, reduction="none")
