"""The first message of a call: all ranks asked for the same thing, or every rank gets an error.

It is a digest of shape, dtype and arguments, and its negative, of which the maximum is taken. Only
where they differ do the ranks tell each other what they were asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from kofn.shards.ranks import Ranks

Checked = TypeVar("Checked")


class Asked(NamedTuple):
    """What a rank was asked for: the words, and the numbers per row, that must be equal."""

    words: str
    numbers: Sequence[Tensor] = ()


SAME = "Give all ranks the same arguments, and scores that differ in their size along dim only"


def agreed(
    ranks: Ranks,
    like: Any,
    check: Callable[[], Checked],
    asked: Callable[[Checked], Asked],
    advice: str = SAME,
) -> Checked:
    """Return check() if all ranks were asked for the same, as `asked` tells it.

    Raises:
        ValueError: another rank was asked for something else, or its check failed.
        Exception: what this rank's `check` raises, after the others know of it.
    """
    checked, failure = None, None
    try:
        checked = check()
        found = asked(checked)
    except Exception as error:
        failure, found = error, Asked(f"raised {type(error).__name__}: {error}")
    if not _are_equal(ranks, found, ranks.device_for(like)):
        _explain(ranks, found, failure, advice)
    if failure is not None:
        raise failure
    return checked  # type: ignore[return-value]


def _are_equal(ranks: Ranks, asked: Asked, device: torch.device) -> bool:
    words = hashlib.blake2b(f"{ranks.name} {asked.words}".encode(), digest_size=8).digest()
    digest = torch.full((), int.from_bytes(words, "little") >> 2, dtype=torch.int64, device=device)
    for place, numbers in enumerate(asked.numbers):
        digest = digest ^ _digest_of(numbers, place).to(device)
    digest = digest >> 2  # so that its negative is a number too
    greatest, least = ranks.max(torch.stack([digest, -digest])).tolist()
    return bool(greatest == -least)


_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # of linear congruential generators; odd


def _digest_of(numbers: Tensor, place: int) -> Tensor:
    """Return a digest of numbers without reading them: a sum of their bits by position."""
    bits = numbers.detach().double().contiguous().view(torch.int64).flatten()
    at = torch.arange(place + 1, place + 1 + len(bits), device=bits.device)
    mixed = (bits ^ (bits >> 29)) * (2 * at * _MULTIPLIER + 1)
    return (mixed ^ (mixed >> 32)).sum()


def _explain(ranks: Ranks, asked: Asked, failure: Exception | None, advice: str) -> None:
    contents = " and ".join(f"{_shown(one)}" for one in asked.numbers)
    said = ranks.said(asked.words + (f", with the numbers {contents}" if contents else ""))
    if failure is not None:
        return
    mine = ranks.place
    usual = max(said, key=said.count)
    others = [rank for rank, text in enumerate(said) if text != usual]
    told = "; ".join(f"rank {rank} {said[rank]}" for rank in others[:4])
    raise ValueError(
        f"{ranks.name}: the ranks were called with different arguments: {told}; the other "
        f"ranks, as rank {said.index(usual)}: {usual}. This is rank {mine} of {ranks.size}. "
        f"{advice}"
    )


def _shown(numbers: Tensor) -> str:
    few = numbers.detach().flatten()[:4].tolist()
    return f"{few}{' …' if numbers.numel() > len(few) else ''}"
