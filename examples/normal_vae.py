"""An autoencoder of digits with normal latents, trained by normal_rsample and by the score.

    python examples/normal_vae.py       # the table, 5 seeds, a minute or two

Each image of scikit-learn's digits is encoded by eight normal numbers, as in the first variational
autoencoder (Kingma & Welling 2013). The sample is mean + scale·noise, so the decoder's gradient
passes through it. leave_one_out does without that gradient, by four samples of the score function.
The table has the evidence lower bound of held-out images after 24 epochs, in nats per image.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from kofn import Normal, estimators, normal_rsample

LATENTS, INK, EPOCHS, BATCH, RATE = 8, 16, 24, 64, 2e-3
WAYS = ("normal_rsample", "normal_rsample, 4 samples", "leave_one_out, 4 samples")
MEASURED = "evidence bound of held-out images, in nats"
EVERY = "epochs"


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 2 * LATENTS))
        self.decoder = nn.Sequential(nn.Linear(LATENTS, 200), nn.ReLU(), nn.Linear(200, 64))

    def choice(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and scale of q(z | image)."""
        mean, log_scale = self.encoder(images / INK).chunk(2, -1)
        return mean, log_scale.exp()

    def cost(self, images: Tensor, z: Tensor) -> Tensor:
        """−log p(image | z), for samples on the first axis."""
        dots = torch.distributions.Binomial(INK, logits=self.decoder(z))
        return -dots.log_prob(images).sum(-1)


def divergence(mean: Tensor, scale: Tensor) -> Tensor:
    prior = Normal(torch.zeros_like(mean), torch.ones_like(scale))
    return Normal(mean, scale).kl(prior).sum(-1)


def loss(model: Autoencoder, images: Tensor, way: str, rng: torch.Generator) -> Tensor:
    mean, scale = model.choice(images)
    samples = 4 if "4" in way else 1
    if way.startswith("normal_rsample"):
        z = normal_rsample(mean, scale, rng, shape=(samples,))
        cost = model.cost(images, z).mean(0)
    else:
        choice = Normal(mean, scale)
        cost = estimators.leave_one_out(
            choice, lambda z: model.cost(images, z), rng, samples=samples
        )
    return (cost + divergence(mean, scale)).mean()


@torch.no_grad()
def bound(model: Autoencoder, images: Tensor) -> float:
    return -loss(model, images, WAYS[1], torch.Generator().manual_seed(0)).item()


def train(way: str, seed: int) -> list[tuple[int, float]]:
    """Return the bound of held-out images after every second epoch."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    data = torch.tensor(load_digits().data, dtype=torch.float32)
    images, held_out = data[torch.randperm(len(data), generator=rng)].split([1347, 450])
    model, curve = Autoencoder(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for epoch in range(1, EPOCHS + 1):
        for rows in torch.randperm(len(images), generator=rng).split(BATCH):
            optimizer.zero_grad()
            loss(model, images[rows], way, rng).backward()
            optimizer.step()
        if epoch % 2 == 0:
            curve.append((epoch, bound(model, held_out)))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print(MEASURED)
    for way in WAYS:
        ends = [train(way, seed)[-1][1] for seed in seeds]
        print(f"{way:26}{statistics.mean(ends):9.2f}  ", *(f"{end:.2f}" for end in ends))


if __name__ == "__main__":
    main()
