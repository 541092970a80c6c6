"""A digit autoencoder that learns from 20 labels: its label is a choice, by Gumbel-softmax.

    python examples/few_labels.py    # the table, 5 seeds, minutes

An image is a label y, one of ten, and four normal numbers z, its style; where the label is not
known, it is drawn from q(y | image) as a relaxed one-hot vector (Jang, Gu & Poole 2016; Kingma et
al. 2014). Of scikit-learn's 1,347 training digits, 20 have their labels. `exact` sums over the ten
labels in place of a draw, and `labels only` trains q(y | image) on the 20 alone. The table has the
share of held-out digits that q(y | image) gets right.
"""

from __future__ import annotations

import argparse
import math
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from kofn import Categorical, Normal, estimators, gumbel_softmax, normal_rsample, schedules

LABELS, STYLES, INK, KNOWN = 10, 4, 16, 20
STEPS, BATCH, RATE, PART = 400, 64, 2e-3, 20
WAYS = ("labels only", "gumbel_softmax", "gumbel_softmax, hard", "exact")
MEASURED = "share of held-out digits with the right label"
EVERY = "steps"


def layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, outputs))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.labeller = layers(64, LABELS)
        self.encoder = layers(64 + LABELS, 2 * STYLES)
        self.decoder = layers(LABELS + STYLES, 64)

    def cost(self, images: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        """−log p(image | y), bounded by a sample of the style; more y may come on a first axis."""
        y = y.expand(*y.shape[:-2], len(images), LABELS)
        seen = torch.cat([(images / INK).expand(*y.shape[:-1], -1), y], -1)
        mean, log_scale = self.encoder(seen).chunk(2, -1)
        z = normal_rsample(mean, log_scale.exp(), rng)
        dots = torch.distributions.Binomial(INK, logits=self.decoder(torch.cat([y, z], -1)))
        prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
        return Normal(mean, log_scale.exp()).kl(prior).sum(-1) - dots.log_prob(images).sum(-1)


def unlabelled(
    model: Autoencoder, images: Tensor, way: str, temperature: float, rng: torch.Generator
) -> Tensor:
    """The negative bound of images whose label is not known."""
    logits = model.labeller(images / INK)
    choice = Categorical(logits)
    if way == "exact":
        cost = estimators.exact(choice, lambda y: model.cost(images, y, rng))
    else:
        y = gumbel_softmax(logits, temperature, hard="hard" in way, rng=rng)
        cost = model.cost(images, y, rng)
    return (cost + math.log(LABELS) - choice.entropy()).mean()


def train(way: str, seed: int) -> list[tuple[int, float]]:
    """Return the share of held-out digits that are right, after every 20 steps."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=rng)
    x, y = images[order].float(), labels[order]
    known = torch.cat([torch.nonzero(y[:1347] == digit)[: KNOWN // 10, 0] for digit in range(10)])
    model, curve = Autoencoder(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    cool = schedules.exponential(1.0, 0.5, steps=STEPS)
    for step in range(1, STEPS + 1):
        some = known[torch.randint(KNOWN, (BATCH,), generator=rng)]
        cost = 100 * cross_entropy(model.labeller(x[some] / INK), y[some])
        if way != "labels only":
            cost = cost + model.cost(x[some], one_hot(y[some], LABELS).float(), rng).mean()
            rows = torch.randint(1347, (BATCH,), generator=rng)
            cost = cost + unlabelled(model, x[rows], way, cool(step), rng)
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        if step % PART == 0:
            with torch.no_grad():
                right = model.labeller(x[1347:] / INK).argmax(-1) == y[1347:]
            curve.append((step, right.float().mean().item()))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print(MEASURED)
    for way in WAYS:
        ends = [train(way, seed)[-1][1] for seed in seeds]
        print(f"{way:22}{statistics.mean(ends):.3f}  ", *(f"{end:.3f}" for end in ends))


if __name__ == "__main__":
    main()
