"""Marginals and log Z of rows in several processes, by the quadrature of `quadrature.py`.

Its nodes depend on sums over a row, and each rank's coins make a factor of the characteristic
function: two numbers per node, whose products over ranks are sums of logarithms and phases.
Plain differentiable code: these lines have derivatives of any order.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.adapters.shards.search import solve
from kofn.rows.shards.given import Shards
from kofn.rows.shards.reductions import GroupRows
from kofn.rows.shards.statistics import Statistics, gathered
from kofn.solver.equation import far
from kofn.subsets import quadrature
from kofn.subsets.quadrature import Spectrum


class Placed(NamedTuple):
    """Coins that fall heads k times on average, and their sums over whole rows."""

    statistics: Statistics
    rows: Any  # Rows, of tensors
    theta: Tensor  # per row; ±inf or NaN where nothing is open
    z: Tensor  # −inf where settled
    coin: Any  # Coins, of tensors
    above: Tensor  # how many coins have z > 0
    chosen: Tensor  # Σ of their logits; NaN in a row with a NaN
    overlap: Tensor  # Σ log(1 + e^−|z|)
    variance: Tensor
    tilt: Tensor  # Σp − how many coins have z > 0


def marginals(shards: Shards) -> Tensor:
    """Return the marginals of this rank's entries, with `dim` last."""
    at, over = _placed(shards), shards.over
    node, real, imag = _spectrum(at, over)
    count = real.sum(0)
    both = over.expand(torch.stack([real / count, imag / count]))
    shift: Any = torch.zeros_like(at.z)
    for each in map(Spectrum, node.sin, node.versine, *both):
        above, below = quadrature.shift_of(at.coin, each)
        shift = shift - above / below
    tail: Any = quadrature.shifted(at.coin, shift)
    answer = torch.where(at.z > 0, 1 - tail, tail)
    answer = torch.where((at.theta == -math.inf)[..., None] & at.rows.live, 1.0, answer)
    answer = torch.where(at.z.isneginf() & ~(at.theta == -math.inf)[..., None], 0.0, answer)
    has_nan = at.chosen.isnan()[..., None] & at.rows.live
    answer = torch.where(has_nan, at.rows.scores, answer) * _nan_at(has_nan, answer)
    share = torch.where(at.rows.top, at.rows.top_weight[..., None], 0.0)
    return torch.where(at.rows.live, answer, share)


def log_partition(shards: Shards) -> Tensor:
    """Return log Z = kλ + Σ log(1 + e^z) + log Pr(N = k) per row."""
    at = _placed(shards)
    _, real, _ = _spectrum(at, shards.over)
    open_ = at.theta.isfinite()
    theta = torch.where(open_, at.theta, 0.0).to(at.chosen.dtype)
    missing = torch.where(open_, at.rows.k - at.above, 0.0)
    count = torch.where(open_, real.sum(0), 1.0)
    answer = missing * theta + at.chosen + at.overlap + count.log()
    endless = (at.statistics.top > 0) & (at.rows.top_weight > 0)
    return torch.where(endless & ~at.chosen.isnan(), math.inf, answer)


def _placed(shards: Shards) -> Placed:
    over = shards.over
    statistics, settled = gathered(shards)
    hi, lo = solve(statistics, settled, over)
    rows: Any = settled
    open_ = hi.isfinite()
    play = rows.live & open_[..., None]
    x = torch.where(play, rows.scores, 0.0)
    distance = (x - torch.where(open_, hi, 0.0)[..., None]) - lo[..., None]
    value, limit = distance.detach(), far(torch.finfo(x.dtype))
    beyond = torch.full_like(value, limit).copysign(value)
    z = torch.where(play, torch.where(value.abs() < limit, distance, beyond), -math.inf)
    coin: Any = quadrature.coins(z)
    upper = z > 0
    every = (hi == -math.inf)[..., None] & rows.live
    size = torch.where(distance > 0, distance, -distance)  # with a derivative at 0
    has_nan = hi.isnan()[..., None] & rows.live
    chosen = torch.where((upper | every | has_nan) & rows.live, rows.scores, 0.0)
    sums = over.sums(
        upper.to(x.dtype),
        chosen * _nan_at(has_nan, chosen),
        torch.where(play, torch.log1p(torch.exp(-size)), 0.0),
        coin.w,
        coin.sign * coin.tail,
    )
    return Placed(statistics, rows, hi + lo, z, coin, *sums)


def _nan_at(flags: Tensor, like: Tensor) -> Tensor:
    """Return NaN there, 1 elsewhere; a factor, so that derivatives are NaN too."""
    return torch.where(flags, math.nan, like.new_ones(()))


def _spectrum(at: Placed, over: GroupRows) -> tuple[Any, Tensor, Tensor]:
    """Return the nodes, and weight·Π t·e^{−iωk} at each, per row."""
    node: Any = quadrature.nodes(at.z, at.variance.detach()[..., None], max(at.statistics.size, 1))
    sizes, phases = zip(
        *(quadrature.logs_of(at.coin, one) for one in map(quadrature.Node, *node)), strict=True
    )
    logs = torch.stack(over.sums(*sizes, *phases))
    logs = logs.reshape(2, len(sizes), *logs.shape[1:])
    excess = torch.where(at.theta.isfinite(), at.above - at.rows.k + at.tilt, 0.0)
    angle = logs[1] + node.angle[..., 0] * excess
    size = node.weight[..., 0] * torch.exp(logs[0] / 2)
    return node, size * torch.cos(angle), size * torch.sin(angle)
