"""Handwritten digits, a perceptron and a small convolutional network."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

MODELS = {
    "mlp": "a perceptron 64-300-100-10",
    "cnn": "two convolutions of 16 and 32 channels, a layer of 64 units and one of 10",
}


class Digits(NamedTuple):
    """Images [N, 1, 8, 8] in [0, 1] and labels, for training and held out."""

    images: Tensor
    labels: Tensor
    held_out: Tensor
    answers: Tensor


def digits(seed: int) -> Digits:
    """Return scikit-learn's digits, a quarter of them held out."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, random_state=seed)
    x, held_out, y, answers = map(torch.as_tensor, parts)
    shape = (-1, 1, 8, 8)
    return Digits(x.float().view(shape), y, held_out.float().view(shape), answers)


def model_of(name: str) -> nn.Sequential:
    """Return a network with new weights."""
    if name == "mlp":
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 300), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1)]
    end = [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU()]
    return nn.Sequential(*convolutions, *end, nn.Linear(64, 10))


def pruned_names(model: nn.Module, groups: bool) -> list[str]:
    """Return the weights that are pruned; for 2:4, those whose rows consist of fours."""
    return [
        name
        for name, weight in model.named_parameters()
        if name.endswith("weight") and not (groups and weight[0].numel() % 4)
    ]
