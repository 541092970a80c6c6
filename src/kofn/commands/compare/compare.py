"""Measurements of `kofn compare`: each map on the same rows, at one and at many temperatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kofn import metrics
from kofn.commands.compare.maps import Map, serving

MOST_ROWS, MOST = 64, 1 << 15  # most rows and scores measured; larger inputs are subsampled evenly
CURVE_POINTS = 33
AT_ONCE = 1 << 20  # most numbers in one array of rows at several temperatures
MEASURES = ("temperature", "support", "gap")


@dataclass
class Measured:
    """Measurements of one map: weights of the first row, and means over the rows."""

    name: str
    map: Map
    temperature: float
    weights: np.ndarray
    means: dict[str, float]
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    """(temperature, effective support, slope) from cold to warm."""


@dataclass(frozen=True)
class Comparison:
    """Measurements of every map that accepts this k, on the same scores."""

    scores: np.ndarray  # the rows that were measured
    rows: int  # number of rows in the input
    k: float
    measure: str  # one of MEASURES
    value: float
    maps: list[Measured]


@np.errstate(over="ignore")  # scores next to the greatest float; what overflows tends to a limit
def compare(
    scores: np.ndarray,
    k: float,
    measure: str,
    value: float,
    tell: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Apply every map that accepts this k to rows of scores of shape (rows, n).

    Args:
        scores: finite or infinite, no NaN.
        k: number of entries to choose.
        measure: "temperature": the same temperature for all maps; "support" or "gap": for each map
            the temperature at which the mean of that metric over the rows is `value`.
        value: the value of the temperature or of the metric.
        tell: called with a map's name before each of its two measurements.

    Returns:
        The metrics of each map there, and its smoothness and sparsity at other temperatures.
    """
    rows, n = scores.shape
    looked = min(rows, MOST_ROWS, max(1, MOST // n))
    scores = scores[np.linspace(0, rows - 1, looked).astype(int)]
    measured = []
    for each in serving(k):
        tell(each.named(k))
        given = measure == "temperature"
        temperature = value if given else each.temperature(scores, k, measure, value)
        weights = each.weights(scores, k, temperature)
        means = _means(each, scores, weights, k, temperature)
        measured.append(Measured(each.named(k), each, temperature, weights[0], means))
    for one in measured:
        tell(f"{one.name}, over T")
        one.curve = _curve(one.map, scores, k)
    return Comparison(scores, rows, k, measure, value, measured)


def _means(
    each: Map, scores: np.ndarray, weights: np.ndarray, k: float, temperature: float
) -> dict[str, float]:
    per_row: dict[str, Any] = {
        "sum": weights.sum(-1),
        "support": metrics.support_size(weights),
        "effective support": metrics.effective_support(weights),
        "gap": metrics.hard_gap(weights, k),
        "entropy": metrics.entropy(weights),
        "slope": each.slope(scores, k, temperature),
    }
    return {name: float(np.mean(values)) for name, values in per_row.items()}


def _curve(each: Map, scores: np.ndarray, k: float) -> list[tuple[float, float, float]]:
    """Measure a map from temperatures with a hard choice to those with nearly equal weights."""
    n = scores.shape[-1]
    cold = each.temperature(scores, k, "support", k + 1e-3 * (n - k))
    warm = each.temperature(scores, k, "support", k + 0.9 * (n - k))
    if each.link:
        # Several temperatures at once, as rows of one array.
        ts = np.geomspace(cold, warm, CURVE_POINTS)
        parts = np.array_split(ts, min(len(ts), 1 + len(ts) * scores.size // AT_ONCE))
        return [point for part in parts for point in _points(each, scores, k, part)]
    points = []
    for t in np.geomspace(cold, warm, CURVE_POINTS // 2).tolist():
        spread = metrics.effective_support(each.weights(scores, k, t)).mean()
        points.append((t, float(spread), float(each.slope(scores, k, t).mean())))
    return points


def _points(
    each: Map, scores: np.ndarray, k: float, ts: np.ndarray
) -> list[tuple[float, float, float]]:
    many, per_row = np.broadcast_to(scores, (len(ts), *scores.shape)), ts[:, None]
    spread = metrics.effective_support(each.weights(many, k, per_row)).mean(-1)
    slope = each.slope(many, k, per_row).mean(-1)
    return list(zip(ts.tolist(), spread.tolist(), slope.tolist(), strict=True))
