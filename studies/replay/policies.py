"""Small language models that write tokens, and policy gradients on what they have written."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kofn import sparse_softmax
from kofn.losses import sparse_softmax_loss
from kofn.nn import TopKRouter, record_routing, replay_routing

TOKENS, WIDTH, LAYERS = 64, 32, 2
EXPERTS, CHOSEN = 16, 2
SEQUENCES, LENGTH = 32, 6
TOP_K, TOP_P = 20, 0.8
CLIP, UPDATES = 0.2, 2
NEAR = 4
"""A token is rewarded if it follows the one before by at most so many places of the alphabet."""


class Experts(nn.Module):
    """A layer of experts behind a router."""

    def __init__(self) -> None:
        super().__init__()
        self.router = TopKRouter(WIDTH, EXPERTS, CHOSEN, balance="quantile", ema=0.9)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        _, weights, indices = self.router(x)
        every = torch.einsum("th,ehi->tei", x, self.experts)  # few are quicker than to send tokens
        each = every.gather(1, indices[..., None].expand(-1, -1, WIDTH))
        return (weights[..., None] * each).sum(1)


class Model(nn.Module):
    """The next token from the last two: layers of a perceptron, or of experts."""

    def __init__(self, mixture: bool) -> None:
        super().__init__()
        self.letters = nn.Embedding(TOKENS, WIDTH)
        self.join = nn.Linear(2 * WIDTH, WIDTH)
        layer = Experts if mixture else lambda: nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS + 1))
        self.out = nn.Linear(WIDTH, TOKENS)
        with torch.no_grad():
            self.out.weight.mul_(3.0)  # so that some tokens are likelier from the beginning

    def forward(self, pairs: Tensor) -> Tensor:
        x: Tensor = self.join(self.letters(pairs).flatten(-2))
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = x + torch.relu(layer(norm(x)))
        logits: Tensor = self.out(self.norms[-1](x))
        return logits


class Sampled(NamedTuple):
    """What an engine returns of its tokens, the first of all sequences first."""

    pairs: Tensor
    tokens: Tensor
    log_probs: Tensor
    """Of the distributions that were sampled from."""
    kept: tuple[Tensor, Tensor] | None
    """Their sets, as vLLM has them: token ids, and where those of each token end."""
    experts: Tensor | None
    rewards: Tensor
    entropy: float


@torch.no_grad()
def sampled(model: Model, generator: Any, *, truncated: bool, mixture: bool) -> Sampled:
    """Return tokens of the model: of its k likeliest and a nucleus, or computed in bfloat16."""
    pairs = torch.randint(TOKENS, (SEQUENCES, 2), generator=generator)
    parts = []
    cast = torch.autocast("cpu", torch.bfloat16) if mixture else nullcontext()
    model.eval()
    with cast, record_routing(model) if mixture else nullcontext() as record:
        for _ in range(LENGTH):
            logits = model(pairs).float()
            p = sparse_softmax(logits, k=TOP_K, p=TOP_P) if truncated else logits.softmax(-1)
            token = torch.multinomial(p, 1, generator=generator)
            parts.append((pairs, token, p))
            pairs = torch.cat([pairs[:, 1:], token], 1)
    model.train()
    pairs, tokens, scores = (torch.cat(each) for each in zip(*parts, strict=True))
    ids = offsets = None
    if truncated:
        rows, ids = scores.nonzero(as_tuple=True)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), rows.bincount().cumsum(0)])
    tokens = tokens[:, 0]
    log_probs = scores.gather(1, tokens[:, None])[:, 0].log()
    ahead = (tokens - pairs[:, 1]) % TOKENS
    rewards = ((ahead > 0) & (ahead <= NEAR)).float()
    kept = None if ids is None or offsets is None else (ids, offsets)
    experts = None if record is None else record.indices
    entropy = torch.special.entr(scores).sum(-1).mean().item()
    return Sampled(pairs, tokens, log_probs, kept, experts, rewards, entropy)


def advantages(rewards: Tensor) -> Tensor:
    """Return the rewards of a sequence from a token on, less the mean of all sequences there."""
    ahead = rewards.view(LENGTH, -1).flip(0).cumsum(0).flip(0)
    centred = ahead - ahead.mean(1, keepdim=True)
    return (centred / centred.std().clamp(min=1e-6)).flatten()  # 0 where no reward differs


def log_probs(model: Model, seen: Sampled, method: str) -> Tensor:
    """Return the logarithms that the trainer gives the sampled tokens."""
    replays = replay_routing(model, seen.experts) if method == "experts" else nullcontext()
    with replays:
        logits = model(seen.pairs)
    if method == "kept":
        return -sparse_softmax_loss(logits, seen.tokens, kept=seen.kept, reduction="none")
    if method == "recomputed":
        sets: Any = dict(k=TOP_K, p=TOP_P)
        return -sparse_softmax_loss(logits, seen.tokens, reduction="none", **sets)
    return logits.log_softmax(-1).gather(1, seen.tokens[:, None])[:, 0]


def surrogate(log_probs: Tensor, seen: Sampled, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the clipped loss, and the ratios."""
    ratios = (log_probs - seen.log_probs).exp()
    clipped = ratios.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(ratios * weights, clipped * weights).mean(), ratios.detach()
