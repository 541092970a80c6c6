"""The autoencoder: images to a discrete choice, and back to counts of ink."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kofn import Categorical, KSubset

INK = 16
"""A pixel counts how many of 4 × 4 dots are black."""
SIDE = 8
HELD_OUT = 0.25
HIDDEN = 200


class Data(NamedTuple):
    training: Tensor  # (images, pixels), counts
    held_out: Tensor


def digits(seed: int) -> Data:
    """scikit-learn's 1,797 digits, a quarter of each class held out."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, classes = load_digits(return_X_y=True)
    parts = train_test_split(
        images.astype(np.float32), test_size=HELD_OUT, random_state=seed, stratify=classes
    )
    return Data(*(torch.from_numpy(part) for part in parts))


class Latent(NamedTuple):
    """What the choice is: `factors` of one category in `n` each, or one subset of `k` of n."""

    factors: int
    n: int
    k: int | None = None

    @property
    def width(self) -> int:
        return self.factors * self.n

    @property
    def log_size(self) -> float:
        """log of how many choices there are; minus log-probability of each before an image."""
        one = self.n if self.k is None else math.comb(self.n, self.k)
        return self.factors * math.log(one)

    def of(self, logits: Tensor) -> Categorical | KSubset:
        """The distribution of (images, width) logits."""
        if self.k is not None:
            return KSubset(logits, self.k)
        return Categorical(logits.reshape(*logits.shape[:-1], self.factors, self.n))

    def added(self, per_factor: Tensor) -> Tensor:
        """The sum over factors, where there are any."""
        return per_factor if self.k is not None else per_factor.sum(-1)


class Autoencoder(nn.Module):
    """Encoder and decoder, a hidden layer each; a choice of `latent` between them."""

    def __init__(self, latent: Latent, training: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        pixels = training.shape[1]
        self.latent = latent
        self.encoder = nn.Sequential(
            nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, latent.width)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent.width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, pixels)
        )
        for layer in (*self.encoder, *self.decoder):
            if isinstance(layer, nn.Linear):
                bound = 1 / math.sqrt(layer.in_features)
                for parameter in (layer.weight, layer.bias):
                    nn.init.uniform_(parameter, -bound, bound, generator=generator)
        # A blank choice draws the mean image.
        share = (training.mean(0) + 0.1) / (INK + 0.2)
        last: Any = self.decoder[-1]
        with torch.no_grad():
            last.bias.copy_(share.logit())

    def choice(self, images: Tensor, temperature: float = 1.0) -> Categorical | KSubset:
        """q(z | image)."""
        return self.latent.of(self.encoder(images / INK) / temperature)

    def draw(self, z: Tensor) -> Tensor:
        """Log-odds of ink per pixel, from choices or relaxed ones."""
        out: Tensor = self.decoder(z if self.latent.k is not None else z.flatten(-2))
        return out

    def log_likelihood(self, images: Tensor, z: Tensor) -> Tensor:
        """log p(image | z), a binomial per pixel: (samples, images)."""
        odds = self.draw(z)
        blank = INK * nn.functional.softplus(odds).sum(-1)
        # Where every choice is the same for all images, each is drawn once.
        inked = odds[:, 0] @ images.T if odds.shape[1] == 1 else (odds * images).sum(-1)
        return inked - blank + ways(images)

    def divergence(self, choice: Categorical | KSubset) -> Tensor:
        """KL(q ‖ uniform), per image."""
        return self.latent.log_size - self.latent.added(choice.entropy())

    @torch.no_grad()
    def bounds(
        self, images: Tensor, samples: int, generator: torch.Generator, temperature: float = 1.0
    ) -> tuple[float, float]:
        """Mean of log w and of log mean w, w = p(x, z)/q(z | x), from hard samples of q.

        The evidence bound and its importance-weighted tightening, in nats for an image.
        """
        choice = self.choice(images, temperature)
        z = choice.sample((samples,), generator)
        log_q = self.latent.added(choice.log_prob(z))
        log_w = self.log_likelihood(images, z) - self.latent.log_size - log_q
        tight = log_w.logsumexp(0) - math.log(samples)
        return float(log_w.mean()), float(tight.mean())

    @torch.no_grad()
    def evidence(self, images: Tensor) -> float:
        """Mean of log p(x), by every choice there is."""
        every = self.latent.of(torch.zeros(1, self.latent.width)).support(None)
        log_p = self.log_likelihood(images, every) - self.latent.log_size
        return float(log_p.logsumexp(0).mean())

    @torch.no_grad()
    def generated(self, count: int, generator: torch.Generator) -> Tensor:
        """Images of choices drawn without looking: the mean share of ink, (count, pixels)."""
        blank = torch.zeros(count, self.latent.width)
        z = self.latent.of(blank).sample((), generator)
        return self.draw(z).sigmoid()


def ways(images: Tensor) -> Tensor:
    """log Π C(16, ink) per image: in how many ways dots make these counts."""
    count = torch.tensor(float(INK))
    log_ways = torch.lgamma(count + 1) - torch.lgamma(images + 1) - torch.lgamma(count - images + 1)
    return log_ways.sum(-1)
