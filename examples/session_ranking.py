"""Rank the items of sessions of different lengths by their clicks: segment_topk_loss.

    python examples/session_ranking.py     # 10 seconds

A batch is one long axis of items, and `session` says which session an item belongs to. Every
session has its own level: all of its items are seen with a bias that says nothing about clicks.
segment_topk_loss compares items of one session only, so the bias cancels; binary cross-entropy per
item must explain it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kofn import segment_hard_topk
from kofn.losses import segment_topk_loss

FEATURES, SESSIONS, STEPS = 20, 64, 300


def sessions(rng: torch.Generator, taste: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(features of the items, the session of each, clicks: one to four in a session)."""
    sizes = torch.randint(4, 31, (SESSIONS,), generator=rng)
    session = torch.repeat_interleave(torch.arange(SESSIONS), sizes)
    x = torch.randn(len(session), FEATURES, generator=rng)
    x += 3 * torch.randn(SESSIONS, FEATURES, generator=rng)[session]  # the level of a session
    liking = x @ taste + 0.5 * torch.randn(len(session), generator=rng)
    clicks = torch.randint(1, 5, (SESSIONS,), generator=rng).float()
    return x, session, segment_hard_topk(liking, clicks, segment_ids=session)


def recall(use_segments: bool, seed: int) -> float:
    """The share of clicked items among the best scores, as many as there are clicks."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    taste = torch.randn(FEATURES, generator=rng) / FEATURES**0.5
    net = nn.Linear(FEATURES, 1)
    adam = torch.optim.Adam(net.parameters(), lr=3e-2)
    for _ in range(STEPS):
        x, session, clicked = sessions(rng, taste)
        scores = net(x).squeeze(-1)
        adam.zero_grad()
        if use_segments:
            segment_topk_loss(scores, clicked, segment_ids=session).backward()
        else:
            F.binary_cross_entropy_with_logits(scores, clicked).backward()
        adam.step()
    with torch.no_grad():
        x, session, clicked = sessions(rng, taste)
        k = torch.zeros(SESSIONS).index_add(0, session, clicked)
        best = segment_hard_topk(net(x).squeeze(-1), k, segment_ids=session)
    return ((best * clicked).sum() / clicked.sum()).item()


def main() -> None:
    for name, use in (("binary cross-entropy", False), ("segment_topk_loss", True)):
        found = torch.tensor([recall(use, seed) for seed in range(5)])
        print(f"{name:22s} recall {found.mean():.3f} ± {found.std():.3f}", flush=True)


if __name__ == "__main__":
    main()
