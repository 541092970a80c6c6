"""Rows of several lengths, usual and hard: as segments of one axis, and padded to one length."""

import math

import numpy as np

import support
from kofn import links
from kofn.arrays.autodiff import stop_gradient
from kofn.formulas import answers
from kofn.links import table
from kofn.rows.given import Given
from kofn.solver import price, threshold
from kofn.solver.reductions import DENSE
from support import CAUCHY, Segments

INF, NAN = math.inf, math.nan

# (scores, k, T) of each segment.
TAME = [
    ([0.3, -0.2, 1.1, 0.6, -1.4], 2.0, 0.7),
    ([0.5, 0.1, -0.9], 1.3, 0.5),
    ([2.0, -1.0, 0.4, 0.8, -0.3, 0.9, 0.2], 3.0, 1.2),
]
ODD = [
    ([], 0.0, 1.0),
    ([1.0, -INF, 0.5, -INF, 0.2], 1.5, 0.8),
    ([-INF, -INF], 0.0, 1.0),
    ([0.2, INF, -0.3, 0.9, INF], 3.5, 0.6),
    ([INF, 0.4, INF, INF], 1.5, 1.0),
    ([INF, NAN, 0.3], 2.0, 1.0),
    ([0.1, NAN, 0.3, 0.2], 2.0, 1.0),
    ([0.1, 0.7, 0.3], NAN, 1.0),
    ([0.4, 0.2, -0.5], 0.0, 0.3),
    ([0.4, 0.2, -0.5], 3.0, 0.3),
    ([0.7], 0.25, 2.0),
    ([], 0.0, 0.5),
]
WIDE = [
    ([1e30, -1e30, 0.3, 0.2, 0.1, 0.0], 2.5, 0.5),
    ([-1e9, -1e9, 0.1, 0.2, 0.3], 2.0, 0.3),
]
# A link whose support ends below leaves θ open here, to rounding; one whose support ends above has
# the least of the chosen scores at its end, where its slope jumps.
HARD = [
    ([10, 9.5, 9.2, -9, -10, -9.5, -9.9], 3.0, 0.1),
    ([10.0, 9.0, -9.0, -10.0], 2.0, 0.1),
    ([1e8, 1e6, 3e2, 1.0, 1e-10, 0.0], 2.0, 1.0),
]
ALPHA = (1.5, 1.3, 1.7, 1.0, 1.05, 2.0, 3.0)
LINKS = [*support.LINKS, "alpha", "cauchy"]


class Ragged:
    """The same rows twice: as segments in random order, and padded to one length."""

    def __init__(self, rows, framework, dtype="float64", link="logistic"):
        self.framework, self.dtype, self.link = framework, dtype, link
        lengths = [len(scores) for scores, _, _ in rows]
        order = np.random.default_rng(1).permutation(sum(lengths))
        places = [(row, i) for row, length in enumerate(lengths) for i in range(length)]
        self.places = tuple(np.array(places)[order].T)
        self.shape = (len(rows), max(lengths))
        scores = np.concatenate([np.asarray(scores, float) for scores, _, _ in rows])[order]
        self.numbers = [scores, *(np.array(n) for n in list(zip(*rows, strict=True))[1:])]
        ids = framework.array(self.places[0])
        self.over = Segments(
            ids.long() if framework.name == "torch" else ids.astype(int), len(rows)
        )
        if link == "alpha":
            self.numbers.append(np.resize(ALPHA, len(rows)))

    def padded(self, values, fill=0.0):
        dense = np.full(self.shape, fill)
        dense[self.places] = values
        return dense

    def arguments(self, dense):
        x, *per_row = self.numbers
        numbers = [self.padded(x, -INF) if dense else x, *per_row]
        return tuple(self.framework.array(n, self.dtype) for n in numbers)

    def entries(self, values, dense, fill=0.0):
        return self.framework.array(self.padded(values, fill) if dense else values, self.dtype)

    def outer(self, alpha):
        if self.link == "cauchy":
            return CAUCHY[self.framework.name]
        return links.entmax(alpha[0]) if alpha else table.TABLE[self.link]

    def given(self, x, k, t, *alpha):
        link = self.outer(alpha).inner
        return Given(x, k, t, link.with_alpha(*alpha) if alpha else link)

    def in_order(self, answer, dense):
        """An answer or a gradient as numbers, per segment or per entry in the segments' order."""
        found = self.framework.numpy(answer)
        return found[self.places] if dense and found.shape == self.shape else found


def rows_for(link, *others):
    return TAME + ODD + WIDE + ([] if link in (*support.BOUNDED, "alpha", *others) else HARD)


BEYOND = 1e40
"""A second derivative of θ in a row whose ΣF′ is 1e-30 hangs on the order in which it is summed."""


def check(got, wanted, tolerance):
    assert got.shape == wanted.shape
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    same |= (np.abs(wanted) > BEYOND) & (np.abs(got) > BEYOND)
    with np.errstate(invalid="ignore"):
        wrong = ~same & ~(np.abs(got - wanted) <= tolerance * (1 + np.abs(wanted)))
    assert not np.any(wrong), (np.flatnonzero(wrong), got[wrong], wanted[wrong])


WITHOUT_THETA = answers.softmax, answers.log_softmax


def at_theta(rows, *own, answer, over=DENSE):
    """A function of settled rows at the θ that the solver finds."""
    if answer in WITHOUT_THETA:
        return answer(rows, *own, over=over)
    link = rows.link.map_alpha(stop_gradient)
    x, k, t = map(stop_gradient, (rows.scores, rows.k, rows.temperature))
    if rows.costs is None:
        theta = threshold.solve(x, k, t, link, over)
    else:
        theta = price.solve(x, stop_gradient(rows.costs), k, t, link, over)
    return answer(rows, *own, over=over, theta=theta)
