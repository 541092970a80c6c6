"""A bias per expert by quantiles: what tokens of a step require, for an even load in the next."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kofn.adapters import kept_kernels
from kofn.arrays.tracing import is_at_hand
from kofn.maps.balance import Groups, are_finite, bias_of_share, known_tokens, required_bias
from kofn.nn.routing.histogram import (
    Grid,
    allowed_outliers,
    counts_in_range,
    counts_of_infinite,
    places_of_share,
    range_of,
    without_outliers,
)
from kofn.nn.routing.state import Tally, once, zero_counts


class ExpertBias(Tally):
    """A bias per expert in float32, whatever the dtype of the model, that keeps its address.

    Args:
        ema: the weight of the old bias in a new one.
        centred: whether the mean of the bias is 0, where only its differences count.
    """

    bias: Tensor

    def __init__(self, num_experts: int, ema: float, centred: bool, device: Any) -> None:
        super().__init__()
        self.ema, self.centred = ema, centred
        self._make_bias(num_experts, device)

    def _make_bias(self, num_experts: int, device: Any) -> None:
        zeros = torch.zeros(num_experts, dtype=torch.float32, device=device)
        self.register_buffer("bias", zeros)

    def forward(self) -> Tensor:
        """Return the bias [num_experts] in float32."""
        return self.bias

    def move_to(self, level: Tensor) -> None:
        """Set the bias to the required level; an expert whose number is NaN keeps its own."""
        old = self.bias.to(level.dtype)
        if self.ema:
            averaged = self.ema * old + (1 - self.ema) * level
            # A level would take long from 0 on; differences have a meaning there.
            level = torch.where(old.any() | self.centred, averaged, level)
        self.bias.copy_(moved_bias(level, old, self.bias.dtype, self.centred))

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        # A checkpoint of the sign rule: the first step finds the bias.
        steps, name = state.pop(f"{prefix}net_steps", None), f"{prefix}bias"
        if steps is not None:
            state.setdefault(name, torch.zeros_like(steps, dtype=torch.float32))
        if name not in state and "bias" in self._buffers:  # a linear layer's state
            state[name] = torch.zeros(self.bias.shape, dtype=torch.float32, device="cpu")
        if isinstance(state.get(name), Tensor):  # with assign=True, it takes the place of the bias
            state[name] = state[name].float()
        super()._load_from_state_dict(state, prefix, *others)
        self._forget()  # what the old bias was observed with

    def _apply(self, fn: Any, recurse: bool = True) -> ExpertBias:
        bias = self.bias
        super()._apply(fn, recurse)
        if self.bias.dtype != bias.dtype:  # three digits are too few to tell experts apart
            self.bias = bias.to(self.bias.device)
        return self


def moved_bias(level: Tensor, old: Tensor, dtype: torch.dtype, centred: bool) -> Tensor:
    """Return the level as the bias [..., E]; an expert whose level is not finite keeps the old one.

    If it is centred, the others are shifted so that the mean of all is 0.
    """
    known = level.to(dtype).isfinite()
    new = torch.where(known, level, old)
    if centred:
        # An expert that nobody may use keeps its bias, and would be raised with the mean.
        whole, count = new.sum(-1, keepdim=True), known.sum(-1, keepdim=True)
        new = torch.where(known, new - whole / count, new)
    else:
        # A bias of zeros says that there was no step; and this is as good as 0.
        tiny = torch.finfo(torch.float32).tiny
        new = torch.where(new.any(-1, keepdim=True), new, tiny)
    fits = known.any(-1, keepdim=True) & new.to(dtype).isfinite().all(-1, keepdim=True)
    return torch.where(fits, new, old)


class QuantileBias(ExpertBias):
    """A bias per expert, with which each would have had k/E of the tokens of the last step.

    With `bins=None`, it is the mean of the biases of the micro-batches, by their tokens. Otherwise
    a histogram counts what tokens require: in [min(bias) − 1, max(bias) + 1] for scores in [0, 1]
    (`unit`), or in as many bins of the grid that covers all of it.

    Source: Su, "MoE journey 6" (kexue.fm/archives/11619, 2026); Kimi K3 for the histogram.
    """

    mean: Tensor
    tokens: Tensor
    histogram: Tensor
    infinite: Tensor
    ends: Tensor

    def __init__(
        self,
        num_experts: int,
        k: float,
        bins: int | None = None,
        ema: float = 0.0,
        unit: bool = False,
        centred: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__(num_experts, ema, centred, device)
        self.k, self.bins, self.unit = k, bins, unit
        if bins is None:
            self.SUMS = ("mean", "tokens")
            self.mean = torch.zeros(num_experts, dtype=torch.float32, device=device)
            self.tokens = zero_counts(num_experts, device)
        else:
            self.SUMS = ("histogram", "infinite", "ends")
            self.histogram = torch.zeros(num_experts, bins, dtype=torch.int64, device=device)
            self.infinite = torch.zeros(2, num_experts, dtype=torch.int64, device=device)
            self.ends = torch.zeros(2, dtype=torch.float64, device=device)
        self._forget()

    def _forget(self) -> None:
        """Clear the sums in place, as before the first token."""
        super()._forget()
        if self.bins is not None:
            self.ends.fill_(-torch.inf)

    @torch.no_grad()
    def observe(
        self, scores: Tensor, mask: Tensor | None = None, groups: Groups | None = None
    ) -> None:
        """Count what tokens require of the bias, by the scores [T, E] to which it is added.

        A compiled program may do so inside a checkpoint.
        """
        if self.k == len(self.bias):  # every token takes every expert
            return
        if self.centred:
            required = required_bias(scores, scores + self.bias, int(self.k), groups)
        else:
            required = -scores  # an expert takes scores above its level
        self._settle(required.device)
        if mask is not None and is_at_hand(mask):
            required, mask = required[mask], None
        if not len(required):  # a row that does not count: the searches need one
            required, mask = required.new_full((1, required.shape[1]), torch.nan), None
        if self.bins is None:
            level, tokens = bias_of_share(required, self.k, mask)
            if not self.centred:
                level = _with_ties(level, required, tokens.float() * self.k / len(self.bias), mask)
            _average(self, level, tokens)
        elif mask is None and are_finite(required):
            _count(self, required, None)
        else:
            _count(self, required, once(known_tokens(required, mask).to(torch.int64)))

    def widened(self, whole: Tensor) -> Grid:
        """Go over to the grid of a range that has this one in it."""
        grid = Grid(whole, self.bins or 0)
        if is_at_hand(whole) and (whole.equal(self.ends) or self.ends[0] == -torch.inf):
            self.ends.copy_(whole)  # the same grid, or nothing is counted yet
            return grid
        before = Grid(self.ends, self.bins or 0)
        self.histogram.copy_(grid.recounted(self.histogram, before))
        self.ends.copy_(whole)
        return grid

    def span(self) -> Tensor | None:
        """Return the range of a grid, to be the maximum over processes, or None."""
        return None if self.bins is None or self.unit else self.ends

    @torch.no_grad()
    def widen(self, span: Tensor) -> None:
        """Go over to the grid of all processes."""
        self.widened(span)

    def load(self) -> Tensor:
        """Return what processes sum: counts, or sums and tokens in float64, exact to 2⁵³."""
        if self.bins is not None:
            return torch.cat([self.histogram.flatten(), self.infinite.flatten()])
        tokens = self.tokens.double()
        return torch.cat([self.mean.double() * tokens, tokens])

    def move(self, load: Tensor) -> None:
        """Set the bias to what the load requires."""
        self.move_to(_required(self, load))
        self._forget()

    def described(self) -> str:
        """Return the settings, in words that are the same where the loads fit."""
        numbers = f"k={self.k:g}, bins={self.bins}, ema={self.ema:g}"
        return f"balance='quantile', {numbers}, unit={self.unit}, centred={self.centred}"

    def extra_repr(self) -> str:
        options = dict(bins=self.bins or False, ema=self.ema or False)
        named = [f"{name}={value:g}" for name, value in options.items() if value is not False]
        return ", ".join([f"{len(self.bias)} experts", *named])


def observed(
    balance: QuantileBias, scores: Tensor, mask: Tensor | None, groups: Groups | None
) -> bool:
    """Observe scores as `observe` does, where compiled code can: few tokens, none left out. Return
    whether it did.
    """
    usual = balance.centred and mask is None and not balance.unit
    if not usual or not (groups is None or groups.chosen == groups.number):
        return False
    k, bias = balance.k, balance.bias
    if not k < len(bias):
        return False
    if balance.bins is None:
        return kept_kernels.required(scores, bias, k, balance.mean, balance.tokens)

    def bins_of(least: float, greatest: float) -> tuple[float, float]:
        below, above = balance.ends.tolist()
        if below >= -least and above >= greatest:  # as in most calls, once there were some
            return _bins_of(below, above, balance.bins or 0)
        grid = balance.widened(
            torch.maximum(balance.ends, balance.ends.new_tensor([-least, greatest]))
        )
        return grid.width.item(), grid.first.item()

    outliers = allowed_outliers(len(bias))
    return kept_kernels.binned(scores, bias, k, outliers, balance.histogram, bins_of)


@lru_cache
def _bins_of(below: float, above: float, bins: int) -> tuple[float, float]:
    """Return the width and the first bin of the grid of a range."""
    grid = Grid(torch.tensor([below, above], dtype=torch.float64, device="cpu"), bins)
    return grid.width.item(), grid.first.item()


def _required(balance: QuantileBias, load: Tensor) -> Tensor:
    """Return the bias in float64, NaN for an expert without tokens."""
    if balance.bins is None:
        total, tokens = load.double().chunk(2)
        return total / tokens
    counts, infinite = torch.split(load, [balance.histogram.numel(), balance.infinite.numel()])
    places = places_of_share(
        counts.view_as(balance.histogram), balance.k, infinite.view_as(balance.infinite)
    )
    if not balance.unit:
        level = Grid(balance.ends, balance.bins).values(places)
        # Equal scores are in one bin, at its left end if it is as narrow as can be.
        lower = level.float() < level
        return level if balance.centred else torch.where(lower, _just_above(level), level)
    least, greatest = balance.bias.min() - 1, balance.bias.max() + 1
    return least + places * ((greatest - least) / balance.bins)


def _with_ties(level: Tensor, required: Tensor, share: Tensor, mask: Tensor | None) -> Tensor:
    """Return levels, raised where an expert would get less than half of its share for ties.

    Without tokens it would get no gradient that could separate them.
    """
    known = known_tokens(required, mask)[:, None]
    less, most = ((each & known).sum(0) for each in (required < level, required <= level))
    return torch.where((2 * less < share) & (most > less + 1), _just_above(level), level)


def _just_above(values: Tensor) -> Tensor:
    """Return the next greater float32, in the dtype of the values, but no denormal number."""
    above = torch.nextafter(values.float(), torch.full_like(values, torch.inf).float())
    tiny = torch.finfo(torch.float32).tiny
    return torch.where(above.abs() < tiny, tiny, above).to(values.dtype)


def _count(balance: QuantileBias, required: Tensor, weights: Tensor | None) -> None:
    """Add what tokens require to the histogram; all count once if there are no weights."""
    bins = balance.bins or 0
    if weights is not None:
        balance.infinite.add_(counts_of_infinite(required, weights))
    if balance.unit:
        bias = balance.bias.to(required.dtype)
        least, greatest = bias.min() - 1, bias.max() + 1
        balance.histogram.add_(counts_in_range(required, weights, least, greatest, bins))
        return
    required = without_outliers(required, balance.bias)
    grid = balance.widened(torch.maximum(balance.ends, range_of(required, weights)))
    balance.histogram.add_(grid.counts(required, weights))


def _average(balance: QuantileBias, bias: Tensor, tokens: Tensor) -> None:
    if not are_finite(bias):
        finite = bias.to(torch.float32).isfinite()
        bias, tokens = torch.where(finite, bias, balance.mean), torch.where(finite, tokens, 0)
    added = once(tokens.to(torch.int64))
    balance.tokens.add_(added)
    # Of the mean, the step is less than the new number; so nothing overflows.
    weight = added.to(torch.float32) / balance.tokens.clamp(min=1)
    balance.mean.add_(weight * (bias - balance.mean))
