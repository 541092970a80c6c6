"""The tasks: sequences of any length, and what is to be predicted at some of their positions."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SYMBOLS = 32
SEPARATOR, FILLER = SYMBOLS, SYMBOLS + 1
VOCABULARY = SYMBOLS + 2
PAIRS = 8  # to recall, in a sequence of any length


class Batch(NamedTuple):
    inputs: Tensor  # [sequences, length]
    targets: Tensor  # the same, −100 where nothing is predicted


def copy(count: int, length: int, generator: torch.Generator) -> Batch:
    """Symbols, a separator, and the same symbols again."""
    return _repeated(count, length, generator, lambda symbols: symbols)


def reverse(count: int, length: int, generator: torch.Generator) -> Batch:
    """Symbols, a separator, and the symbols from the last to the first."""
    return _repeated(count, length, generator, lambda symbols: symbols.flip(-1))


def two_back(count: int, length: int, generator: torch.Generator) -> Batch:
    """Symbols; each predicts the one two places before it."""
    symbols = _symbols(count, length, generator)
    targets = torch.full_like(symbols, -100)
    targets[:, 2:] = symbols[:, :-2]
    return Batch(symbols, targets)


def recall(count: int, length: int, generator: torch.Generator) -> Batch:
    """Eight pairs of a key and its value somewhere in filler, then each key again.

    Each key at the end is followed by its value, which is to be predicted.
    """
    keys = torch.rand(count, SYMBOLS // 2, generator=generator).argsort(-1)[:, :PAIRS]
    values = torch.randint(SYMBOLS // 2, (count, PAIRS), generator=generator) + SYMBOLS // 2
    inputs = torch.full((count, length), FILLER)
    end = 2 * PAIRS  # symbols of the keys and values at the end
    free = (length - end) // 2  # places for a pair
    places = 2 * torch.rand(count, free, generator=generator).argsort(-1)[:, :PAIRS]
    inputs.scatter_(1, places, keys).scatter_(1, places + 1, values)
    order = torch.rand(count, PAIRS, generator=generator).argsort(-1)
    targets = torch.full_like(inputs, -100)
    inputs[:, -end::2] = keys.gather(1, order)
    inputs[:, -end + 1 :: 2] = targets[:, -end::2] = values.gather(1, order)
    return Batch(inputs, targets)


def _repeated(
    count: int, length: int, generator: torch.Generator, again: Callable[[Tensor], Tensor]
) -> Batch:
    symbols = _symbols(count, length // 2, generator)
    separator = torch.full((count, 1), SEPARATOR)
    inputs = torch.cat([symbols, separator, again(symbols)], -1)
    targets = torch.full_like(inputs, -100)
    targets[:, symbols.shape[1] : -1] = again(symbols)
    return Batch(inputs[:, :-1], targets[:, :-1])


def _symbols(count: int, length: int, generator: torch.Generator) -> Tensor:
    return torch.randint(SYMBOLS, (count, length), generator=generator)


TASKS = {"copy": copy, "reverse": reverse, "2-back": two_back, "recall": recall}
