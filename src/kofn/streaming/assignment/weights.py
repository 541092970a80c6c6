"""Soft assignment of a matrix whose rows are read block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Never

import numpy as np

from kofn.arrays.checks import check_flag, check_integer, check_temperature, shown
from kofn.arrays.kinds import Array, framework, is_torch
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import LinkName
from kofn.arrays.without_onnx import refuse
from kofn.links import Link, table
from kofn.streaming.assignment.matrices import Assignment, Matrix, Part, pages_of
from kofn.streaming.assignment.prices import Rounds, Solved
from kofn.streaming.maps import Progress, check_progress, each_of, room_for

__all__ = ["soft_assignment", "soft_assignment_prices"]

Rows = Array | Iterable[Array]


def soft_assignment(
    scores: Rows,
    k: float | Array,
    capacity: float | Array | None = None,
    *,
    out: Any = None,
    link: LinkName | Link = "logistic",
    temperature: float = 1.0,
    hard: bool = False,
    rounds: int | None = None,
    progress: Progress | None = None,
    **others: Never,
) -> Any:
    """Return the weights of `kofn.soft_assignment` of a matrix whose rows are read by blocks.

    The prices of the columns are found in passes over the rows, and the weights follow from them,
    some rows at a time. Of new rows they are `soft_topk(rows - columns, k)`, with the `columns` of
    `soft_assignment_prices`.

    Args:
        scores: a matrix (m, n) of floats, such as a numpy.memmap, or a list of them, whose rows are
            one matrix; or an object that yields such blocks of rows each time it is iterated over,
            which it is once in a pass. −inf is never chosen: set masked scores to it.
        k: what each row sums to, in [0, n]: a number, or an array of m.
        capacity: what each column sums to, in [0, m]: a number, or an array of n; as for
            `kofn.soft_assignment`, and by default an equal share of Σk.
        out: where to write the weights: an array, or a list of them if `scores` is one, with the
            sizes of the scores and any dtype of floats. By default new arrays, which take as much
            memory as the scores. There is none for an object that yields blocks.
        link, temperature: as for `kofn.soft_assignment`. Computation is in NumPy's float64,
            which a link of your own has to take.
        hard: for each row, ones at its k entries that are largest less their columns' prices.
        rounds: stop after so many rounds of columns, then rows, and return (weights, distance), as
            `kofn.soft_assignment` does. Not with hard=True.
        progress: is called after each block, with a word for the pass over the scores, the number
            of entries that it has read, and the number of all, as far as it is known.

    Returns:
        `out`; of an object that yields blocks, an iterator over the weights of one block after
        another, of their kind and dtype. All are NaN where `kofn.soft_assignment` gives NaN. Of n
        columns, n² numbers are held, with `rounds` a few times n.

    Raises:
        TypeError, ValueError: as for `kofn.soft_assignment`; `out` does not fit to the scores, or
            the blocks are not the same ones in each pass.

    Example:
        >>> import numpy as np
        >>> from kofn import streaming
        >>> blocks = [np.array([[3.0, 1.0, 0.0], [2.5, 2.0, 0.0]]), np.array([[2.0, 0.5, 1.0]])]
        >>> first, second = streaming.soft_assignment(blocks, 1)
        >>> first.round(3), second.round(3)
        (array([[0.45 , 0.293, 0.257],
               [0.293, 0.484, 0.224]]), array([[0.257, 0.224, 0.519]]))
    """
    if others:
        raise unknown_keyword(soft_assignment, others)
    is_hard = check_flag("hard", hard)
    if rounds is not None:
        check_integer("rounds", rounds, "None, or an integer ≥ 1", 1)
        if is_hard:
            raise ValueError(f"hard must be False with rounds; got rounds={rounds!r}")
    arrays, form = _arrays(scores)
    if form == "blocks" and out is not None:
        raise TypeError(f"out must be None for scores that are no array or list; got {shown(out)}")
    matrix = Matrix(arrays, check_progress(progress))
    answer = None if form == "blocks" else _room(scores, out)
    solved = _solved(matrix, k, capacity, link, temperature, rounds)
    weigh = solved.hard_weights if is_hard and isinstance(solved, Solved) else solved.weights
    distance = math.nan if rounds is None else _distance(solved)
    lost = rounds is not None and math.isnan(distance)

    def weights(part: Part) -> np.ndarray:
        weights = weigh(part)[0]
        return np.full_like(weights, math.nan) if lost else weights

    if form == "blocks":
        answer = _in_turn(solved.of, weights)
    else:
        _write(solved.of, weights, each_of(answer))
    return answer if rounds is None else (answer, distance)


def soft_assignment_prices(
    scores: Rows,
    k: float | Array,
    capacity: float | Array | None = None,
    *,
    link: LinkName | Link = "logistic",
    temperature: float = 1.0,
    rounds: int | None = None,
    progress: Progress | None = None,
    **others: Never,
) -> tuple[np.ndarray, np.ndarray]:
    """Return α and β of `kofn.soft_assignment_prices` of a matrix whose rows are read by blocks.

    Args:
        scores, k, capacity, link, temperature, rounds, progress: as for `soft_assignment`.

    Returns:
        α, of m numbers, and β, of n, in NumPy's float64: the weights are
        F((scores − α − β)/temperature). With `rounds`, those after so many rounds.

    Raises:
        TypeError, ValueError: as for `soft_assignment`.

    Example:
        >>> import numpy as np
        >>> from kofn import soft_topk, streaming
        >>> blocks = [np.array([[3.0, 1.0, 0.0], [2.5, 2.0, 0.0]]), np.array([[2.0, 0.5, 1.0]])]
        >>> rows, columns = streaming.soft_assignment_prices(blocks, 1)
        >>> columns.round(3)
        array([ 1.152, -0.165, -0.986])
        >>> soft_topk(np.array([1.0, 2.0, 0.0]) - columns, 1).round(3)  # of a new row
        array([0.12 , 0.581, 0.299])
    """
    if others:
        raise unknown_keyword(soft_assignment_prices, others)
    if rounds is not None:
        check_integer("rounds", rounds, "None, or an integer ≥ 1", 1)
    matrix = Matrix(_arrays(scores)[0], check_progress(progress))
    solved = _solved(matrix, k, capacity, link, temperature, rounds)
    rows = [np.empty(0), *solved.of.parts("prices of rows", lambda part: solved.of_rows(part)[0])]
    return np.concatenate(rows), solved.of_columns()[0]


def _arrays(scores: Any) -> tuple[Any, str]:
    """Return the arrays of a matrix, and whether they are one, a list, or blocks in each pass."""
    refuse("streaming.*")
    if framework(scores) is not None:
        return [scores], "array"
    if isinstance(scores, (list, tuple)):
        return list(scores), "list"
    if isinstance(scores, Iterable) and not isinstance(scores, (Iterator, str, bytes)):
        return scores, "blocks"
    once = ", not an iterator, which ends with the first pass" * isinstance(scores, Iterator)
    raise TypeError(
        "scores must be an array, a list of arrays, or an object that yields arrays each time it "
        f"is iterated over{once}; got {shown(scores)}"
    )


def _solved(
    matrix: Matrix, k: Any, capacity: Any, link: Any, temperature: Any, rounds: int | None
) -> Solved | Rounds:
    chosen = table.resolve(link)
    if framework(chosen.alpha) is not None:
        raise TypeError(f"link must have one alpha, a number; got {chosen!r}")
    of = Assignment(matrix, k, capacity, check_temperature(temperature))
    return Solved(of, chosen) if rounds is None else Rounds(of, chosen, rounds)


def _room(scores: Any, out: Any) -> Any:
    """Return `out`, made if necessary, of the shapes of the scores."""
    out = room_for(scores, out, whole=False)
    for each, given in zip(each_of(out), each_of(scores), strict=True):
        if tuple(each.shape) != tuple(given.shape):
            raise ValueError(
                f"out must have the shape of the scores, {tuple(given.shape)}; got "
                f"{tuple(each.shape)}"
            )
    return out


Weigh = Callable[[Part], np.ndarray]


def _distance(solved: Any) -> float:
    """Return how far columns are from their capacity; NaN if the matrix has no answer."""
    sums = solved.of.parts("distance", lambda part: np.sum(solved.weights(part), axis=-2))
    missing = np.abs(sum(sums, start=np.zeros_like(solved.of.c)) - solved.of.c)
    return float(np.max(missing, initial=0.0))


def _write(of: Assignment, weights: Weigh, targets: list[Any]) -> None:
    """Write the weights of all rows."""
    passed = of.by_arrays("weights", weights)
    for target, (_, rows) in zip(targets, passed, strict=True):
        start, pages = 0, pages_of(target)
        for some in rows:
            stop = start + len(some)
            target[start:stop] = torch_or_numpy(some, target)
            if pages is not None:
                pages.release(start * of.matrix.n, stop * of.matrix.n)
            start = stop


def _in_turn(of: Assignment, weights: Weigh) -> Iterator[Any]:
    """Yield the weights of one block after another."""
    for array, rows in of.by_arrays("weights", weights):
        whole = np.concatenate([np.empty((0, of.matrix.n)), *rows])
        if is_torch(array):
            yield torch_or_numpy(whole, array).to(array)
        else:
            yield whole.astype(np.asarray(array[:0]).dtype)


def torch_or_numpy(rows: np.ndarray, like: Any) -> Any:
    """Return rows as an array of the framework of another."""
    if not is_torch(like):
        return rows
    import torch

    return torch.from_numpy(rows)
