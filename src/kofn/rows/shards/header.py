"""The first message of a call: all ranks have the same arguments, or every rank gets an error.

It is a digest of shape, dtype and arguments, and its negative: two numbers, reduced by max. Only
where they differ do the ranks send their arguments to each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from kofn.rows.shards.ranks import Ranks

Checked = TypeVar("Checked")


class Arguments(NamedTuple):
    """The arguments of a rank that must be equal: as words, and numbers per row."""

    words: str
    numbers: Sequence[Tensor] = ()


NONE = Arguments("")
SAME = "Give all ranks the same arguments, and scores that differ in their size along dim only"


def handshake(
    ranks: Ranks,
    like: Any,
    check: Callable[[], Checked],
    arguments: Callable[[Checked], Arguments],
    advice: str = SAME,
) -> Checked:
    """Return check() if all ranks have the same arguments, which `arguments` takes from it.

    Raises:
        ValueError: another rank has other arguments, or its check failed.
        Exception: what this rank's `check` raises, once the others know of it.
    """
    checked, own, failure = None, NONE, None
    try:
        checked = check()
        own = arguments(checked)
    except Exception as error:
        failure = error
    agree(ranks, like, own, failure, advice)
    return checked  # type: ignore[return-value]


def agree(
    ranks: Ranks,
    like: Any,
    arguments: Arguments = NONE,
    failure: Exception | None = None,
    advice: str = SAME,
) -> None:
    """Raise an error on all ranks if their arguments differ, or one has a failure."""
    if failure is not None:
        arguments = Arguments(f"raised {type(failure).__name__}: {failure}")
    if not _are_equal(ranks, arguments, ranks.device_for(like)):
        _explain(ranks, arguments, failure, advice)
    if failure is not None:
        raise failure


def _are_equal(ranks: Ranks, arguments: Arguments, device: torch.device) -> bool:
    greatest, least = ends_of_digests(ranks, arguments, device).tolist()
    return bool(greatest == -least)


def ends_of_digests(ranks: Ranks, arguments: Arguments, device: torch.device) -> Tensor:
    """Return the greatest digest of all ranks, and the negative of the least, on the device."""
    words = hashlib.blake2b(f"{ranks.name} {arguments.words}".encode(), digest_size=8).digest()
    digest = torch.full((), int.from_bytes(words, "little") >> 2, dtype=torch.int64, device=device)
    for place, numbers in enumerate(arguments.numbers):
        digest = digest ^ _digest_of(numbers, place).to(device)
    digest = digest >> 2  # so that its negative is a number too
    return ranks.max(torch.stack([digest, -digest]))


_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # of linear congruential generators; odd


def _digest_of(numbers: Tensor, place: int) -> Tensor:
    """Return a digest of numbers without reading them: a sum of their bits by position."""
    bits = numbers.detach().double().resolve_neg().contiguous().view(torch.int64).flatten()
    at = torch.arange(place + 1, place + 1 + len(bits), device=bits.device)
    mixed = (bits ^ (bits >> 29)) * (2 * at * _MULTIPLIER + 1)
    return (mixed ^ (mixed >> 32)).sum()


def _explain(ranks: Ranks, arguments: Arguments, failure: Exception | None, advice: str) -> None:
    contents = " and ".join(f"{_shown(one)}" for one in arguments.numbers)
    said = ranks.said(arguments.words + (f", with the numbers {contents}" if contents else ""))
    if failure is not None:
        return
    mine = ranks.place
    usual = max(said, key=said.count)
    others = [rank for rank, text in enumerate(said) if text != usual]
    differing = "; ".join(f"rank {rank} {said[rank]}" for rank in others[:4])
    raise ValueError(
        f"{ranks.name}: the ranks were called with different arguments: {differing}; the other "
        f"ranks, as rank {said.index(usual)}: {usual}. This is rank {mine} of {ranks.size}. "
        f"{advice}"
    )


def _shown(numbers: Tensor) -> str:
    few = numbers.detach().flatten()[:4].tolist()
    return f"{few}{' …' if numbers.numel() > len(few) else ''}"
