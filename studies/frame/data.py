"""What models are trained on: drawn from a generator of its own, or handwritten digits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

SIDE, INK = 8, 16
"""Pixels of a side of a digit; dots of a pixel, of which it counts the black ones."""
HELD_OUT = 0.25


class Task:
    """What models are trained on, drawn from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)


class Digits(NamedTuple):
    """Images [N, 64] and which digits they show, for training and held out."""

    training: Tensor
    labels: Tensor
    held_out: Tensor
    answers: Tensor


def all_digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's 1,797 images of digits, and which digits they show."""
    from sklearn.datasets import load_digits

    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    return images.float(), labels


def digits(seed: int, by_class: bool = False) -> Digits:
    """Return all digits, with a quarter held out: of the whole, or of each class."""
    from sklearn.model_selection import train_test_split

    images, labels = all_digits()
    rows, held_out = train_test_split(
        range(len(labels)),
        test_size=HELD_OUT,
        random_state=seed,
        stratify=labels.numpy() if by_class else None,
    )
    return Digits(images[rows], labels[rows], images[held_out], labels[held_out])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from PyTorch's own generator, as layers do, without a trace in it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
