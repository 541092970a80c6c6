"""Sparse attention copies sequences longer than those it was trained at.

    python examples/long_context.py      # the table, a minute

Two layers of attention read symbols and a separator, and predict the same symbols, trained at up to
64 positions. The table has the share of right ones. See also `python -m studies.attention`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.nn import functional

from kofn import nn

SYMBOLS, WIDTH, HEADS, BATCH, RATE = 16, 64, 4, 32, 2e-3
LENGTHS = (64, 128, 256, 512)


class Model(torch.nn.Module):
    def __init__(self, **weights: object) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(SYMBOLS + 1, WIDTH)
        self.layers = torch.nn.ModuleList(
            nn.SparseAttention(WIDTH, HEADS, batch_first=True, **weights) for _ in range(2)
        )
        self.out = torch.nn.Linear(WIDTH, SYMBOLS)

    def forward(self, inputs: Tensor) -> Tensor:
        x, mask = self.embed(inputs), later_and_far(*inputs.shape)
        for attention in self.layers:
            y = functional.layer_norm(x, (WIDTH,))
            x = x + attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return self.out(x)


def later_and_far(count: int, length: int) -> Tensor:
    """Hide later positions; two of four heads have a penalty on distance, the others none."""
    apart = torch.arange(length)[:, None] - torch.arange(length)
    slopes = torch.tensor([1.0, 0.25, 0, 0])[:, None, None]
    return (-slopes * apart).masked_fill(apart < 0, -torch.inf).repeat(count, 1, 1)


def score(model: Model, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the loss and the share of right symbols of new sequences."""
    symbols = torch.randint(SYMBOLS, (count, length // 2))
    inputs = functional.pad(symbols[:, :-1], (1, 0), value=SYMBOLS)  # the separator before them
    logits = model(torch.cat([symbols, inputs], -1))[:, length // 2 :]
    loss = functional.cross_entropy(logits.flatten(0, 1), symbols.flatten())
    return loss, (logits.argmax(-1) == symbols).float().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    print(f"{'length':16s}", *(f"{length:5d}" for length in LENGTHS))
    for weights in ({"weights": "entmax"}, {"weights": "soft_topk", "k": 4, "learned": ("k",)}):
        torch.manual_seed(0)
        model = Model(**weights)
        adam = torch.optim.Adam(model.parameters(), RATE)
        for _ in range(steps):
            score(model, BATCH, int(torch.randint(16, 65, ())))[0].backward()
            adam.step()
            adam.zero_grad()
        with torch.no_grad():
            shares = [score(model, 8, length)[1].item() for length in LENGTHS]
        print(f"{weights['weights']:16s}", *(f"{share:5.2f}" for share in shares))


if __name__ == "__main__":
    main()
