"""Rows of torch tensors whose parts lie in a group of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, is_grad_enabled, where

from kofn.adapters.shards import answers as torch_shards
from kofn.adapters.shards import choice, ranked
from kofn.arrays.form import Form
from kofn.arrays.keys import numbers_of
from kofn.arrays.kinds import dtype_name
from kofn.distributed.layout import SCORES, Layout, Scores
from kofn.operations.operation import Operation
from kofn.rows.settled import Rows
from kofn.rows.shards.asked import Asked
from kofn.rows.shards.given import Shards, form_of_shard, require_eager, shards
from kofn.rows.shards.header import Arguments, agree
from kofn.rows.shards.ranks import ranks_of
from kofn.rows.shards.reductions import GroupRows
from kofn.rows.shards.statistics import settled


class OnGroup(Layout):
    """A shard of rows whose other entries lie in the other processes of some groups."""

    of_classes = "this process's entries"

    def __init__(
        self, name: str, scores: Any, dim: int, groups: Sequence[Any], of: Scores = SCORES
    ) -> None:
        super().__init__(name, scores, dim, of)
        self.ranks = ranks_of(groups, name, scores)
        self.over = GroupRows(self.ranks)
        self.is_cut = bool(groups)

    @contextmanager
    def checking(self) -> Iterator[None]:
        try:
            form_of_shard(self.name, self.scores, self.dim, *self.of)
            yield
        except Exception as error:
            if self.is_cut:
                agree(self.ranks, self.scores, failure=error)
            raise

    def checked(self, asked: Asked, words: str = "", numbers: Sequence[Any] = ()) -> Shards:
        return shards(self.over, self.scores, self.dim, asked, Arguments(words, numbers))

    def settled(self, rows: Shards) -> Rows:
        return settled(rows)

    def answer(self, operation: Operation, rows: Shards, *arrays: Tensor) -> Tensor:
        return torch_shards.answer(operation, rows, *arrays)

    def chosen(self, rows: Shards) -> Tensor:
        return choice.hard(rows) if rows.costs is None else torch_shards.knapsack_choice(rows)

    def agreed(self, words: str) -> None:
        require_eager(self.name, self.scores)
        agree(self.ranks, self.scores, Arguments(words))

    def ranked(self, x: Tensor, playing: Tensor | None, ranks: Tensor) -> Tensor:
        at_ranks = ranked.ranked(x.detach(), playing, ranks, self.over)
        numbers: Tensor = numbers_of(at_ranks.keys, dtype_name(x))
        if not x.shape[-1]:
            return numbers + x.sum()  # the graph that the other ranks have
        return self.owned(numbers, x.gather(-1, at_ranks.entries), at_ranks.mine)

    def owned(self, shared: Tensor, own: Tensor, mine: Tensor) -> Tensor:
        # Only this process's entries have the gradient here.
        return where(mine, own, shared) if own.requires_grad and is_grad_enabled() else shared

    def restored(self, numbers: Tensor, of_rows: bool, form: Form | None = None) -> Any:
        return numbers if of_rows or form is None else form.restored(numbers)
