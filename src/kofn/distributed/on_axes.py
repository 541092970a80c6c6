"""Rows that lie along named axes of a JAX mesh, inside jax.shard_map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kofn.adapters import array_code
from kofn.adapters.jax.answers import in_parts
from kofn.adapters.jax.choice import hard_in_shards
from kofn.adapters.shards import ranked
from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.form import Form
from kofn.arrays.kinds import Array, namespace
from kofn.arrays.operations import take_along_last
from kofn.distributed.layout import SCORES, Layout, Scores
from kofn.formulas import choice
from kofn.losses.reduced import bars, constant_where
from kofn.operations.operation import Operation
from kofn.rows.given import Given
from kofn.rows.settled import Rows, rows_of
from kofn.rows.shards.asked import Asked
from kofn.rows.shards.jax_axis import axis_rows, given_on_axes


class OnAxes(Layout):
    """Rows in parts, one on each device along some axes."""

    def __init__(
        self,
        name: str,
        scores: Array,
        dim: int,
        axis_name: str | tuple[str, ...],
        of: Scores = SCORES,
    ) -> None:
        super().__init__(name, scores, dim, of)
        self.over = axis_rows(name, axis_name)

    def checked(self, asked: Asked, words: str = "", numbers: Sequence[Any] = ()) -> Given:
        # JAX itself knows which arrays are the same on all devices.
        return given_on_axes(self.over, self.scores, self.dim, asked)

    def settled(self, rows: Given) -> Rows:
        return rows_of(rows, self.over)

    def answer(self, operation: Operation, rows: Given, *arrays: Array) -> Array:
        known = None if arrays else in_parts(operation, rows, self.over)
        if known is not None:
            return known
        settled = rows_of(rows, self.over)
        answers: Array = array_code.of_settled(operation, settled, *arrays, over=self.over)
        if "constant" not in operation.keeps:
            return answers
        barred = bars(stop_gradient(rows.scores), arrays[0])
        return constant_where(self.over.count(barred) > 0, answers)

    def chosen(self, rows: Given) -> Array:
        if rows.costs is not None:
            raise ValueError(
                f"{self.name}: hard must be False inside jax.shard_map; got True: call "
                "kofn.soft_knapsack under jax.jit, which takes arrays on any mesh"
            )
        x, k = stop_gradient(rows.scores), stop_gradient(rows.k)
        weights = hard_in_shards(choice.known_scores(x), k, self.over)  # type: ignore[arg-type]  # of JAX
        return choice.with_nan(x, k, weights, self.over)

    def agreed(self, words: str) -> None:
        """JAX itself knows which arrays are the same on all devices."""

    def ranked(self, x: Array, playing: Array | None, ranks: Array) -> Array:
        at_ranks = ranked.ranked(stop_gradient(x), playing, ranks, self.over)
        return self.owned(None, take_along_last(x, at_ranks.entries), at_ranks.mine)

    def owned(self, shared: object, own: Array, mine: Array) -> Array:
        return self.over.total(namespace(own).where(mine, own, 0))

    def restored_at(self, numbers: Array, place: int) -> Array:
        return super().restored_at(self.over.shared(numbers), place)

    def restored(self, numbers: Array, of_rows: bool, form: Form | None = None) -> Array:
        if of_rows:
            return self.over.shared(numbers)
        return numbers if form is None else form.restored(numbers)

    def of_all_rows(self, numbers: Array) -> Array:
        return self.over.shared(numbers)
