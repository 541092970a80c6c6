"""Rows that are no axis of an array: every answer and derivative, segment by segment."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradgradcheck

from kofn import links
from kofn.formulas import answers, implicit
from kofn.rows.compiled import evaluate
from kofn.rows.given import with_costs
from kofn.rows.settled import rows_of
from ragged_rows import HARD, INF, LINKS, TAME, Ragged, at_theta, check, rows_for
from support import Framework, Segments, with_gradients


def answer_of(ragged, function, dense, *arguments):
    given, extra = ragged.given(*arguments), ()
    if function is answers.loss:
        scores = ragged.numbers[0]
        target = np.where(scores == INF, 1.0, np.where(scores == -INF, 0.0, 0.3))
        extra = (ragged.entries(target, dense),)
    over = {} if dense else {"over": ragged.over}
    return evaluate(at_theta, rows_of(given, **over), *extra, answer=function, **over)


ANSWERS = [
    answers.weights,
    implicit.theta,
    answers.value,
    answers.log_weights,
    answers.loss,
    answers.slopes,
    answers.softmax,
    answers.log_softmax,
]
WITHOUT_INTEGRAL = {"cauchy": [f for f in ANSWERS if f not in (answers.value, answers.loss)]}


def cases(names):
    """Every answer with every link; the ordinary run has some links for each framework."""
    found = []
    for name, ordinary in names.items():
        for link in LINKS:
            marks = [] if link in ordinary else [pytest.mark.full]
            for function in WITHOUT_INTEGRAL.get(link, ANSWERS):
                label = "-".join((function.__name__, *name.split(), link))
                found.append(pytest.param(function, *name.split(), link, marks=marks, id=label))
    return found


PLAIN = {"numpy float64": ("normal", "alpha"), "torch float32": ("exponential", "alpha")}
PLAIN |= {"torch float64": ("logistic",), "jax float64": ()}


@pytest.mark.parametrize(("function", "name", "dtype", "link"), cases(PLAIN))
def test_answers_are_those_of_dense_rows(function, name, dtype, link):
    ragged = Ragged(rows_for(link), Framework(name), dtype, link)
    with np.errstate(all="ignore"):
        got, wanted = (
            ragged.in_order(answer_of(ragged, function, dense, *ragged.arguments(dense)), dense)
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
    ("function", "name", "link"), cases({"torch": ("logistic", "exponential", "alpha"), "jax": ()})
)
def test_derivatives_are_those_of_dense_rows(function, name, link):
    ragged = Ragged(rows_for(link, "exponential"), Framework(name), link=link)
    ways = [derivatives(ragged, function, dense) for dense in (False, True)]
    for got, wanted in zip(*ways, strict=True):
        check(ragged.in_order(got, False), ragged.in_order(wanted, True), 1e-9)


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
        pytest.param(answers.loss, "logistic", marks=pytest.mark.full),
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


def value_and_cotangents(framework, function, given, v):
    """On JAX by one program for both."""
    v = framework.array(v)
    if framework.name == "torch":
        value = framework.numpy(function(*given))
        return value, *framework.vjp(function, tuple(given), v)

    @jax.jit
    def both(v, *given):
        value, back = jax.vjp(function, *given)
        return value, *back(v)

    return [framework.numpy(each) for each in both(v, *given)]


@with_gradients
@pytest.mark.parametrize("function", [answers.weights, implicit.theta, answers.value])
def test_rows_with_costs_are_those_of_dense_rows(name, function, rng):
    framework = Framework(name)
    scores, costs = rng.standard_normal((2, 5)), rng.uniform(0.2, 3, (2, 5))
    whole = scores, costs, np.array([1.7, 3.1]), np.array([0.7, 1.2])
    order = rng.permutation(10)
    ids = framework.array(np.repeat([0, 1], 5)[order])
    over = Segments(ids.long() if name == "torch" else ids.astype(int), 2)
    flat = [a.reshape(-1)[order] if a.ndim == 2 else a for a in whole]

    def segments(*arrays):
        rows = rows_of(with_costs(arrays, links.logistic), over)
        return evaluate(at_theta, rows, answer=function, over=over)

    def dense(*arrays):
        return at_theta(rows_of(with_costs(arrays, links.logistic)), answer=function)

    rows, parts = ([framework.array(a) for a in arrays] for arrays in (whole, flat))
    per_entry = function is answers.weights
    v = rng.standard_normal((2, 5) if per_entry else 2)
    along = (lambda a: a.reshape(-1)[order]) if per_entry else (lambda a: a)
    wanted, *other = value_and_cotangents(framework, dense, rows, v)
    found, *one = value_and_cotangents(framework, segments, parts, along(v))
    assert np.allclose(found, along(wanted), atol=1e-14)
    for a, b in zip(one, other, strict=True):
        assert np.allclose(a, b.reshape(-1)[order] if b.ndim == 2 else b, atol=1e-13)
