"""Rows that are no axis of an array: every answer and derivative, segment by segment."""

import math
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradgradcheck

from kofn import links
from kofn.adapters import route
from kofn.formulas import answers, implicit
from kofn.inputs.given import Given
from kofn.inputs.settled import rows_of
from kofn.links import table
from kofn.operations.logarithms import LOG_WEIGHTS
from kofn.operations.losses import GAP
from kofn.threshold.compiled import evaluate
from support import CAUCHY, Framework, Segments

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
LINKS = ["logistic", "laplace", "normal", "exponential", "linear", "entmax", "alpha", "cauchy"]


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

    def told(self, answer, dense):
        """An answer or a gradient as numbers, per segment or per entry in the segments' order."""
        found = self.framework.numpy(answer)
        return found[self.places] if dense and found.shape == self.shape else found


def answer_of(ragged, function, dense, *arguments):
    given, extra = ragged.given(*arguments), ()
    if function is answers.gap:
        scores = ragged.numbers[0]
        target = np.where(scores == INF, 1.0, np.where(scores == -INF, 0.0, 0.3))
        extra = (ragged.entries(target, dense),)
    over = {} if dense else {"over": ragged.over}
    return evaluate(function, rows_of(given, **over), *extra, **over)


ANSWERS = [
    answers.weights,
    implicit.theta,
    answers.value,
    answers.log_weights,
    answers.gap,
    answers.slopes,
    answers.softmax,
    answers.log_softmax,
]
WITHOUT_INTEGRAL = {"cauchy": [f for f in ANSWERS if f not in (answers.value, answers.gap)]}


def cases(names):
    """Every answer with every link; the ordinary run has some links for each framework."""
    found = []
    for name, ordinary in names.items():
        for link in LINKS:
            marks = [] if link in ordinary else [pytest.mark.full]
            for function in WITHOUT_INTEGRAL.get(link, ANSWERS):
                told = "-".join((function.__name__, *name.split(), link))
                found.append(pytest.param(function, *name.split(), link, marks=marks, id=told))
    return found


def rows_for(link, *others):
    return TAME + ODD + WIDE + ([] if link in ("linear", "entmax", "alpha", *others) else HARD)


BEYOND = 1e40
"""A second derivative of θ in a row whose ΣF′ is 1e-30 hangs on the order in which it is summed."""


def check(got, wanted, tolerance):
    assert got.shape == wanted.shape
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    same |= (np.abs(wanted) > BEYOND) & (np.abs(got) > BEYOND)
    with np.errstate(invalid="ignore"):
        wrong = ~same & ~(np.abs(got - wanted) <= tolerance * (1 + np.abs(wanted)))
    assert not np.any(wrong), (np.flatnonzero(wrong), got[wrong], wanted[wrong])


PLAIN = {"numpy float64": ("normal", "alpha"), "torch float32": ("exponential", "alpha")}
PLAIN |= {"torch float64": ("logistic",), "jax float64": ()}


@pytest.mark.parametrize(("function", "name", "dtype", "link"), cases(PLAIN))
def test_answers_are_those_of_dense_rows(function, name, dtype, link):
    ragged = Ragged(rows_for(link), Framework(name), dtype, link)
    with np.errstate(all="ignore"):
        got, wanted = (
            ragged.told(answer_of(ragged, function, dense, *ragged.arguments(dense)), dense)
            for dense in (False, True)
        )
    check(got, wanted, 3e-6 if dtype == "float32" else 1e-12)


def derivatives(ragged, function, dense, order=2):
    """(answer, gradients of Σ v·answer, gradients of Σ u·those), per entry and per segment."""
    rng = np.random.default_rng(2)
    arguments = ragged.arguments(dense)
    sizes = [ragged.places[0].shape, *((ragged.shape[0],) for _ in arguments[1:])]
    u = [ragged.entries(rng.standard_normal(s), dense and i == 0) for i, s in enumerate(sizes)]
    of = partial(answer_of, ragged, function, dense)
    answer = of(*arguments)
    per_entry = answer.shape == arguments[0].shape
    v = rng.standard_normal(sizes[0] if per_entry else sizes[1])
    v = ragged.entries(v, dense and per_entry)
    if ragged.framework.name == "torch":
        leaves = [a.clone().requires_grad_() for a in arguments]
        settings = dict(allow_unused=True, materialize_grads=True)
        # The slope of the linear link is constant; autograd wants it to depend on something.
        whole = of(*leaves) + 0 * leaves[1].sum()
        first = torch.autograd.grad(whole, leaves, v, create_graph=True, **settings)
        total = sum((g * by).sum() for g, by in zip(first, u, strict=True)) + 0 * leaves[1].sum()
        return [answer, *first, *torch.autograd.grad(total, leaves, **settings)]

    def slopes(*arguments):
        return jax.vjp(of, *arguments)[1](v)

    first, pull = jax.vjp(jax.jit(slopes), *arguments)
    return [answer, *first, *pull(tuple(u))]


