"""What the autoencoders are trained on: sums of known features, and activations of a network."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from studies.frame.data import INK, SIDE, Task, all_digits, seeded

SEED_OF_DATA = 1000
"""Added to the seed of a run: features must not be the numbers that weights are drawn from."""


class Features(Task):
    """Inputs are sums of a few of 256 known directions in 48 dimensions, with noise.

    How often a feature is present follows Zipf's law, up to 0.4; five are present in the mean.
    Features come in 32 groups, which are on or off together half of the time, and each is present
    only while its group is on. A feature's size is |1 + 0.3·normal|.
    """

    D_IN, D_SAE, K, RATE = 48, 256, 5, 3e-3
    HELD_OUT, GROUPS, NOISE = 16384, 32, 0.01

    def __init__(self, seed: int) -> None:
        super().__init__(SEED_OF_DATA + seed)
        self.directions = functional.normalize(self.normal(self.D_SAE, self.D_IN), dim=-1)
        order = torch.randperm(self.D_SAE, generator=self.generator)
        self.frequency = capped(1 / (1 + order.float()), self.K, 0.4)
        self.groups = torch.arange(self.D_SAE) % self.GROUPS
        self.held_out = self.batch(self.HELD_OUT)

    def batch(self, size: int) -> Tensor:
        on = torch.rand(size, self.GROUPS, generator=self.generator) < 0.5
        present = torch.rand(size, self.D_SAE, generator=self.generator) < 2 * self.frequency
        sizes = (1 + 0.3 * self.normal(size, self.D_SAE)).abs() * present * on[:, self.groups]
        return sizes @ self.directions + self.NOISE * self.normal(size, self.D_IN)


class Moved(Features):
    """The same features, with inputs whose mean lies DEVIATIONS from 0, in a random direction.

    A deviation is the root of the sum of their variances.
    """

    DEVIATIONS = 0.0

    def __init__(self, seed: int) -> None:
        self.offset = torch.zeros(self.D_IN)
        super().__init__(seed)
        x, away = self.held_out, functional.normalize(self.normal(self.D_IN), dim=0)
        self.offset = self.DEVIATIONS * x.var(0).sum().sqrt() * away - x.mean(0)
        self.held_out = x + self.offset

    def batch(self, size: int) -> Tensor:
        return super().batch(size) + self.offset


class MovedBy3(Moved):
    DEVIATIONS = 3.0


class MovedBy10(Moved):
    DEVIATIONS = 10.0


def capped(weights: Tensor, total: float, most: float) -> Tensor:
    """Return probabilities proportional to the weights that sum to the total, at most `most`."""
    for _ in range(50):
        weights = (weights * (total / weights.clamp(max=most).sum())).clamp(max=most)
    return weights


class Digits(Task):
    """Activations of the 64 hidden units of a network that classifies scikit-learn's digits.

    The images are moved by up to one pixel and get noise; a fifth of them is held out.
    """

    D_IN, D_SAE, K, RATE = 64, 256, 8, 3e-3
    HELD_OUT, STEPS = 8192, 300

    def __init__(self, seed: int) -> None:
        super().__init__(SEED_OF_DATA + seed)
        images, labels = all_digits()
        order = torch.randperm(len(labels), generator=self.generator)
        images, labels = images[order].view(-1, SIDE, SIDE) / INK, labels[order]
        self.train, self.test = images[360:], images[:360]
        with seeded(SEED_OF_DATA + seed):
            self.layer = self._trained(labels[360:])
        self.held_out_images = self._images(self.test, self.HELD_OUT)[0]
        self.held_out = self.activations(self.held_out_images)

    def _trained(self, labels: Tensor) -> nn.Module:
        """Train a network of one hidden layer, and return that layer with what comes before it."""
        hidden: nn.Module = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, self.D_IN)
        )
        model = nn.Sequential(hidden, nn.ReLU(), nn.Linear(self.D_IN, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(self.STEPS):
            images, chosen = self._images(self.train, 128)
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return hidden.requires_grad_(False)

    def batch(self, size: int) -> Tensor:
        return self.activations(self._images(self.train, size)[0])

    def activations(self, images: Tensor) -> Tensor:
        return self.layer(images)

    def _images(self, among: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return moved images with noise, and which they are."""
        chosen = torch.randint(len(among), (size,), generator=self.generator)
        wide = functional.pad(among[chosen], (1, 1, 1, 1))
        down, right = torch.randint(3, (2, size, 1, 1), generator=self.generator)
        places = torch.arange(SIDE)
        rows, columns = down + places[:, None], right + places
        moved = wide[torch.arange(size)[:, None, None], rows, columns]
        return moved + 0.1 * self.normal(*moved.shape), chosen


TASKS: dict[str, Any] = {
    "features": Features,
    "digits": Digits,
    "mean-0": Moved,
    "mean-3": MovedBy3,
    "mean-10": MovedBy10,
}
