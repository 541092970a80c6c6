"""Histograms of numbers per expert that add up exactly, and their quantiles."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kofn.arrays.tracing import is_at_hand
from kofn.maps.balance import even_places


def counts_in_range(
    values: Tensor, weights: Tensor | None, least: Tensor, greatest: Tensor, bins: int
) -> Tensor:
    """Return how many of the values [T, E] are in each of `bins` equal parts of a range, [E, bins].

    What is outside of it counts in the first or the last, and infinite numbers nowhere. `weights`
    [T] is int64; None says that all values are finite and count once, here and below.
    """
    width = (greatest - least) / bins
    return _counted(torch.floor((values - least) / width), weights, bins)


def places_of_share(histogram: Tensor, k: float, infinite: Tensor | None = None) -> Tensor:
    """Return where each expert has its share of the counts, in bins from the left, [E].

    It is k/E of them, or what `even_places` says. `infinite` [2, E] are the counts of −∞ and +∞. In
    a bin, its counts lie evenly. Experts without a count in a bin have NaN.
    """
    below = histogram.cumsum(-1)
    counts = below[:, -1:]
    if infinite is None:
        infinite = torch.zeros_like(counts.expand(-1, 2).T)
    usable = counts[:, 0] + infinite[0]
    tokens = (usable + infinite[1]).amax(keepdim=True).double()
    target = (even_places(infinite[0].double(), usable.double(), tokens, k) - infinite[0])[:, None]
    reached = torch.searchsorted(below, target.ceil().clamp(min=1).to(torch.int64))
    reached = reached.clamp(max=histogram.shape[-1] - 1)
    inside = histogram.gather(-1, reached)
    before = below.gather(-1, reached) - inside
    place = reached + ((target - before) / inside.clamp(min=1)).clamp(0, 1)
    return torch.where(counts > 0, place, math.nan)[:, 0]


EXACT = 2.0**-100


class Grid:
    """Bins [i, i + 1)·2^e, for the least e with which `bins` of them cover a range.

    Two bins of a finer grid are one of the next, so a histogram of a part of the range becomes that
    of the whole range, and is the same as if it had been counted there. A range is a tensor
    [−least, greatest] in float64, of −∞ if there are no numbers.
    """

    def __init__(self, range_: Tensor, bins: int) -> None:
        least, greatest = -range_[0], range_[1]
        self.bins = bins
        filled = least <= greatest
        least, greatest = (torch.where(filled, each, 0.0) for each in (least, greatest))
        # The width is above span/bins and at most four times that; 2^−24 of the numbers
        # themselves is as fine as they are.
        span, size = greatest - least, torch.maximum(greatest.abs(), least.abs())
        start = torch.floor(_log2(span / bins)) - 1
        finest = torch.floor(_log2(size)) - 24
        tried = torch.maximum(start, finest) + torch.arange(6, device=range_.device)
        widths = torch.exp2(tried)
        covers = torch.floor(greatest / widths) - torch.floor(least / widths) < bins
        self.exponent = tried.gather(0, covers.to(torch.int64).argmax(0, keepdim=True))[0]
        self.width = torch.exp2(self.exponent)
        self.first = torch.floor(least / self.width)
        """The number i of the first bin."""

    def counts(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Return how many of the values [T, E] are in each bin, [E, bins]."""
        # Places are float32 numbers, too, and what leads to them is exact, for a width is a power
        # of 2; a greater one than 1, or a least one's inverse, might leave their range.
        exact = values.dtype is torch.float32 and is_at_hand(values) and EXACT < self.width <= 1
        values, (width, first) = (
            (values, (self.width.float(), self.first.float()))
            if exact
            else (values.double(), (self.width, self.first))
        )
        return _counted((values / width).floor_().sub_(first), weights, self.bins)

    def recounted(self, histogram: Tensor, before: Grid) -> Tensor:
        """Return a histogram of the grid of a part of the range in this one."""
        at = before.first + torch.arange(self.bins, device=histogram.device)
        at = torch.floor(at * torch.exp2(before.exponent - self.exponent)) - self.first
        at = at.clamp(0, self.bins - 1).to(torch.int64).expand_as(histogram)
        return torch.zeros_like(histogram).scatter_add(1, at, histogram)

    def values(self, places: Tensor) -> Tensor:
        """Return the numbers at places, in bins from the first."""
        return (self.first + places) * self.width


def range_of(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return [−least, greatest] in float64 of the finite values [T, E] of tokens that count."""
    if weights is None:
        least, greatest = values.aminmax()
        return torch.stack([-least, greatest]).double()
    counted = (weights > 0)[:, None] & values.isfinite()
    both = torch.stack([-values, values]).double()
    both = torch.where(counted, both, -math.inf).flatten(1)
    # One more, for no tokens.
    return torch.cat([both, both.new_full((2, 1), -math.inf)], 1).amax(1)


def _log2(numbers: Tensor) -> Tensor:
    return torch.log2(numbers.clamp(min=2.0**-200))


def _counted(places: Tensor, weights: Tensor | None, bins: int) -> Tensor:
    """Return the counts of places in [0, bins), [E, bins], of places [T, E]; others are clamped."""
    experts = places.shape[-1]
    starts = bins * torch.arange(experts, device=places.device)
    if weights is None:  # to count is quicker than to scatter
        few = torch.int32 if experts * bins < 2**31 else torch.int64
        own = places.clamp_(0, bins - 1).to(few).add_(starts.to(few))
        return own.flatten().bincount(minlength=experts * bins).view(experts, bins)
    weights = weights[:, None] * places.isfinite()
    places = places.nan_to_num(0.0, 0.0, 0.0).clamp(0, bins - 1).to(torch.int64) + starts
    zeros = weights.new_zeros(experts * bins)
    return zeros.scatter_add(0, places.flatten(), weights.flatten()).view(experts, bins)


def counts_of_infinite(values: Tensor, weights: Tensor) -> Tensor:
    """Return how many of the values [T, E] are −∞, and how many +∞, [2, E]."""
    infinite = torch.stack([values == -math.inf, values == math.inf])
    return (weights[:, None] * infinite).sum(1)


def allowed_outliers(experts: int) -> tuple[int, float]:
    """Return how many of a token's experts may be farther from the centers than the others, and how
    many times as far they may be.
    """
    left_out = experts // 2 if experts >= 16 else experts // 4
    # One of those that count is 0, and all others would have to be as near by chance.
    return left_out, max(64.0, 2.0 ** (24 / (experts - left_out - 1))) if left_out else 1.0


def without_outliers(values: Tensor, center: Tensor) -> Tensor:
    """Return values [T, E] that are not much farther from the centers [E] than others of the token.

    The limit is a multiple of the greatest distance among the half of its experts that are nearest
    (three quarters, with fewer than 16 experts). It depends on this token alone, so that histograms
    add up; and it is so large that usual numbers stay as they are, bit for bit.
    """
    left_out, far = allowed_outliers(values.shape[-1])
    if not left_out:
        return values
    if is_at_hand(values):  # to sort takes thirty times as long as to see that none is beyond
        size = (values - center).abs_()
        near = (size.amax(-1, keepdim=True) <= size.mul_(far)).view(torch.uint8)
        if (near.sum(-1, dtype=torch.int32) > left_out).all():
            return values
    apart = values - center
    size = apart.abs()
    usual = size.topk(left_out + 1, -1).values[..., -1:]
    limit = usual * far
    beyond = (size > limit) & (limit > 0) & size.isfinite()
    return torch.where(beyond, center + apart.sign() * limit, values)
