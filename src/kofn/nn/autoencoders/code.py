"""Sparse codes: which latents are kept, and what gradient reaches those that are not."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kofn.links import Link
from kofn.maps.topk import hard_topk, soft_topk


class Coding(NamedTuple):
    """How scores [T, n] become a code."""

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


class Coded(NamedTuple):
    code: Tensor
    least: Tensor
    """The least kept score of each row."""
    greatest: Tensor
    """The greatest score of each row that is not kept."""


def code_of(scores: Tensor, how: Coding, mask: Tensor | None) -> Coded:
    """Return relu(scores) at the kept entries and 0 elsewhere, with the gradient that was asked.

    To the exact gradient of the kept entries it adds jump·∂p/∂scores. p are the soft top-k
    weights, and the jump is the least kept score of the row: what an entry becomes when it is
    kept. The addition is exactly 0 in the value.

    Args:
        scores: [T, n]. mask: boolean [T], False for padding, whose code is 0.
    """
    rows, entries = _rows(scores, how.jointly, mask)
    if not rows.shape[-1]:
        none = rows.new_full((1,), math.nan)
        return Coded(scores.relu(), none, none)
    count = _count(scores, how, mask)
    soft: dict[str, Any] = dict(link=how.link, temperature=_temperature(scores, how, mask))
    fixed = rows.detach()
    if how.gradient == "chosen":
        kept = hard_topk(fixed, _whole(count), mask=entries)
    else:
        kept = soft_topk(rows, _whole(count), mask=entries, hard=True, **soft)
    chosen = kept.detach() > 0
    least = fixed.masked_fill(~chosen, math.inf).amin(-1, keepdim=True)
    jump = least.clamp(min=0).nan_to_num(posinf=0.0)
    code = scores.relu() * chosen.view_as(scores)
    if how.gradient != "chosen":
        added = (jump * (kept - kept.detach())).view_as(scores)
        code = code + (added if how.gradient == "all" else torch.where(how.silent, added, 0.0))
    if isinstance(count, Tensor) and count.requires_grad:
        weights = soft_topk(fixed, count, mask=entries, **soft)
        code = code + (jump * (weights - weights.detach())).view_as(scores)
    others = ~chosen if entries is None else ~chosen & entries
    return Coded(code, least, fixed.masked_fill(~others, -math.inf).amax(-1, keepdim=True))


def without_nan(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask [T] without inputs that have a NaN score: in a joint choice, it would win."""
    sound = ~scores.detach().isnan().any(-1)
    return sound if mask is None else mask & sound


def code_above(scores: Tensor, threshold: Tensor, mask: Tensor | None) -> Tensor:
    """Return relu(scores) where they exceed the threshold, a float32 tensor without dimensions."""
    # With one dimension the threshold is not rounded to the dtype of the scores.
    chosen = scores > threshold.reshape(1)
    if mask is not None:
        chosen = chosen & mask[:, None]
    return scores.relu() * chosen


def _rows(scores: Tensor, jointly: bool, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    entries = None if mask is None else mask[:, None].expand_as(scores)
    if not jointly:
        return scores, entries
    return scores.flatten(), None if entries is None else entries.flatten()


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
    """Return the temperature in units of the scores."""
    x = scores.detach().float()
    live = x.isfinite() if mask is None else x.isfinite() & mask[:, None]
    x, count = torch.where(live, x, 0.0), live.sum().clamp(min=1)
    from_mean = torch.where(live, x - x.sum() / count, 0.0)
    spread = (from_mean.square().sum() / count).sqrt()
    return how.temperature * spread.clamp(min=torch.finfo(torch.float32).tiny)
