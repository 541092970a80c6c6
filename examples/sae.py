"""How many latents of a sparse autoencoder never fire? The usual top-k against kofn's TopKSAE.

    python examples/sae.py              # the table, 3 seeds, half a minute

Autoencoders learn scikit-learn's digits and keep 8 of 512 latents. With the usual gradient, a
latent that is not kept learns nothing; TopKSAE gives a gradient to latents that have been silent.
The table has the unexplained share of the held-out variance, and the share of dead latents, which
fire for no training image, and the latents per held-out image.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from kofn import nn

LATENTS, K, STEPS, BATCH, RATE, HELD_OUT = 512, 8, 500, 256, 1e-3, 360

WAYS = {
    "usual top-k": dict(gradient="chosen"),
    "TopKSAE": dict(),
    "TopKSAE, whole batch": dict(selection="batch"),
}


def digits(seed: int) -> tuple[Tensor, Tensor]:
    """Training and held-out images, with mean 0 and variance 1 over all pixels."""
    x = torch.tensor(load_digits().data, dtype=torch.float32)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
    x = (x - x.mean(0)) / x.std()
    return x[HELD_OUT:], x[:HELD_OUT]


def run(name: str, seed: int) -> tuple[float, float, float]:
    """(unexplained share of the held-out variance, share of dead latents, latents per image)."""
    torch.manual_seed(seed)
    train, test = digits(seed)
    sae = nn.TopKSAE(64, LATENTS, K, **WAYS[name])
    optimizer = torch.optim.Adam(sae.parameters(), lr=RATE)
    optimizer.register_step_post_hook(lambda *_: sae.step())
    for _ in range(STEPS):
        x = train[torch.randint(len(train), (BATCH,))]
        optimizer.zero_grad()
        (sae(x).reconstruction - x).square().mean().backward()
        optimizer.step()
    sae.eval()
    with torch.no_grad():
        reconstruction, code, _ = sae(test)
        left = (reconstruction - test).square().mean() / test.square().mean()
        dead = (sae.encode(train) == 0).all(0).float().mean()
    return left.item(), dead.item(), (code > 0).sum(-1).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"{K} of {LATENTS} latents{'':10s}unexplained       dead latents   latents per image")
    for name in WAYS:
        lefts, deads, fired = zip(*(run(name, seed) for seed in seeds), strict=True)
        cells = (f"{statistics.mean(v):.3f} ± {statistics.pstdev(v):.3f}" for v in (lefts, deads))
        print(f"{name:23s}", *cells, f"{statistics.mean(fired):12.2f}", sep="   ")


if __name__ == "__main__":
    main()
