"""The autoencoder: encodes an image as a discrete choice, and decodes it to ink counts."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kofn import Categorical, KSubset
from studies.frame.data import INK

HIDDEN = 200


class Latent(NamedTuple):
    """The latent space: `factors` categorical variables of `n` classes, or a k-subset of n."""

    factors: int
    n: int
    k: int | None = None

    @property
    def width(self) -> int:
        return self.factors * self.n

    @property
    def size(self) -> int:
        """Return the number of choices."""
        return (self.n if self.k is None else math.comb(self.n, self.k)) ** self.factors

    @property
    def log_size(self) -> float:
        """Return the log of the number of choices, which is −log of the uniform prior."""
        return self.factors * math.log(self._replace(factors=1).size)

    def of(self, logits: Tensor) -> Categorical[Any] | KSubset[Any]:
        """Return the distribution for logits of shape (images, width)."""
        if self.k is not None:
            return KSubset(logits, self.k)
        return Categorical(logits.reshape(*logits.shape[:-1], self.factors, self.n))

    def added(self, per_factor: Tensor) -> Tensor:
        """Sum over the factors, if there are any."""
        return per_factor if self.k is not None else per_factor.sum(-1)


class Autoencoder(nn.Module):
    """An encoder and a decoder with one hidden layer each, and a discrete latent between them."""

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
        # A latent of zeros decodes to the mean image.
        share = (training.mean(0) + 0.1) / (INK + 0.2)
        last: Any = self.decoder[-1]
        last.bias.data.copy_(share.logit())

    def choice(self, images: Tensor, temperature: float = 1.0) -> Categorical[Any] | KSubset[Any]:
        """Return the distribution q(z | image)."""
        return self.latent.of(self.encoder(images / INK) / temperature)

    def draw(self, z: Tensor) -> Tensor:
        """Decode choices, hard or relaxed, to the log-odds of ink per pixel."""
        return self.decoder(z if self.latent.k is not None else z.flatten(-2))

    def log_likelihood(self, images: Tensor, z: Tensor) -> Tensor:
        """Return log p(image | z), of shape (samples, images), with one binomial per pixel."""
        odds = self.draw(z)
        blank = INK * nn.functional.softplus(odds).sum(-1)
        # If the choices are the same for all images, each is decoded once.
        inked = odds[:, 0] @ images.T if odds.shape[1] == 1 else (odds * images).sum(-1)
        return inked - blank + ways(images)

    def divergence(self, choice: Categorical[Any] | KSubset[Any]) -> Tensor:
        """Return KL(q ‖ uniform) per image."""
        return self.latent.log_size - self.latent.added(choice.entropy())

    @torch.no_grad()
    def bounds(
        self, images: Tensor, samples: int, generator: torch.Generator, temperature: float = 1.0
    ) -> tuple[float, float]:
        """Return the evidence lower bound and its importance-weighted version, in nats per image.

        These are the means of log w and log mean w, w = p(x, z)/q(z | x), over hard samples of q.
        """
        choice = self.choice(images, temperature)
        z = choice.sample((samples,), generator)
        log_q = self.latent.added(choice.log_prob(z))
        log_w = self.log_likelihood(images, z) - self.latent.log_size - log_q
        tight = log_w.logsumexp(0) - math.log(samples)
        return float(log_w.mean()), float(tight.mean())

    @torch.no_grad()
    def evidence(self, images: Tensor) -> float:
        """Return the mean of log p(x), summed over every choice."""
        every = self.latent.of(torch.zeros(1, self.latent.width)).support(None)
        log_p = self.log_likelihood(images, every) - self.latent.log_size
        return float(log_p.logsumexp(0).mean())

    @torch.no_grad()
    def generated(self, count: int, generator: torch.Generator) -> Tensor:
        """Decode choices drawn from the prior to mean ink per pixel, of shape (count, pixels)."""
        blank = torch.zeros(count, self.latent.width)
        z = self.latent.of(blank).sample((), generator)
        return self.draw(z).sigmoid()


def ways(images: Tensor) -> Tensor:
    """Return log Π C(16, ink) per image, the binomial coefficients of its pixels."""
    count = torch.tensor(float(INK))
    log_ways = torch.lgamma(count + 1) - torch.lgamma(images + 1) - torch.lgamma(count - images + 1)
    return log_ways.sum(-1)
