"""Rows such as users have, which no normal sample is like, and the laws that their weights obey.

Spreads from 1e-30 to 1e30, mixtures, neighbouring floats, additive masks and outliers, entries
beyond 10⁴ temperatures of the threshold, a k of whole numbers, of fractions, near 0 and near n.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from kofn import Link, links, soft_topk, soft_topk_threshold
from kofn.links import table
from oracles import rows as oracles_rows
from support import GRADIENT_HARD, TOTAL, WEIGHTS, Framework

DTYPES = ("float32", "float64", "bfloat16", "float16")
UNITS = {"float16": (-3, 3)}  # powers of ten of a row's scale; else −30 to 30
OUTLIERS = (-1e9, -1e9 - 64, 1e9, -1e15, 1e15, -1e30, 1e30, -1e4, 1e5)


class UserRows(NamedTuple):
    """Scores (count, n), which `dtype` holds exactly, and k and the temperature of each row."""

    x: np.ndarray
    k: np.ndarray
    temperature: np.ndarray
    dtype: str

    def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
        return UserRows(self.x[index], self.k[index], self.temperature[index], self.dtype)

    def __len__(self) -> int:
        return len(self.x)


def _numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def least_in_play(dtype: str) -> float:
    """Half of the dtype's least number, at and below which a score counts as deleted."""
    return float(ml_dtypes.finfo(_numpy_dtype(dtype)).min) / 2


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float64).astype(_numpy_dtype(dtype)).astype(np.float64)


def _bases(rng: np.random.Generator, shape: tuple[int, int], eps: float) -> np.ndarray:
    """One of seven kinds of rows, of size 1 or so."""
    count, n = shape
    normal, level = rng.standard_normal(shape), rng.integers(-1, 2, shape)
    apart = rng.standard_normal((count, 4))
    of_four = np.take_along_axis(apart, rng.integers(0, 4, shape), -1)
    few_ulps = of_four * (1 + eps * rng.integers(-2, 3, shape))
    one, two = 10.0 ** rng.uniform(-7, 0, (2, count, 1))
    kinds = [
        normal,
        one * normal + level,  # a mixture
        few_ulps,
        np.broadcast_to(apart[:, :1], shape) * (1 + eps * two * rng.integers(0, 2, shape)),
        rng.integers(-3, 4, shape),
        -np.broadcast_to(np.arange(n), shape) + one * normal,
        np.sign(normal) * 10.0 ** rng.uniform(-8, 0, shape),
    ]
    return np.choose(rng.integers(0, len(kinds), (count, 1)), kinds)


def _with_outliers(
    rng: np.random.Generator, x: np.ndarray, temperature: np.ndarray, dtype: str
) -> np.ndarray:
    """Half of the rows with a few entries far from the others, mostly alike, as masks are."""
    count = len(x)
    info = ml_dtypes.finfo(_numpy_dtype(dtype))
    least = least_in_play(dtype)
    ends = (least * (1 - float(info.eps)), least, float(info.min), float(info.max), -np.inf)
    tail = rng.choice([-1, 1], count) * temperature * 10.0 ** rng.uniform(2, 12, count)
    pool = np.concatenate([np.tile((*OUTLIERS, *ends), (count, 1)), tail[:, None]], -1)
    infinite = rng.random(count) < 0.02
    pool[infinite, 0] = np.inf
    two = np.take_along_axis(pool, rng.integers(0, pool.shape[1], (count, 2)), -1)
    far = np.take_along_axis(two, (rng.random(x.shape) < 0.3).astype(int), -1)
    share = rng.choice([0.0, 0.15, 0.4, 0.9], (count, 1), p=[0.5, 0.2, 0.2, 0.1])
    return np.where(rng.random(x.shape) < share, far, x)


def _k(rng: np.random.Generator, x: np.ndarray, ordinary: np.ndarray) -> np.ndarray:
    """Whole and broken numbers, near 0 and n, and next to how many entries are not outliers."""
    count, n = x.shape
    small = 10.0 ** rng.uniform(-8, -0.5, count)
    border = ordinary + rng.choice([-1.0, 0.0, 0.5, 1.0], count)
    whole = rng.integers(1, max(n, 2), count)
    kinds = [whole, rng.uniform(0, n, count), small, n - small, border, whole + small, whole - 0.5]
    return np.clip(np.choose(rng.integers(0, len(kinds), count), kinds), 0, n)


