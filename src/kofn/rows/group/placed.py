"""Entries of rows whose θ is known: weights and slopes, without derivatives or messages."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kofn.links.link import Link
from kofn.rows.settled import Rows
from kofn.solver.equation import far, split

Theta = tuple[Tensor, Tensor]
"""θ as two numbers per row; ±inf or NaN where `solver.threshold.solve` says so."""


class Placed(NamedTuple):
    """What this rank's entries are at a θ; as constants."""

    link: Link  # with its parameter per entry
    z: Tensor
    none: Tensor  # rows that choose nothing
    every: Tensor  # rows that choose every available entry
    spoiled: Tensor  # rows that contain a NaN

    @property
    def open(self) -> Tensor:
        """Return the rows whose weights move."""
        return ~(self.none | self.every | self.spoiled)


def placed(rows: Rows, theta: Theta) -> Placed:
    x, t = rows.scores.detach(), rows.temperature.detach()[..., None]
    link = rows.link.map_alpha(lambda alpha: alpha.detach()[..., None])
    hi, lo = theta
    none, every, spoiled = hi == math.inf, hi == -math.inf, hi.isnan()
    hi = torch.where(none | every | spoiled, 0.0, hi)
    limit = far(torch.finfo(x.dtype))
    z = (((x - hi[..., None]) - lo[..., None]) / t).clamp(-limit, limit)
    return Placed(link, z, none, every, spoiled)


def weights_at(rows: Rows, theta: Theta) -> Tensor:
    """Return p = F(z) of this rank's entries, with the special cases of `answers.weights`."""
    at = placed(rows, theta)
    upper, low, high = split(at.link, at.z, rows.live)
    chosen = torch.where(upper, 1 - high, low)
    chosen = torch.where(at.every[..., None], 1.0, torch.where(at.none[..., None], 0.0, chosen))
    chosen = torch.where(at.spoiled[..., None], math.nan, chosen)
    others = torch.where(rows.top, rows.top_weight[..., None], 0.0)
    return torch.where(rows.live, chosen, others)


def slopes_at(rows: Rows, at: Placed) -> Tensor:
    """Return F′(z) of the entries whose weights move, 0 elsewhere; NaN in a row with a NaN."""
    moves = rows.live & at.open[..., None]
    slopes = torch.where(moves, at.link.pdf(at.z), 0.0)
    return slopes.masked_fill(rows.live & at.spoiled[..., None], math.nan)
