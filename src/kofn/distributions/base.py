"""Base classes of the distributions: shapes, as in torch.distributions, and enumeration."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Self

import numpy as np

from kofn.arrays.checks import check_dim, check_mask, check_same_kind, check_scores, check_shape
from kofn.arrays.kinds import (
    Array,
    adopt,
    cast,
    compute_dtype,
    framework,
    is_jax,
    is_torch,
    move_axis,
    namespace,
)
from kofn.arrays.operations import whole_rows
from kofn.arrays.typing import ArrayT
from kofn.distributions.enumeration import ENUMERATE_UP_TO, every_choice
from kofn.rows.given import without_deleted


class Distribution(ABC, Generic[ArrayT]):
    """Base class: one distribution per entry of an array, the first of its `parts`, or per row.

    For JAX it is a pytree of these parts.
    """

    parts: ClassVar[tuple[str, ...]] = ("logits",)
    said: ClassVar[tuple[str, ...]] = ()
    """Numbers that its repr mentions."""
    has_rsample: ClassVar[bool] = False
    has_enumerate_support: ClassVar[bool] = False

    def _register(self) -> None:
        if is_jax(self._first):
            from kofn.arrays.jax.compile import register

            register(type(self), self.parts)

    @property
    def _first(self) -> ArrayT:
        return getattr(self, self.parts[0])

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Return the batch shape: one distribution per element."""
        return tuple(self._first.shape)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample of one distribution."""
        return ()

    def __repr__(self) -> str:
        said = "".join(f", {name}={_in_words(getattr(self, name))}" for name in self.said)
        name, shape = self.parts[0], tuple(self._first.shape)
        return f"{type(self).__name__}({name} of shape {shape}{said})"

    @abstractmethod
    def log_prob(self, value: Array, /) -> ArrayT:
        """Return log P of each sample, of shape `shape + batch_shape`."""

    def expand(self, batch_shape: int | tuple[int, ...]) -> Self:
        """Return the distributions repeated to a larger batch shape, without copying.

        Args:
            batch_shape: a shape to which the present one broadcasts.

        Raises:
            ValueError: it does not.
        """
        batch = check_shape(batch_shape)
        sizes = zip(reversed(self.batch_shape), reversed(batch), strict=False)
        if len(batch) < len(self.batch_shape) or any(a not in (1, b) for a, b in sizes):
            raise ValueError(
                f"batch_shape must be a shape that {self.batch_shape} broadcasts to; got {batch}"
            )
        larger = copy.copy(self)
        for name in self.parts:
            part = getattr(self, name)
            if framework(part) is not None:
                shape = self._shape_of(name, batch)
                setattr(larger, name, namespace(part).broadcast_to(part, shape))
        return larger

    def _shape_of(self, part: str, batch: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a part of a distribution with this batch shape."""
        return batch

    def to_torch(self) -> Any:
        """Return a torch.distributions.Distribution equal to this one, for use with torch and pyro.

        It draws from torch's global generator and knows torch.distributions.kl_divergence. The
        entries of a sample are its last dimension, whatever `dim` is here. Where pyro is imported
        it is one of pyro's distributions too, and with `infer={"enumerate": "parallel"}` pyro sums
        over every choice.

        Raises:
            TypeError: made of another kind of arrays than tensors.

        Example:
            >>> import torch
            >>> from kofn import KSubset
            >>> law = KSubset(torch.zeros(4), 2).to_torch()
            >>> law.event_shape, law.enumerate_support().shape
            (torch.Size([4]), torch.Size([6, 4]))
        """
        if not is_torch(self._first):
            raise TypeError(f"to_torch needs tensors; got a {type(self._first).__qualname__}")
        from kofn.distributions.torch_wrapper import wrapped

        return wrapped(self)

    def entries_last(self) -> Self:
        """Return the same distribution with the entries of a sample along the last dimension."""
        return self


