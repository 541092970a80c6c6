"""Where the parts of rows lie: what a function needs to know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any, NamedTuple, Self

from kofn.arrays.form import Form, form_of
from kofn.arrays.kinds import move_axis
from kofn.links import Link
from kofn.losses.reduced import over_rows
from kofn.operations.operation import Operation
from kofn.rows.settled import Rows
from kofn.rows.shards.asked import Asked


class Scores(NamedTuple):
    """A function's name for its scores, and whether they may be integers."""

    name: str
    may_be_integers: bool


SCORES = Scores("scores", False)


class Layout(ABC):
    """Rows in parts, one of them in this process or on this device.

    `OnGroup` is for torch tensors in a group of processes, `OnMesh` for DTensors, `OnAxes` for JAX.
    In this class, arguments of a call are the parts for this process already.
    """

    over: Any
    """The `Reductions` of whole rows."""
    is_cut = True
    """Whether others have parts of these rows, too."""
    of_classes = "the entries"
    """The object of class weights, for an error."""

    def __init__(self, name: str, scores: Any, dim: int, of: Scores = SCORES) -> None:
        self.name, self.scores, self.dim = name, scores, dim  # the scores: this process's part
        self.of = of

    def form(self) -> Form:
        """Return the form of this process's part."""
        return form_of(self.scores, self.dim, *self.of)

    def with_scores(self, scores: Any) -> Self:
        """Return this layout of other scores, given this process's part."""
        other = copy(self)
        other.scores = scores
        return other

    def checking(self) -> AbstractContextManager[None]:
        """Make checks of arguments, whose errors reach the others, who wait for a message."""
        return nullcontext()

    def with_all_rows(self, words: str) -> AbstractContextManager[None]:
        """Compute a reduction over all rows, or raise an error for all of them.

        `words` are arguments that those who have other rows must have been given alike.
        """
        return nullcontext()

    def per_row(self, name: str, value: Any) -> Any:
        """Return this process's part of an argument per row, which may be a number."""
        return value

    def per_entry(self, name: str, value: Any) -> Any:
        """Return this process's part of an argument per entry, which may be a number."""
        return value

    def per_class(self, value: Any) -> Any:
        """Return this process's part of numbers along `dim`."""
        return value

    def link(self, link: Link) -> Link:
        """Return the link with this process's part of an alpha per row."""
        return link

    @abstractmethod
    def checked(self, asked: Asked, words: str = "", numbers: Sequence[Any] = ()) -> Any:
        """Check the parts of arguments, and that others have the same; return rows.

        `words` and `numbers` are further arguments that must be the same. The rows have scores, k,
        costs and a form.
        """

    @abstractmethod
    def settled(self, rows: Any) -> Rows:
        """Return the entries of rows by their kinds, with their gradient."""

    @abstractmethod
    def answer(self, operation: Operation, rows: Any, *arrays: Any) -> Any:
        """Return this process's part of an answer, or its numbers per row."""

    @abstractmethod
    def chosen(self, rows: Any) -> Any:
        """Return this process's part of the hard choice; with costs, it has a gradient."""

    @abstractmethod
    def restored(self, numbers: Any, of_rows: bool, form: Form | None = None) -> Any:
        """Return numbers per row or entries as the caller's scores lie.

        `form` is the form of the entries of rows; None if they have the caller's already.
        """

    @abstractmethod
    def agreed(self, words: str) -> None:
        """Raise an error for all if others were given other arguments, which `words` describe."""

    @abstractmethod
    def ranked(self, x: Any, playing: Any, ranks: Any) -> Any:
        """Return the numbers of these ranks in whole rows, (…, m), with their gradient."""

    @abstractmethod
    def owned(self, shared: Any, own: Any, mine: Any) -> Any:
        """Return numbers that all have, with the gradient of `own`, which is theirs where `mine`.

        It is so in one process or on one device.
        """

    def restored_at(self, numbers: Any, place: int) -> Any:
        """Return numbers (…, m) per row with m at this place of the batch shape."""
        return move_axis(numbers, -1, place)

    def reduced(self, losses: Any, counts: Any, reduction: str) -> Any:
        """Return the losses of rows as the caller's lie, or their sum or mean over all rows.

        `counts` is how much of a row counts in the mean.
        """
        if reduction == "none":
            return self.restored(losses, of_rows=True)
        return over_rows(self.of_all_rows(losses), self.of_all_rows(counts), reduction)

    def of_all_rows(self, numbers: Any) -> Any:
        """Return numbers per row, or their sum, for a sum over all rows."""
        return numbers
