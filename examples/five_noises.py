"""A discrete autoencoder whose choices are the largest of noisy scores, with five noises.

    python examples/five_noises.py      # the table, 5 seeds, minutes

Each of scikit-learn's digits is encoded by three choices of eight. Category i is chosen if its
score has the largest sum with independent noise: for Gumbel noise with the probabilities of
softmax, for others with those of perturbed_argmax, which the divergence from the uniform prior
needs. In training, the decoder sees relaxed choices from the same noise, cooled from 1 to 0.1. The
table has the evidence lower bound of held-out images by hard choices, in nats per image.
"""

from __future__ import annotations

import argparse
import math
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from kofn import Categorical, perturbed_argmax, schedules
from kofn.metrics import entropy

FACTORS, CATEGORIES, INK = 3, 8, 16
EPOCHS, BATCH, RATE = 24, 64, 2e-3
DEVIATIONS = {
    "gumbel": math.pi / 6**0.5,
    "normal": 1.0,
    "logistic": math.pi / 3**0.5,
    "laplace": 2**0.5,
    "uniform": 1 / 12**0.5,
}
"""Of the noises as they are; scores are in these, so that all are as noisy at first."""
WAYS = tuple(DEVIATIONS)
MEASURED = "evidence bound of held-out images, in nats"
EVERY = "epochs"


class Autoencoder(nn.Module):
    def __init__(self, noise: str) -> None:
        super().__init__()
        width = FACTORS * CATEGORIES
        self.noise = noise
        self.encoder = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, width))
        self.decoder = nn.Sequential(nn.Linear(width, 200), nn.ReLU(), nn.Linear(200, 64))

    def loss(self, images: Tensor, temperature: float | None, rng: torch.Generator) -> Tensor:
        """Return the negative bound, by one choice of each image; hard without a temperature."""
        scores = self.encoder(images / INK).unflatten(-1, (FACTORS, CATEGORIES))
        scores = scores * DEVIATIONS[self.noise]
        choice = Categorical(scores)
        noisy = choice.perturb((), rng, noise=self.noise)
        z = choice.choose(noisy) if temperature is None else choice.relax(noisy, temperature)
        dots = torch.distributions.Binomial(INK, logits=self.decoder(z.flatten(-2)))
        spread = entropy(perturbed_argmax(scores, noise=self.noise)).sum(-1)
        divergence = FACTORS * math.log(CATEGORIES) - spread
        return (divergence - dots.log_prob(images).sum(-1)).mean()


def train(noise: str, seed: int) -> list[tuple[int, float]]:
    """Return the bound of held-out images after every second epoch."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    data = torch.tensor(load_digits().data, dtype=torch.float32)
    images, held_out = data[torch.randperm(len(data), generator=rng)].split([1347, 450])
    model, curve, step = Autoencoder(noise), [], 0
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    cool = schedules.exponential(1.0, 0.1, steps=round(0.8 * EPOCHS * -(-len(images) // BATCH)))
    for epoch in range(1, EPOCHS + 1):
        for rows in torch.randperm(len(images), generator=rng).split(BATCH):
            optimizer.zero_grad()
            model.loss(images[rows], cool(step), rng).backward()
            optimizer.step()
            step += 1
        if epoch % 2 == 0:
            with torch.no_grad():
                again = torch.Generator().manual_seed(0)
                bounds = [-model.loss(held_out, None, again).item() for _ in range(4)]
            curve.append((epoch, statistics.mean(bounds)))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print(MEASURED)
    for noise in WAYS:
        ends = [train(noise, seed)[-1][1] for seed in seeds]
        print(f"{noise:10}{statistics.mean(ends):9.2f}  ", *(f"{end:.2f}" for end in ends))


if __name__ == "__main__":
    main()
