"""The units of the choice: single weights, blocks of them, output channels, or n of every m."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor


class Blocks(NamedTuple):
    """Blocks of a weight seen as a matrix [out, rest]; (1, 1) are single weights."""

    rows: int = 1
    columns: int = 1

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless whole blocks cover the weight."""
        rows, columns = as_matrix(shape)
        if rows % self.rows or columns % self.columns:
            raise ValueError(
                f"{name} of shape {tuple(shape)} is a matrix of {rows} x {columns}, which blocks "
                f"of {self.rows} x {self.columns} do not cover; exclude it or choose other blocks"
            )

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the scores of a weight: its own, or [blocks down, blocks across]."""
        if self.size == 1:
            return tuple(shape)
        rows, columns = as_matrix(shape)
        return rows // self.rows, columns // self.columns

    def summed(self, values: Tensor) -> Tensor:
        """Return one number per block: the sum of its entries."""
        return values if self.size == 1 else self._blocked(values).sum((1, 3))

    def spread(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return numbers per block as one per entry of a weight."""
        if self.size == 1:
            return values
        wide = values[:, None, :, None].expand(-1, self.rows, -1, self.columns)
        return wide.reshape(shape)

    def _blocked(self, values: Tensor) -> Tensor:
        rows, columns = as_matrix(values.shape)
        down, across = rows // self.rows, columns // self.columns
        return values.reshape(down, self.rows, across, self.columns)


class Channels:
    """Output channels: the rows of a weight seen as a matrix [out, rest]."""

    size = 1
    """A channel is the unit of amounts and budgets, however many weights it has."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Do nothing: every weight has rows."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the scores of a weight: [out]."""
        return shape[:1]

    def summed(self, values: Tensor) -> Tensor:
        """Return one number per channel: the sum of its entries."""
        return values.flatten(1).sum(1)

    def spread(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return numbers per channel as one per entry of a weight."""
        return values.view(-1, *[1] * (len(shape) - 1)).expand(shape)

    def with_the_best(self, scores: Tensor, cost: Tensor | float) -> Tensor:
        """Return scores with +inf in the place of the channel that a layer keeps in any case."""
        return scores.scatter(0, (scores / cost).argmax(0, keepdim=True), torch.inf)


class Groups(NamedTuple):
    """n of every m neighbours along the last dimension of a weight seen as [out, rest]."""

    n: int
    m: int

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless whole groups cover the rows of the weight."""
        columns = as_matrix(shape)[1]
        if columns % self.m:
            raise ValueError(
                f"{name} of shape {tuple(shape)} has rows of {columns} weights, which groups of "
                f"{self.m} do not cover; exclude it"
            )

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the scores of a weight: its own."""
        return tuple(shape)

    def grouped(self, values: Tensor) -> Tensor:
        """Return the entries as groups [number, m]."""
        return values.reshape(-1, self.m)


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of a weight as a matrix [out, rest]."""
    return shape[0], int(torch.Size(shape[1:]).numel())


Layout = Blocks | Channels | Groups


def layout_of(pattern: object) -> Layout:
    """Return the layout of a pattern: None, "n:m", "channel" or the shape of a block."""
    if pattern is None:
        return Blocks()
    if pattern == "channel":
        return Channels()
    if isinstance(pattern, str):
        match = re.fullmatch(r"(\d+):(\d+)", pattern)
        if match and 0 < int(match[1]) < int(match[2]):
            return Groups(int(match[1]), int(match[2]))
    elif isinstance(pattern, (tuple, list)) and len(pattern) == 2:
        rows, columns = pattern
        if type(rows) is type(columns) is int and min(rows, columns) > 0:
            return Blocks(rows, columns)
    raise ValueError(
        f'pattern must be None, "n:m" with 0 < n < m, such as "2:4", "channel", or the shape of a '
        f"block, such as (4, 4); got {pattern!r}"
    )
