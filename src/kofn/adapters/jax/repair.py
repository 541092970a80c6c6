"""Rows that a kernel gave up on in a program of JAX: the reference solves them in memory.

As for other arrays it does so in NumPy, under Python's lock, and in float64 where it searches. Few
rows come here.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from kofn.formulas import answers, knapsack_choice, pullbacks
from kofn.kernels.contract import link_of
from kofn.links.alpha import in_alpha
from kofn.links.link import Link
from kofn.operations.by_kernel import finish, part
from kofn.rows.given import Given, with_costs
from kofn.rows.settled import rows_of


class _Job:
    """The arrays of a call that a kernel has left in part, by their names in xla/targets.py."""

    def __init__(
        self, kind: int, alpha: float, size: int, shape: tuple[int, int], places: dict[str, int]
    ) -> None:
        self.link, self._size, self._shape = link_of(kind, alpha), size, shape
        self.places, self.alpha = places, np.full(shape[0], alpha)
        if places["alpha"]:
            (self.alpha,) = self.each("alpha")
            self.link = self.link.with_alpha(self.alpha)

    def link_at(self, where: np.ndarray) -> Link:
        """Return the link of some rows."""
        return self.link.map_alpha(lambda alpha: alpha[where])

    def entries(self, name: str) -> np.ndarray:
        return self._array(name, self._shape)

    def each(self, *names: str) -> list[np.ndarray]:
        """Return arrays with a number per row."""
        return [self._array(name, self._shape[:1]) for name in names]

    def _array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        number = ctypes.c_float if self._size == 4 else ctypes.c_double
        there = (number * prod(shape)).from_address(self.places[name])
        return np.ctypeslib.as_array(there).reshape(shape)


def weights(*job_words: Any) -> None:
    """Solve the rows without θ; write their weights where weights are wanted."""
    job = _Job(*job_words)
    hi, lo, k, temperature = job.each("hi", "lo", "k", "t")
    theta = np.stack([hi, lo])
    where, rows, solution = finish(Given(job.entries("x"), k, temperature, job.link), theta)
    hi[:], lo[:] = theta
    if job.places["out"]:
        with np.errstate(all="ignore"):
            job.entries("out")[where] = answers.weights(rows, theta=solution)


def losses(*job_words: Any) -> None:
    """Write the Fenchel–Young losses that are NaN: of soft targets, for some links."""
    job = _Job(*job_words)
    loss, hi, lo, k, temperature = job.each("one", "hi", "lo", "k", "t")
    where = np.isnan(loss)
    given = Given(job.entries("x")[where], k[where], temperature[where], job.link_at(where))
    with np.errstate(all="ignore"):
        target, solution = job.entries("g")[where], (hi[where], lo[where])
        loss[where] = answers.loss(rows_of(given), target, theta=solution)


def log_cotangents(*job_words: Any) -> None:
    """Write the cotangents of scores and T, and of α if those are wanted, in rows whose slopes have
    all underflowed.
    """
    job = _Job(*job_words)
    lost, in_t, *numbers = job.each("one", "two", "hi", "lo", "k", "t")
    where = np.isnan(lost)
    hi, lo, k, t = (np.asarray(a[where], np.float64) for a in numbers)
    x, g = (np.asarray(job.entries(name)[where], np.float64) for name in ("x", "g"))
    with np.errstate(all="ignore"):
        x = np.where(x <= np.finfo(lost.dtype).min / 2, -np.inf, x)
        rows = rows_of(Given(x, k, t, job.link_at(where)))
        pulled = pullbacks.log_cotangents(g, rows, (hi, lo))
        job.entries("out")[where], in_t[where] = pulled
        if job.places["three"]:
            link = rows.link.map_alpha(lambda alpha: alpha[..., None])
            p = link.cdf(((x - hi[..., None]) - lo[..., None]) / t[..., None])
            job.each("three")[0][where] = in_alpha(p, g, job.alpha[where])
    lost[where] = 0.0


def knapsacks(*job_words: Any) -> None:
    """Solve the rows with costs that have no θ, and write it; their weights, too, if wanted.

    Their second number is then infinite, by which the way back knows them.
    """
    job = _Job(*job_words)
    hi, lo = job.each("hi", "lo")
    theta = np.stack([hi, lo])
    where, rows, solution = finish(_with_costs(job), theta)
    hi[:], lo[:] = theta
    if job.places["out"]:
        lo[where] = np.inf
        with np.errstate(all="ignore"):
            job.entries("out")[where] = answers.weights(rows, theta=solution)


def filled(*job_words: Any) -> None:
    """Choose among the entries of rows with costs, where the first answer is NaN."""
    job = _Job(*job_words)
    where = np.isnan(job.each("hi")[0])
    with np.errstate(all="ignore"):
        job.entries("out")[where] = knapsack_choice.fill(part(_with_costs(job), where))


def _with_costs(job: _Job) -> Given:
    return with_costs((job.entries("x"), job.entries("costs"), *job.each("k", "t")), job.link)


FINISH = weights, losses, log_cotangents, knapsacks, filled
"""The functions that kernels/cpu/xla calls, in the order that `available` takes."""
