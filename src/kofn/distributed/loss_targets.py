"""Targets of rows in several processes: this rank's weights, and what all ranks know of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.checks import check_integer, check_number
from kofn.distributed import loss_parts
from kofn.distributed.loss_parts import Target
from kofn.losses.targets import _are_indices
from kofn.shards.given import Shards
from kofn.shards.header import Arguments


class Options(NamedTuple):
    """What a loss does to its target."""

    weight: Any = None  # per class, this rank's part
    label_smoothing: float = 0.0
    ignore_index: int = -100
    spread_one: bool = False  # whether smoothing spreads a share of 1, not of the weight


class Given(NamedTuple):
    """A target whose form is checked."""

    target: Tensor
    integers: bool
    options: Options

    def arguments(self, reduction: str) -> Arguments:
        """Return what all ranks must have been given alike."""
        own, some = self.options, self.options.weight is not None
        words = (
            f", target of {'indices' if self.integers else 'weights'}, {self.target.dtype}, "
            f"label_smoothing {own.label_smoothing}, ignore_index {own.ignore_index}, "
            f"{'with' if some else 'without'} weight, reduction {reduction}"
        )
        return Arguments(words, [self.target] if self.integers else [])


def checked(target: Any, scores: Tensor, shards: Shards, options: Options) -> Given:
    """Check a target of any form on this rank."""
    check_number(
        "label_smoothing", options.label_smoothing, low=0.0, high=1.0, allowed="a number in [0, 1]"
    )
    check_integer("ignore_index", options.ignore_index, "an integer")
    weight, n = options.weight, shards.form.n
    if weight is not None and tuple(weight.shape) != (n,):
        raise ValueError(
            f"weight must have one number for each of this process's entries along dim, {(n,)}; "
            f"got the shape {tuple(weight.shape)}"
        )
    return Given(target.detach(), _are_indices(target, scores, shards.form), options)


def spread(given: Given, shards: Shards) -> Target:
    """Return the target per entry; with indices, weights or smoothing, by a message or two."""
    x, form, options = shards.scores.detach(), shards.form, given.options
    if given.integers:
        each, used, valid = _of_labels(given, shards)
    else:
        each, used, valid = form.entries(given.target).to(x.dtype), None, None
    by_class = options.weight
    if by_class is not None:
        by_class = by_class.detach().to(x.dtype) if form.n else x.new_ones(1)
    none: Any = None
    found = Target(each, none, none, None, used, valid, by_class, given.integers)
    return loss_parts.spread(found, x, shards.over, options.label_smoothing, options.spread_one)


def _of_labels(given: Given, shards: Shards) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the weights of indices into whole rows; an error where they can be read."""
    x, ranks, n = shards.scores.detach(), shards.ranks, shards.form.n
    sizes = torch.zeros(ranks.size, dtype=torch.int64, device=x.device)
    sizes[ranks.place] = n
    sizes = ranks.sum(sizes)
    start, whole = sizes[: ranks.place].sum(), sizes.sum()
    index = given.target.to(torch.int64)
    used = index != given.options.ignore_index
    wrong = used & ((index < 0) | (index >= whole))
    valid = None
    if index.device.type == "cpu":
        if bool(wrong.any()):
            raise ValueError(
                f"target must have indices in [0, {int(whole)}), or ignore_index, "
                f"{given.options.ignore_index}; got {int(index[wrong][0])}"
            )
    else:
        valid = torch.where(wrong, math.nan, 1.0).to(x.dtype)
    at = (index - start)[..., None]
    here = (used & ~wrong)[..., None] & (at >= 0) & (at < n)
    each = torch.zeros_like(x).scatter_(-1, torch.where(here, at, 0), here.to(x.dtype))
    return each, used, valid
