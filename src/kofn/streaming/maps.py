"""The top-k maps for one row that is read block by block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Never

import numpy as np

from kofn.arrays.checks import check_count, check_k, check_scores, check_temperature, shown
from kofn.arrays.kinds import FLOATS, Array, dtype_name, framework, is_jax
from kofn.arrays.names import unknown_keyword
from kofn.arrays.typing import LinkName
from kofn.arrays.without_onnx import refuse
from kofn.links import Link, table
from kofn.streaming.answers import indices_of, write_choice, write_weights
from kofn.streaming.blocks import Blocks, OfArray
from kofn.streaming.choice import cut_of
from kofn.streaming.threshold import Solved, solved

Scores = Array | Sequence[Array]
Progress = Callable[[str, int, int], None]
WHOLE = "bool", "int", "uint"
"""The beginnings of the names of dtypes that hold a whole choice."""


def soft_topk_threshold(
    scores: Scores,
    k: float,
    *,
    link: LinkName | Link = "logistic",
    temperature: float = 1.0,
    progress: Progress | None = None,
    **others: Never,
) -> float:
    """Return θ of `kofn.soft_topk` of one row, which is read block by block.

    Args:
        scores: an array of floats, such as a numpy.memmap, or a list of arrays or tensors. All
            their entries are one row. −inf and +inf count as in `kofn.soft_topk`, which takes a
            mask; here, set masked scores to −inf.
        k: how many entries to choose, a number in [0, n]; may be fractional.
        link, temperature: as for `kofn.soft_topk`, but the same for all entries.
        progress: is called after each block, with a word for the pass over the scores, the number
            of entries that it has read, and n.

    Returns:
        θ as `kofn.soft_topk_threshold` gives it, as a float. +inf where k = 0, −inf where every
        entry is chosen; NaN if a score is NaN, or if all are −inf.

    Raises:
        TypeError, ValueError: an argument has the wrong type or dtype, or a number is out of range.

    Example:
        >>> import numpy as np
        >>> from kofn import streaming
        >>> parts = [np.array([[2.0, 1.0]]), np.array([0.5, -1.0])]
        >>> round(streaming.soft_topk_threshold(parts, 2), 3)
        0.656
    """
    if others:
        raise unknown_keyword(soft_topk_threshold, others)
    return _solved(_blocks(scores, progress), k, link, temperature).theta


def soft_topk(
    scores: Scores,
    k: float,
    *,
    out: Any = None,
    link: LinkName | Link = "logistic",
    temperature: float = 1.0,
    progress: Progress | None = None,
    **others: Never,
) -> Any:
    """Return the weights of `kofn.soft_topk` of one row, which is read and written by blocks.

    Args:
        scores, k, link, temperature, progress: as for `soft_topk_threshold`.
        out: where to write the weights: an array, or a list of them if `scores` is one, with the
            sizes of the scores and any dtype of floats. For example, a file made by
            `numpy.lib.format.open_memmap(name, "w+", scores.dtype, scores.shape)`. By default new
            arrays, which take as much memory as the scores.

    Returns:
        `out`.

    Raises:
        TypeError, ValueError: as for `soft_topk_threshold`; `out` does not fit to the scores.

    Example:
        >>> import numpy as np
        >>> from kofn import streaming
        >>> streaming.soft_topk(np.array([2.0, 1.0, 0.5, -1.0]), 2).round(3)
        array([0.793, 0.585, 0.461, 0.16 ])
    """
    if others:
        raise unknown_keyword(soft_topk, others)
    blocks = _blocks(scores, progress)
    answer, into = _room(scores, out, blocks, whole=False)
    solved = _solved(blocks, k, link, temperature)

    deque(write_weights(solved, blocks, into), maxlen=0)
    return answer


def hard_topk(
    scores: Scores, k: float, *, out: Any = None, progress: Progress | None = None, **others: Never
) -> Any:
    """Return ones at the k largest scores of one row and zeros elsewhere, by blocks.

    Args:
        scores, progress: as for `soft_topk_threshold`.
        k: the same; the fractional part is the weight of the next largest score.
        out: as for `soft_topk`; for a whole k, also of integers or bool.

    Returns:
        `out`; equal scores are chosen from the first on.

    Raises:
        TypeError, ValueError: as for `soft_topk`; a score is NaN, and `out` has no NaN.

    Example:
        >>> import numpy as np
        >>> from kofn import streaming
        >>> streaming.hard_topk([np.array([2.0, 1.0]), np.array([1.0, 3.0])], 3)
        [array([1., 1.]), array([0., 1.])]
    """
    if others:
        raise unknown_keyword(hard_topk, others)
    blocks = _blocks(scores, progress)
    number = check_k(k, blocks.size)
    answer, into = _room(scores, out, blocks, whole=number == int(number))
    cut = cut_of(blocks, number)
    if cut.sketch.bad and any(dtype_name(each) not in FLOATS for each in each_of(answer)):
        raise ValueError(
            f"out must have dtype {', '.join(FLOATS)}, because scores are NaN, and so are their "
            f"weights; {cut.sketch.bad} of {blocks.size} are"
        )
    deque(write_choice(cut, cut.left, blocks, into), maxlen=0)
    return answer


def topk_indices(
    scores: Scores, k: int, *, progress: Progress | None = None, **others: Never
) -> np.ndarray:
    """Return the indices of the k largest scores of one row, in increasing order, by blocks.

    Args:
        scores, progress: as for `soft_topk_threshold`.
        k: an integer in [0, n].

    Returns:
        An array of int64: places in the row, as in `scores.ravel()`, or in all arrays
        of a list one after another. Equal scores are chosen from the first on. −inf is never
        chosen, so there may be fewer than k.

    Raises:
        TypeError, ValueError: as for `soft_topk_threshold`; a score is NaN.

    Example:
        >>> import numpy as np
        >>> from kofn import streaming
        >>> streaming.topk_indices(np.array([2.0, 1.0, 3.0, 3.0]), 2)
        array([2, 3])
    """
    if others:
        raise unknown_keyword(topk_indices, others)
    blocks = _blocks(scores, progress)
    cut = cut_of(blocks, float(check_count(k, blocks.size)))
    if cut.sketch.bad:
        raise ValueError(f"scores must not be NaN; {cut.sketch.bad} of {blocks.size} are")
    return indices_of(cut, blocks)


def _solved(blocks: Blocks, k: Any, link: LinkName | Link, temperature: Any) -> Solved:
    chosen = table.resolve(link).inner
    if framework(chosen.alpha) is not None:
        raise TypeError(f"link must have one alpha, a number; got {chosen!r}")
    return solved(blocks, check_k(k, blocks.size), check_temperature(temperature), chosen)


def _blocks(scores: Scores, progress: Progress | None) -> Blocks:
    progress = check_progress(progress)
    return Blocks([OfArray(_checked(each, "scores")) for each in each_of(scores)], progress)


def check_progress(progress: Progress | None) -> Progress | None:
    """Return `progress`, a function or None."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function; got {shown(progress)}")
    return progress


