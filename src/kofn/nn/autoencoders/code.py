"""Sparse codes: which latents are kept, and what gradient reaches those that are not."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.arrays.tracing import is_at_hand
from kofn.links import Link
from kofn.maps.topk import hard_topk, soft_topk


class Coding(NamedTuple):
    """The way from scores [T, n] to a code."""

    k: Any
    """Latents per token: a number, or a tensor of one entry; with a gradient if it is learned."""
    jointly: bool
    """Whether the k·T largest scores of all tokens are kept, or the k largest of each token."""
    gradient: str
    silent: Tensor
    """Boolean [n]: the latents that gradient="silent" reaches."""
    link: str | Link
    temperature: Any
    """In units of the standard deviation of the scores."""
    signed: bool = False
    """Whether the largest magnitudes are kept, and the code may be negative."""


class Coded(NamedTuple):
    code: Tensor
    least: Tensor
    """The least kept score of each row."""
    greatest: Tensor | None
    """The greatest score of each row that is not kept; None unless a joint choice has entries."""


def code_of(scores: Tensor, how: Coding, mask: Tensor | None) -> Coded:
    """Return relu(scores) at the kept entries and 0 elsewhere, with the gradient that was chosen.

    To the exact gradient of the kept entries it adds jump·∂p/∂scores. p are the soft top-k
    weights, and the jump is the least kept score of the row: what an entry becomes when it is
    kept. The addition is exactly 0 in the value. If codes have signs, magnitudes stand for scores,
    and the jump has the sign of the score.

    Args:
        scores: [T, n]. mask: boolean [T], False for padding, whose code is 0.
    """
    sizes, values = sizes_of(scores, how.signed), _values_of(scores, how.signed)
    rows, entries = _rows(sizes, how.jointly, mask)
    if not rows.shape[-1]:
        return Coded(values, rows.new_full((1,), math.nan), None)
    count = _count(scores, how, mask)
    soft: dict[str, Any] = dict(link=how.link, temperature=_temperature(scores, how, mask))
    fixed, whole = rows.detach(), _whole(count)
    chosen = hard_topk(fixed, whole, mask=entries) > 0
    least = torch.where(chosen, fixed, math.inf).amin(-1, keepdim=True)
    greatest = torch.where(chosen, -math.inf, fixed).amax(-1, keepdim=True) if how.jointly else None
    code = _kept(values, chosen.view_as(scores), how.signed)
    jump = least.clamp(min=0).nan_to_num(posinf=0.0)
    jump = jump * scores.detach().sign() if how.signed else jump
    if how.gradient != "chosen":
        weights = soft_topk(rows, whole, mask=entries, **soft)
        reached = torch.where(how.silent, jump, 0.0) if how.gradient == "silent" else jump
        code = torch.addcmul(code, (weights - weights.detach()).view_as(scores), reached)
    if isinstance(count, Tensor) and count.requires_grad:
        weights = soft_topk(fixed, count, mask=entries, **soft)
        code = torch.addcmul(code, (weights - weights.detach()).view_as(scores), jump)
    return Coded(code, least, greatest)


def sizes_of(scores: Tensor, signed: bool) -> Tensor:
    """Return the numbers by which the largest are kept."""
    return scores.abs() if signed else scores


def _values_of(scores: Tensor, signed: bool) -> Tensor:
    """Return what a code has where scores are kept."""
    return scores if signed else scores.relu()


def _kept(values: Tensor, chosen: Tensor, signed: bool) -> Tensor:
    """Return the values that are chosen, and 0 elsewhere; NaN stays."""
    # relu leaves no −inf to multiply by 0.
    return torch.where(chosen | values.isnan(), values, 0.0) if signed else values * chosen


def without_nan(scores: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return the mask [T] without inputs that have a NaN score: in a joint choice, it would win."""
    sound = ~scores.detach().amax(-1).isnan()
    if is_at_hand(sound) and sound.all():
        return mask
    return sound if mask is None else mask & sound


def code_above(
    scores: Tensor, threshold: Tensor, mask: Tensor | None, signed: bool = False
) -> Tensor:
    """Return relu(scores) where they exceed the threshold, a float32 tensor without dimensions.

    If codes have signs, return the scores whose magnitudes do.
    """
    # With one dimension the threshold is not rounded to the dtype of the scores.
    chosen = sizes_of(scores, signed) > threshold.reshape(1)
    if mask is not None:
        chosen = chosen & mask[:, None]
    return _kept(_values_of(scores, signed), chosen, signed)


def _rows(scores: Tensor, jointly: bool, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the rows to choose from, and which of their entries may be chosen."""
    if not jointly:
        return scores, None if mask is None else mask[:, None].expand_as(scores)
    # A row of -inf among others needs no mask, which would cost more.
    live = scores if mask is None else scores.masked_fill(~mask[:, None], -math.inf)
    return live.flatten(), None


def _count(scores: Tensor, how: Coding, mask: Tensor | None) -> Any:
    """Return how many entries of a row are kept, as a number or a tensor; it may be fractional."""
    if not how.jointly:
        return how.k.reshape(()) if isinstance(how.k, Tensor) else how.k
    tokens = live_tokens(scores, mask)
    return (tokens * how.k).reshape(())


def live_tokens(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of tokens as a tensor; a number would fix it in a compiled program."""
    ones = scores.new_ones(scores.shape[:1], dtype=torch.float32)
    return (ones if mask is None else mask.to(torch.float32)).sum()


def _whole(count: Any) -> Any:
    return count.detach().round() if isinstance(count, Tensor) else round(count)


def _temperature(scores: Tensor, how: Coding, mask: Tensor | None) -> Tensor:
    """Return the temperature in units of the scores, from the tokens whose scores are finite."""
    x = scores.detach().float()
    sums = x.sum(-1)
    sound = sums.isfinite() if mask is None else sums.isfinite() & mask
    count = (sound.sum() * x.shape[-1]).clamp(min=1)
    mean = torch.where(sound, sums, 0.0).sum() / count
    squares = torch.linalg.vector_norm(x - mean, dim=-1).square()
    spread = (torch.where(sound, squares, 0.0).sum() / count).sqrt()
    return how.temperature * spread.clamp(min=torch.finfo(torch.float32).tiny)
