"""A discrete autoencoder of digits in one file, to copy and change.

    python examples/discrete_vae.py                    # Gumbel-softmax, annealed
    python examples/discrete_vae.py leave_one_out      # another estimator of kofn.estimators

Each image of scikit-learn's digits is encoded by three categorical choices of eight. This takes
half a minute on one core. `python -m studies.vae` compares all training methods, with checkpoints
and pictures.
"""

from __future__ import annotations

import math
import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from kofn import Categorical, estimators, schedules

FACTORS, CATEGORIES, INK = 3, 8, 16  # a pixel counts how many of 16 dots are black
EPOCHS, BATCH = 40, 64


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, FACTORS * CATEGORIES)
        )
        self.decoder = nn.Sequential(
            nn.Linear(FACTORS * CATEGORIES, 200), nn.ReLU(), nn.Linear(200, 64)
        )

    def choice(self, images: Tensor) -> Categorical:
        """q(z | image): the batch shape is (images, factors)."""
        return Categorical(self.encoder(images / INK).unflatten(-1, (FACTORS, CATEGORIES)))

    def log_likelihood(self, images: Tensor, z: Tensor) -> Tensor:
        """log p(image | z): z is (samples, images, factors, categories), hard or relaxed."""
        odds = self.decoder(z.flatten(-2))
        return torch.distributions.Binomial(INK, logits=odds).log_prob(images).sum(-1)


def train(model: Autoencoder, images: Tensor, name: str, rng: torch.Generator) -> None:
    estimator = getattr(estimators, name)
    samples = 2 if name == "leave_one_out" else 1
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    steps = EPOCHS * -(-len(images) // BATCH)
    cool = schedules.exponential(1.0, 0.1, steps=round(0.8 * steps))
    step = 0
    for epoch in range(EPOCHS):
        for part in torch.randperm(len(images), generator=rng).split(BATCH):
            batch = images[part]
            choice = model.choice(batch)
            # An estimate of −E log p(image | z) for each image, to differentiate.
            options = {"temperature": cool(step)} if name == "reparameterized" else {}
            cost = estimator(
                choice,
                lambda z, batch=batch: -model.log_likelihood(batch, z),
                rng,
                samples=samples,
                **options,
            )
            divergence = FACTORS * math.log(CATEGORIES) - choice.entropy().sum(-1)
            loss = (cost + divergence).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1:3}   bound on training images {bound(model, images, rng):.1f}")


@torch.no_grad()
def bound(model: Autoencoder, images: Tensor, rng: torch.Generator) -> float:
    """The evidence lower bound in nats per image, by hard samples."""
    choice = model.choice(images)
    z = choice.sample((4,), rng)
    prior = -FACTORS * math.log(CATEGORIES)
    return float((model.log_likelihood(images, z) + prior - choice.log_prob(z).sum(-1)).mean())


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "reparameterized"
    if name not in estimators.TABLE:
        raise SystemExit(
            f"the estimator must be one of {', '.join(estimators.TABLE)}; got {name!r}"
        )
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    data = torch.tensor(load_digits().data, dtype=torch.float32)
    data = data[torch.randperm(len(data), generator=rng)]
    images, held_out = data[:1347], data[1347:]
    model = Autoencoder()
    train(model, images, name, rng)
    print(f"{name}: bound on held-out images {bound(model, held_out, rng):.1f} nats")


if __name__ == "__main__":
    main()
