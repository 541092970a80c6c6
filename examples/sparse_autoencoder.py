"""How many latent units of a sparse autoencoder never fire? Hard top-k against a soft gradient.

    python examples/sparse_autoencoder.py            # the table, 3 seeds, two minutes

Two autoencoders learn scikit-learn's digits and keep the k largest of their latent units. With the
hard top-k, a unit that is not chosen gets no gradient. `soft_topk(hard=True)` keeps the same units,
and the gradient of the soft weights reaches the other units. The table has the unexplained share of
the held-out variance, and the share of dead units, which are 0 for every training image.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from kofn import hard_topk, soft_topk

LATENT, K, TEMPERATURE = 512, 8, 0.02
STEPS, BATCH, RATE, HELD_OUT = 500, 256, 1e-3, 360

Choice = Callable[[Tensor], Tensor]


def hard(activations: Tensor) -> Tensor:
    """1 for the k largest, without a gradient; the chosen activations have their own."""
    return hard_topk(activations.detach(), K)


def soft(activations: Tensor) -> Tensor:
    """The same values, with the gradient of soft weights."""
    return soft_topk(activations, K, hard=True, temperature=TEMPERATURE)


WAYS: dict[str, Choice] = {"hard top-k": hard, "soft_topk(hard=True)": soft}


class Autoencoder(nn.Module):
    def __init__(self, choose: Choice) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(64, LATENT), nn.Linear(LATENT, 64)
        self.choose = choose
        with torch.no_grad():  # the usual start: unit directions, the same for encoder and decoder
            self.decode.weight /= self.decode.weight.norm(dim=0)
            self.encode.weight.copy_(self.decode.weight.T)

    def code(self, x: Tensor) -> Tensor:
        activations = self.encode(x - self.decode.bias)
        return activations * self.choose(activations)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.code(x))


def digits(seed: int) -> tuple[Tensor, Tensor]:
    """Training and held-out images, with mean 0 and variance 1 over all pixels."""
    x = torch.tensor(load_digits().data, dtype=torch.float32)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
    x = (x - x.mean(0)) / x.std()
    return x[HELD_OUT:], x[:HELD_OUT]


def run(choose: Choice, seed: int) -> tuple[float, float]:
    """(unexplained share of the held-out variance, share of dead units)."""
    torch.manual_seed(seed)
    train, test = digits(seed)
    net = Autoencoder(choose)
    adam = torch.optim.Adam(net.parameters(), lr=RATE)
    for _ in range(STEPS):
        x = train[torch.randint(len(train), (BATCH,))]
        adam.zero_grad()
        (net(x) - x).square().mean().backward()
        adam.step()
    with torch.no_grad():
        left = (net(test) - test).square().mean() / test.square().mean()
        dead = (net.code(train) == 0).all(0).float().mean()
    return left.item(), dead.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"{K} of {LATENT} units{'':16s}unexplained        dead units")
    for name, choose in WAYS.items():
        lefts, deads = zip(*(run(choose, seed) for seed in seeds), strict=True)
        cells = (f"{statistics.mean(v):.3f} ± {statistics.pstdev(v):.3f}" for v in (lefts, deads))
        print(f"{name:34s}", *cells, sep="   ")


if __name__ == "__main__":
    main()