class Discrete(Distribution[ArrayT]):
    """A discrete distribution, with an enumeration of every choice and with marginals."""

    has_enumerate_support = True
    logits: ArrayT

    @abstractmethod
    def marginals(self) -> ArrayT:
        """Return the mean of a sample, in the shape of `logits`."""

    @property
    def mean(self) -> ArrayT:
        """Return the mean of a sample, which is `marginals`, in the shape of `logits`."""
        return self.marginals()

    @abstractmethod
    def log_choices(self) -> float:
        """Return the logarithm of the number of choices, the same for every row."""

    @abstractmethod
    def _choices(self) -> np.ndarray:
        """Return all choices of one row, with the entries last."""

    def _own(self, perturbed: Array) -> ArrayT:
        """Return perturbed logits as an array of the framework of the logits."""
        perturbed = check_same_kind("perturbed", perturbed, self.logits, "logits")
        check_scores(perturbed, "perturbed", scalars=True)
        return adopt(perturbed, self.logits)

    def support(self, factors: int | None = 0, *, enumerate_up_to: int = ENUMERATE_UP_TO) -> ArrayT:
        """Return every choice, (choices,) + logits.shape; for small numbers of choices.

        Args:
            factors: how many of the last batch dimensions are enumerated together, every choice
                of one with every choice of the others; all of them if None. Those before have
                size 1, because their choices are the same.
            enumerate_up_to: how many choices are listed at most.

        Raises:
            TypeError, ValueError: more choices than that; `factors` out of range; a k for each row.
        """
        return every_choice(self, factors, enumerate_up_to)

    def enumerate_support(
        self, expand: bool = True, *, enumerate_up_to: int = ENUMERATE_UP_TO
    ) -> ArrayT:
        """Return every choice of each row, (choices,) + logits.shape, as in torch.distributions.

        Args:
            expand: False leaves the batch dimensions at size 1.
            enumerate_up_to: as for `support`.
        """
        every = self.support(0, enumerate_up_to=enumerate_up_to)
        shape = (every.shape[0], *self._first.shape)
        return namespace(every).broadcast_to(every, shape) if expand else every


class OverRows(Distribution[ArrayT]):
    """Base class of distributions with one distribution per row of `logits`, along `dim`."""

    logits: ArrayT
    dim: int = -1
    mask: Array | None = None

    def _set(self, logits: ArrayT, dim: int, mask: Array | None) -> None:
        check_scores(logits, "logits")
        self.logits = logits
        self.dim = check_dim(dim, logits.ndim)
        if mask is not None:
            check_mask(mask, logits, "logits")
        self.mask = mask

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Return the shape of `logits` without `dim`: one distribution per element."""
        shape = list(self.logits.shape)
        del shape[self.dim]
        return tuple(shape)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample: its number of entries, which lie along `dim`."""
        return (self.logits.shape[self.dim],)

    def entries_last(self) -> Self:
        if self.dim == -1:
            return self
        turned, xp = copy.copy(self), namespace(self.logits)
        turned.logits = move_axis(self.logits, self.dim, -1)
        if self.mask is not None:
            mask = xp.broadcast_to(adopt(self.mask, self.logits), self.logits.shape)
            turned.mask = move_axis(mask, self.dim, -1)
        turned.dim = -1
        return turned

    def _shape_of(self, part: str, batch: tuple[int, ...]) -> tuple[int, ...]:
        if part not in ("logits", "mask"):
            return batch
        place = len(batch) + 1 + self.dim
        return (*batch[:place], *self.event_shape, *batch[place:])

    def _playing(self) -> ArrayT:
        """Return the logits in the compute dtype, −inf where masked or deleted."""
        xp = namespace(self.logits)
        y = cast(without_deleted(self.logits), compute_dtype(self.logits))
        y = y if self.mask is None else xp.where(adopt(self.mask, y), y, -math.inf)
        return whole_rows(y, self.dim)


def _in_words(value: Any) -> str:
    return str(value) if framework(value) is None else f"array of shape {tuple(value.shape)}"