def draw(rng: np.random.Generator, count: int, n: int, dtype: str) -> UserRows:
    """`count` rows of `n` scores."""
    eps = float(ml_dtypes.finfo(_numpy_dtype(dtype)).eps)
    low, high = UNITS.get(dtype, (-30, 30))
    unit = 10.0 ** np.where(rng.random(count) < 0.5, 0.0, rng.uniform(low, high, count))
    unit = np.where(rng.random(count) < 0.05, 1e-24, unit) if low < -24 else unit
    relative = [1.0, 2.0, 0.1, 10.0 ** rng.uniform(-6, 2, count)]
    temperature = unit * np.choose(rng.integers(0, 4, count), relative)
    base = _bases(rng, (count, n), eps)
    x = base * unit[:, None]
    shift = np.where(rng.random(count) < 0.1, 10.0 ** rng.uniform(0, 6, count), 0.0)
    x = x + (shift * unit)[:, None]
    x_out = rounded(_with_outliers(rng, x, temperature, dtype), dtype)
    ordinary = np.sum(x_out == rounded(x, dtype), axis=-1)
    wide = "float64" if dtype == "float64" else "float32"
    k, temperature = _k(rng, x, ordinary), np.clip(temperature, 1e-30, 1e30)
    return UserRows(x_out, rounded(k, wide), rounded(temperature, wide), dtype)


def tails_of(link: str | float) -> oracles_rows.Tails:
    return oracles_rows.TAILS[link] if isinstance(link, str) else oracles_rows.entmax_tails(link)