def each_of(arrays: Any) -> list[Any]:
    """Return the arrays of a list, or a list of one."""
    refuse("streaming.*")
    return list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]


def _checked(array: Any, name: str) -> Any:
    check_scores(array, name)
    return np.asarray(array) if is_jax(array) else array


def _room(scores: Scores, out: Any, blocks: Blocks, *, whole: bool) -> tuple[Any, list[OfArray]]:
    """Return `out`, made if it is None, and the targets that its arrays are written through.

    With `whole`, integers are written.
    """
    out = room_for(scores, out, whole=whole)
    pairs = zip(each_of(out), blocks.sources, strict=True)
    return out, [_target(each, source.size) for each, source in pairs]


def room_for(scores: Scores, out: Any, *, whole: bool) -> Any:
    """Return `out`, made if it is None; with `whole`, its arrays may have a dtype of integers."""
    several, given = isinstance(scores, (list, tuple)), each_of(scores)
    if out is None:
        made = [_like(each) for each in given]
        out = made if several else made[0]
    targets = each_of(out)
    if len(targets) != len(given) or isinstance(out, (list, tuple)) != several:
        raise TypeError("out must be an array, or a list of as many arrays as there are in scores")
    for each in targets:
        if framework(each) not in ("torch", "numpy"):
            raise TypeError(f"out must be a numpy.ndarray or a torch.Tensor; got {shown(each)}")
        if isinstance(each, np.ndarray) and not each.flags.writeable:
            raise ValueError("out must be writable; open the file with mode 'r+' or 'w+'")
        if dtype_name(each) in FLOATS:
            continue
        if not (whole and dtype_name(each).startswith(WHOLE)):
            why = ", an integer or bool" if whole else ", because weights are fractions"
            raise TypeError(f"out must have dtype {', '.join(FLOATS)}{why}; got {each.dtype}")
    return out


def _like(array: Any) -> Any:
    if framework(array) == "torch":
        return array.new_empty(array.shape)
    return np.empty(array.shape, np.asarray(array[:0]).dtype if is_jax(array) else array.dtype)


def _target(out: Any, size: int) -> OfArray:
    target = OfArray(out)
    if target.size != size:
        raise ValueError(f"out must have as many entries as the scores, {size}; got {target.size}")
    return target
