"""What is put to a router while its choices are recorded, or while another's are replayed.

Compiled code asks by operators, which look at Python when they run: so a program that was compiled
in one replay serves the next one, of other indices, and a second run for a checkpoint.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from kofn.arrays.torch.private import backward_pass, node_number, numbers_nodes

KEPT = 64
"""Earlier replays in which a call that runs again is told from one in none."""

_numbers = itertools.count()
_followed: WeakValueDictionary[int, Following] = WeakValueDictionary()
"""Who follows a router, by a number of its own that a compiled program has as an array."""


class Call(NamedTuple):
    """A call of a router in a replay, by which a checkpoint finds its tokens again."""

    start: int
    tokens: int
    mark: Tensor
    """A few sums of its scores, which a second run has, too."""
    node: int
    """The number of the next node of the graph."""
    recorded: bool
    """Whether there are nodes of this call; a reentrant checkpoint's come before it."""

    def distance(self, node: int) -> int:
        """Return how far it is from the node that a backward pass is at, if that can be its own."""
        ahead = node - self.node if self.recorded else self.node - 1 - node
        return ahead if ahead >= 0 else sys.maxsize


class Replay:
    """The experts that a router replays, and which of its calls has taken which of them."""

    def __init__(self, router: str, table: Tensor) -> None:
        self.router = router
        self.table = table  # [tokens, k]
        self.cursor = 0
        self.calls: list[Call] = []
        self.began = node_number()  # the next node of the graph, as this thread counts them
        self.thread = threading.get_ident()

    def rows(self, scores: Tensor) -> Tensor:
        """Return what the table has for the tokens of this call, or of the one that runs again."""
        self.table = self.table.to(scores.device)
        tokens, mark = len(scores), _mark(scores)
        if backward_pass() != -1:
            return self._again(tokens, mark)
        if threading.get_ident() != self.thread:  # each counts its own nodes
            raise RuntimeError(
                f"nn.replay_routing must be entered in the thread that calls the model; the router "
                f"{self.router!r} was called in another"
            )
        start, stop = self.cursor, self.cursor + tokens
        if stop > len(self.table):
            raise ValueError(
                f"indices must have all tokens of the block: the router {self.router!r} has been "
                f"given {stop} tokens; got {len(self.table)}"
            )
        self.calls.append(Call(start, tokens, mark, node_number(), torch.is_grad_enabled()))
        self.cursor = stop
        return self.table[start:stop]

    def _again(self, tokens: int, mark: Tensor) -> Tensor:
        """Return the rows of the earlier call that runs again: the one with the nearest scores."""
        table, node = self.table, node_number()
        calls = [each for each in self.calls if each.tokens == tokens]
        calls.sort(key=lambda each: each.distance(node))  # so that it decides between equal scores
        if not calls:
            raise RuntimeError(
                f"a checkpoint ran the router {self.router!r} again with {tokens} tokens, as no "
                "call in this nn.replay_routing had; call backward() in the block of the forward "
                "pass"
            )
        if len(calls) == 1:
            return table[calls[0].start : calls[0].start + tokens]
        marks = torch.stack([each.mark for each in calls])
        nearest = (marks - mark).square().sum(-1).argmin()  # no look at it: a device need not wait
        starts = torch.tensor(
            [each.start for each in calls], dtype=torch.int64, device=table.device
        )
        return table[starts[nearest] + torch.arange(tokens, device=table.device)]


class Following:
    """One router's part of a record or a replay. It stays with the router, but not with a copy."""

    def __init__(self, name: str) -> None:
        self.name = name
        number = next(_numbers)
        self.number = torch.tensor(number, dtype=torch.int64, device="cpu")
        _followed[number] = self
        self.has_replayed = self.records = False
        self.current: Replay | None = None
        # The nodes of earlier replays: from the first, to the one behind the last.
        self.ended: deque[tuple[int, int]] = deque(maxlen=KEPT)
        self.parts: list[list[Tensor]] = []  # of each record, what it has got

    def __deepcopy__(self, memo: Any) -> None:
        """Return None: a copy of a router is not followed."""

    def __reduce__(self) -> Any:
        return type(None), ()

    def begin(self, table: Tensor) -> None:
        """Replay these experts, [tokens, k], from the first token on."""
        self.current, self.has_replayed = Replay(self.name, table), True

    def end(self) -> None:
        assert self.current is not None
        # Where nobody can tell, all that runs again from now on is an error, not another choice.
        last = node_number() if numbers_nodes else sys.maxsize
        self.ended.append((self.current.began, last))
        self.current = None

    def is_replaying(self) -> bool:
        """Return whether a replay is on; in compiled code, whether there was one."""
        if torch.compiler.is_compiling():  # the operator asks whether one is on
            return self.has_replayed
        return self._replay_of_this_call() is not None

    def replay(self, scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return indices [T, k], and for which tokens they are of the replay; others keep `own`."""
        asked: Any = _replayed if torch.compiler.is_compiling() else Following._replay
        who: Any = self.number if torch.compiler.is_compiling() else self
        return asked(who, scores.detach(), own)

    def record(self, indices: Tensor, taken: Tensor | None) -> Tensor:
        """Return indices [T, k], which the records get; −1 where `taken` is False."""
        noted = indices if taken is None else torch.where(taken, indices, -1)
        if torch.compiler.is_compiling():
            return _recorded(self.number, indices, noted)
        self._record(noted)
        return indices

    def _record(self, indices: Tensor) -> None:
        if backward_pass() == -1:
            kept = indices.detach().to(torch.int32)
            for part in self.parts:
                part.append(kept)

    def _replay(self, scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        replay = self._replay_of_this_call()
        if replay is None:
            return own.clone(), own.new_zeros(own.shape[:1], dtype=torch.bool)
        rows = replay.rows(scores).to(own.dtype)
        told = rows[:, :1] >= 0
        return torch.where(told, rows, own), told[:, 0].clone()

    def _replay_of_this_call(self) -> Replay | None:
        """Return the replay that is on, if it has this call, for the first time or again.

        What a checkpoint runs again of a replay that has ended is an error.
        """
        if backward_pass() == -1:
            return self.current
        node = node_number()
        if self.current is not None and node >= self.current.began:
            return self.current
        if any(first <= node < behind for first, behind in self.ended):
            raise RuntimeError(
                f"a checkpoint ran the router {self.name!r} again after its nn.replay_routing had "
                "ended, where it would choose other experts; call backward() in the block"
            )
        return None


def _mark(scores: Tensor) -> Tensor:
    """Return sums over tokens, [E], by which calls differ: weighted, so that their order counts."""
    wide = scores.detach()
    wide = wide if wide.dtype == torch.float64 else wide.float()
    weights = torch.linspace(1, 2, len(scores), dtype=wide.dtype, device=wide.device)
    return weights @ torch.where(wide.isfinite(), wide, 0.0)


@torch.library.custom_op("kofn::replayed_experts", mutates_args=())
def _replayed(number: Tensor, scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    return _followed[int(number)]._replay(scores, own)


@_replayed.register_fake
def _(number: Tensor, scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(own), own.new_empty(own.shape[:1], dtype=torch.bool)


@torch.library.custom_op("kofn::recorded_experts", mutates_args=())
def _recorded(number: Tensor, indices: Tensor, noted: Tensor) -> Tensor:
    _followed[int(number)]._record(noted)
    return indices.clone()


@_recorded.register_fake
def _(number: Tensor, indices: Tensor, noted: Tensor) -> Tensor:
    return torch.empty_like(indices)