def affordable(rows: UserRows, link: str | float) -> UserRows:
    """Some of the rows, where the oracle of a link takes long."""
    return rows[: max(2, 90 // rows.x.shape[-1])] if link in oracles_rows.SLOW else rows


def oracle(rows: UserRows, tails: oracles_rows.Tails) -> np.ndarray:
    deleted = rows.x <= least_in_play(rows.dtype)
    return oracles_rows.weights(np.where(deleted, -np.inf, rows.x), rows.k, rows.temperature, tails)


def _power(link: str | float) -> float:
    """By entmax a weight is a power of the distance from the end, and rounds as often."""
    return max(1.0, 1 / (2 * (link - 1))) if isinstance(link, float) and link >= 1.1 else 1.0


def _roundings(k: np.ndarray, n: int, link: str | float) -> np.ndarray:
    """How many roundings of its own that of z costs a weight: f(z)·z/F(z), a quarter of it.

    Far out in a tail that is the weight's exponent, and twice as much by the normal link.
    """
    exponent = -np.log(np.maximum(k, 1e-300) / n) * (2 if link == "normal" else 1) / 4
    return np.maximum(_power(link), exponent)


def _unreachable(rows: UserRows, link: str | float) -> np.ndarray:
    """Weights that no θ of the type gives: a power of the distance from the end of a support."""
    alpha = {"linear": 2.0, "entmax": 1.5}.get(link, link)
    if not isinstance(alpha, float) or alpha < 1.1:
        return np.zeros(len(rows))
    tiny = float(np.finfo("float64" if rows.dtype == "float64" else "float32").tiny)
    least = np.maximum(32 * tiny / rows.temperature, 32 * tiny)
    return ((alpha - 1) * least) ** (1 / (alpha - 1))


def _accuracy(rows: UserRows, expected: np.ndarray, link: str | float) -> np.ndarray:
    """What a weight may be off by; for α > 2 θ's rounding times a slope that is p^(2 − α)."""
    accuracy, least = WEIGHTS[rows.dtype] * _power(link), _unreachable(rows, link)[:, None]
    steep = isinstance(link, float) and link > 2
    slope = np.maximum(expected, 0.01) ** (2 - link) / 10 if steep else 0.0
    return np.maximum(accuracy, np.minimum(accuracy * slope, 1e-3)) + least


def violations(
    rows: UserRows, p: np.ndarray, expected: np.ndarray, link: str | float
) -> dict[str, np.ndarray]:
    """By law, how much more than it may a row is off: above 1 is wrong."""
    deleted = rows.x <= least_in_play(rows.dtype)
    ulp = float(ml_dtypes.finfo(_numpy_dtype(rows.dtype)).eps)
    floor = p.shape[-1] * 2.0**-25 if rows.dtype == "float16" else 0.0  # subnormal weights
    k = np.minimum(rows.k, np.sum(~deleted, axis=-1))
    order = np.argsort(np.where(deleted, -np.inf, rows.x), axis=-1, kind="stable")
    x, ordered = (np.take_along_axis(a, order, -1) for a in (rows.x, p))
    fall = np.diff(ordered, axis=-1)
    alike = x[:, 1:] == x[:, :-1]
    least = _unreachable(rows, link)
    may = TOTAL[rows.dtype] * k * _roundings(k, p.shape[-1], link) + p.shape[-1] * least
    with np.errstate(all="ignore"):
        total = np.abs(p.sum(-1) - k) / (may + floor + 1e-300)
    worst = {
        "range": np.max(np.where((p >= 0) & (p <= 1), 0.0, 2.0), axis=-1),
        "deleted": np.max(np.where(deleted & (p != 0), 2.0, 0.0), axis=-1),
        "sum": total,
        "order": np.max(-fall / (2 * ulp), axis=-1, initial=0.0),
        "ties": np.max(np.where(alike, np.abs(fall) / (2 * ulp), 0.0), axis=-1, initial=0.0),
        "oracle": np.max(np.abs(p - expected) / _accuracy(rows, expected, link), axis=-1),
    }
    return {law: np.where(np.isnan(value), np.inf, value) for law, value in worst.items()}


def wrong(rows: UserRows, p: np.ndarray, expected: np.ndarray, link: str | float) -> np.ndarray:
    """The rows that break a law, worst first."""
    worst = np.max(list(violations(rows, p, expected, link).values()), axis=0)
    order = np.argsort(-worst, kind="stable")
    return order[worst[order] > 1]


def described(
    rows: UserRows, p: np.ndarray, expected: np.ndarray, link: str | float, index: int
) -> str:
    """A row as code that shows it again, and what is wrong with it."""
    one = slice(index, index + 1)
    broken = {
        law: f"{value[0]:.3g} × what it may"
        for law, value in violations(rows[one], p[one], expected[one], link).items()
        if value[0] > 1
    }
    return (
        f"x = {rows.x[index].tolist()}\nk = {float(rows.k[index])!r}\n"
        f"temperature = {float(rows.temperature[index])!r}\ndtype = {rows.dtype!r}\n"
        f"p = {p[index].tolist()}, sum {p[index].sum()!r}\n"
        f"oracle = {expected[index].tolist()}\nbroken: {broken}"
    )


def hold(rows: UserRows, link: str | float, backend: str, learned: bool = False) -> None:
    """Every law for the weights of `rows` by `link`; the worst row where one is broken.

    `link` is a name, or entmax's α; `learned` gives α as an array with one number per row.
    """
    rows = affordable(rows, link)
    p, expected = BACKENDS[backend](rows, link, learned), oracle(rows, tails_of(link))
    bad = wrong(rows, p, expected, link)
    if len(bad):
        raise AssertionError(
            f"{len(bad)} of {len(rows)} rows of {link} are wrong by {backend}, the worst:\n"
            + described(rows, p, expected, link, int(bad[0]))
        )


# --- gradients ---


def _beside(x: np.ndarray, k: np.ndarray, t: np.ndarray, link: Link) -> tuple[np.ndarray, ...]:
    """(whether a weight is at a kink, where a slope is anyone's; how far θ is from a score)."""
    theta, p = (f(x, k, link=link, temperature=t) for f in (soft_topk_threshold, soft_topk))
    with np.errstate(all="ignore"):
        z = (x - theta[:, None]) / t[:, None]
        away = np.min(np.where(np.isnan(z), np.inf, np.abs(z)), axis=-1)
        # Beside a θ of 1e30 z does not tell, but a choice of whole entries is at a link's ends.
        hard = np.all(np.minimum(p, 1 - p) < 1e-6, axis=-1)
        at_kink = hard & (link.has_infinite_tails(x) is False)
        for kink, _ in table.kinks_of(link):
            at_kink |= np.any(np.abs(z - kink - link.inner.edge) < 1e-5 * (1 + abs(kink)), axis=-1)
    return at_kink, away


def hold_gradients(
    rows: UserRows,
    v: np.ndarray,
    ours: list[np.ndarray],
    exactly: Callable[..., list[np.ndarray]],
    link: str | Link,
) -> None:
    """Cotangents of scores, k and T for v by float32 rows are what `exactly` has for float64.

    In units of T, as x/T is what F sees. Not where θ is 10⁴ T from any score, where no slope is
    left and what k moves hangs on the last digit of θ, nor at a kink.
    """
    single = [a.astype(np.float32) for a in (rows.x, rows.k, rows.temperature, v)]
    single[0] = np.where(single[0] <= least_in_play("float32"), -np.inf, single[0])
    x, k, t, v = given = [a.astype(np.float64) for a in single]
    exact = exactly(*given)
    at_kink, away = _beside(x, k, t, table.resolve(link))

    def held(bad: np.ndarray, got: np.ndarray, wanted: np.ndarray) -> None:
        bad &= ~at_kink
        assert not bad.any(), [a[bad][:3].tolist() for a in (*given, got, wanted)]

    in_x, right = ours[0] * t[:, None], exact[0] * t[:, None]
    bound = GRADIENT_HARD["float32"] * np.linalg.norm(right, axis=-1) + 1e-6
    held(~(np.linalg.norm(in_x - right, axis=-1) <= bound), in_x, right)
    off = np.abs(ours[1] - exact[1])
    held((away < 1e4) & ~(off <= 1e-4 * np.abs(v).max(-1)), ours[1], exact[1])
    in_t, right = ours[2] * t, exact[2] * t
    held(~(np.abs(in_t - right) <= 1e-4 * (np.abs(right) + 0.1)), in_t, right)


# --- the backends from rows to weights ---


def _weights(framework: Framework, rows: UserRows, link: str | float, learned: bool) -> np.ndarray:
    wide = "float64" if rows.dtype == "float64" else "float32"
    x = framework.array(rows.x, rows.dtype)
    k, t = (framework.array(a, wide) for a in (rows.k, rows.temperature))
    which: str | Link = link if isinstance(link, str) else links.entmax(link)
    if learned:
        which = links.entmax(framework.array(np.full(len(rows), link), wide))
    return framework.numpy(soft_topk(x, k, link=which, temperature=t))


def _by(framework: str, kernels: str) -> Callable[..., np.ndarray]:
    def backend(rows: UserRows, link: str | float, learned: bool) -> np.ndarray:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KOFN_KERNELS", kernels)
            return _weights(Framework(framework), rows, link, learned)

    return backend


@functools.cache
def _compiled(link: str | Link) -> Callable:
    def weights(x: torch.Tensor, k: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return soft_topk(x, k, link=link, temperature=t)

    return torch.compile(weights, fullgraph=True, dynamic=False)


def _by_compile(rows: UserRows, link: str | float, learned: bool) -> np.ndarray:
    framework = Framework("torch")
    wide = "float64" if rows.dtype == "float64" else "float32"
    x = framework.array(rows.x, rows.dtype)
    k, t = (framework.array(a, wide) for a in (rows.k, rows.temperature))
    which = link if isinstance(link, str) else links.entmax(link)
    return framework.numpy(_compiled(which)(x, k, t))


BACKENDS: dict[str, Callable[..., np.ndarray]] = {
    "numpy": _by("numpy", "on"),
    "torch": _by("torch", "on"),
    "reference": _by("numpy", "reference"),
    "torch reference": _by("torch", "reference"),
    "jax": _by("jax", "on"),
    "compile": _by_compile,
}