@pytest.mark.parametrize(
    ("function", "name", "link"), cases({"torch": ("logistic", "alpha"), "jax": ()})
)
def test_derivatives_are_those_of_dense_rows(function, name, link):
    ragged = Ragged(rows_for(link, "exponential"), Framework(name), link=link)
    ways = [derivatives(ragged, function, dense) for dense in (False, True)]
    for got, wanted in zip(*ways, strict=True):
        check(ragged.told(got, False), ragged.told(wanted, True), 1e-9)


@pytest.mark.parametrize("link", ["logistic", pytest.param("normal", marks=pytest.mark.full)])
@pytest.mark.parametrize("closed", [LOG_WEIGHTS, GAP], ids=["log_weights", "gap"])
def test_closed_forms_are_those_of_dense_rows(closed, link):
    """Eager torch with gradients in scores and temperature alone."""
    ragged = Ragged(rows_for(link), Framework("torch"), link=link)
    found = []
    for dense in (False, True):
        x, k, t = ragged.arguments(dense)
        leaves = [x.clone().requires_grad_(), t.clone().requires_grad_()]
        extra = [torch.full_like(x, 0.3)] if closed is GAP else []
        form = None if dense else SimpleNamespace(over=ragged.over)
        what = ragged.given(leaves[0], k, leaves[1])._replace(form=form)
        answer = route.by_array_code(closed, what, *extra)
        v = ragged.entries(np.cos(np.arange(len(ragged.places[0]))), dense)
        v = v if answer.shape == x.shape else torch.cos(torch.arange(len(k)).double())
        first = torch.autograd.grad(answer, leaves, v, create_graph=True)
        again = torch.autograd.grad(first[0].nan_to_num().pow(2).sum(), leaves)
        found.append([ragged.told(a, dense) for a in (answer, *first, *again)])
    for got, wanted in zip(*found, strict=True):
        check(got, wanted, 1e-9)


@pytest.mark.parametrize("link", ["logistic", "alpha"])
@pytest.mark.parametrize("function", ANSWERS[:5], ids=lambda function: function.__name__)
def test_second_derivatives_are_differences_of_the_first(function, link):
    ragged = Ragged(TAME, Framework("torch"), link=link)
    leaves = [a.requires_grad_() for a in ragged.arguments(False)]
    assert gradgradcheck(partial(answer_of, ragged, function, False), leaves, fast_mode=True)


@pytest.mark.parametrize(
    ("function", "link"),
    [
        pytest.param(answers.weights, "alpha", marks=pytest.mark.full),
        pytest.param(answers.weights, "logistic", marks=pytest.mark.full),
        pytest.param(answers.log_weights, "logistic", marks=pytest.mark.full),
        pytest.param(answers.value, "logistic", marks=pytest.mark.full),
        pytest.param(answers.gap, "logistic", marks=pytest.mark.full),
        pytest.param(answers.log_softmax, "logistic", marks=pytest.mark.full),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_jax_hessians_are_those_of_dense_rows(function, link):
    ragged = Ragged(TAME + HARD[:1] if link == "logistic" else TAME, Framework("jax"), link=link)
    found = []
    for dense in (False, True):

        def total(numbers, dense=dense):
            x, *per_row = numbers
            if dense:
                x = jnp.full(ragged.shape, -INF).at[ragged.places].set(x)
            answer = answer_of(ragged, function, dense, x, *per_row)
            answer = answer[ragged.places] if answer.shape == ragged.shape else answer
            return (answer * jnp.cos(jnp.arange(len(answer)))).sum()

        found.append(jax.tree.leaves(jax.jit(jax.hessian(total))(ragged.arguments(False))))
    for got, wanted in zip(*found, strict=True):
        check(np.asarray(got), np.asarray(wanted), 1e-9)
