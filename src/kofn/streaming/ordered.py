"""The k largest numbers of one row that is read block by block, and its quantiles."""

from __future__ import annotations

import math
from typing import Any, Never

import numpy as np

from kofn import links
from kofn.arrays.checks import check_count, check_flag, check_scores
from kofn.arrays.kinds import dtype_name, framework, is_jax
from kofn.arrays.names import unknown_keyword
from kofn.maps.ordered.interpolated import Interpolation, quantiles, wanted
from kofn.maps.ordered.largest import TopK
from kofn.rows.given import HALF_TYPES
from kofn.streaming.blocks import Blocks
from kofn.streaming.maps import Progress, Scores, check_progress, each_of
from kofn.streaming.statistics import Ranks, WithoutNaN, blocks_of, largest_of
from kofn.streaming.threshold import solved

__all__ = ["quantile", "topk"]


def topk(
    x: Scores, k: int, *, largest: bool = True, progress: Progress | None = None, **others: Never
) -> TopK[np.ndarray]:
    """Return (values, indices) of the k largest numbers of one row, exactly, in one pass.

    Args:
        x: an array of floats or integers, such as a numpy.memmap, or a list of arrays or tensors
            of one dtype. All their entries are one row. There is no mask: −inf is a number.
        k: an integer in [0, n]. The k numbers are held in memory, some of them twice.
        largest: False for the k smallest.
        progress: as for `kofn.streaming.soft_topk_threshold`.

    Returns:
        The named tuple of `kofn.topk`, of NumPy arrays: values in the dtype of `x`, half types in
        float32, the largest first, and int64 places in the row. Ties go to the lowest place, and
        NaN counts as the largest number.

    Raises:
        TypeError, ValueError: an argument has the wrong type or dtype, or is out of range.

    Example:
        >>> import numpy as np
        >>> from kofn import streaming
        >>> best = streaming.topk([np.array([2.0, 1.0]), np.array([5.0, 2.0])], 3)
        >>> best.values, best.indices
        (array([5., 2., 2.]), array([2, 0, 3]))
    """
    if others:
        raise unknown_keyword(topk, others)
    arrays = _checked(x, integers=True)
    if len({dtype_name(each) for each in arrays}) > 1:
        dtypes = ", ".join(sorted({dtype_name(each) for each in arrays}))
        raise TypeError(f"x must have arrays of one dtype; got {dtypes}")
    blocks = blocks_of(arrays, check_progress(progress))
    k, end = check_count(k, blocks.size), check_flag("largest", largest)
    dtype = _dtype_of(arrays[0]) if arrays else np.dtype(np.float64)
    return TopK(*largest_of(blocks, k, end, dtype))


def quantile(
    x: Scores,
    q: Any,
    *,
    interpolation: Interpolation = "linear",
    temperature: float = 0.0,
    ignore_nan: bool = False,
    progress: Progress | None = None,
    **others: Never,
) -> Any:
    """Return the q-quantile of one row of any length, exactly: nothing is sorted as a whole.

    The numbers next to the place (n − 1)·q are found by histograms of their bits: float32 takes
    two passes, float64 two to four, and more than eight q may take more.

    Args:
        x: an array of floats, such as a numpy.memmap, or a list of arrays or tensors. All their
            entries are one row.
        q: a number in [0, 1], or a NumPy array of them, without or with one dimension.
        interpolation, temperature, ignore_nan: as for `kofn.quantile`; a temperature above 0 takes
            the passes of `kofn.streaming.soft_topk_threshold` for each of the two numbers.
        progress: as for `kofn.streaming.soft_topk_threshold`.

    Returns:
        A float, or a float64 array of the shape of q. NaN for a row without numbers, or with a NaN.

    Raises:
        TypeError, ValueError: as for `kofn.quantile`.

    Example:
        >>> import numpy as np
        >>> from kofn import streaming
        >>> streaming.quantile([np.array([3.0, 1.0]), np.array([2.0, 10.0])], 0.5)
        2.5
    """
    if others:
        raise unknown_keyword(quantile, others)
    arrays = _checked(x, integers=False)
    ignore_nan = check_flag("ignore_nan", ignore_nan)
    of = wanted(q, interpolation, temperature, np.zeros(1))
    blocks = blocks_of(arrays, check_progress(progress))
    row = _Row(arrays, Ranks(blocks), progress)
    if not row.numbers.size or (row.numbers.missing and not ignore_nan):
        answers = np.full(of.q.shape, math.nan)
    else:
        with np.errstate(all="ignore"):
            answers = np.asarray(quantiles(row, of))
    return answers.reshape(np.shape(q)) if framework(q) else float(answers[0])


class _Row:
    """The numbers of one row, which knows their order; see `maps.ordered.interpolated.Rows`."""

    def __init__(self, arrays: list[Any], numbers: Ranks, progress: Progress | None) -> None:
        self.arrays, self.numbers, self.progress = arrays, numbers, progress

    @property
    def counts(self) -> np.ndarray:
        return np.array([float(self.numbers.size)])

    def ranked(self, ranks: Any) -> np.ndarray:
        return self.numbers.of(ranks.astype(np.int64))

    def threshold(self, k: Any, temperature: float) -> np.ndarray:
        blocks = Blocks([WithoutNaN(each) for each in self.arrays], self.progress)
        return np.asarray(solved(blocks, float(k), temperature, links.logistic.inner).theta)

    def greatest(self) -> np.ndarray:
        return self.ranked(np.array([self.numbers.size - 1.0]))[0]

    def total(self, rows: Any) -> np.ndarray:
        raise NotImplementedError("rows with a NaN have no quantile here, and nothing a gradient")


def _checked(x: Scores, integers: bool) -> list[Any]:
    arrays = each_of(x)
    for each in arrays:
        check_scores(each, "x", integers)
    return [np.asarray(each) if is_jax(each) else each for each in arrays]


def _dtype_of(x: Any) -> np.dtype[Any]:
    """Return the type that numbers of x are computed and answered in: a half type as float32."""
    name = dtype_name(x)
    return np.dtype("float32" if name in HALF_TYPES else name)
