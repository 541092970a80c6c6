"""Σ f(p) over weights, by formulas that are declared once: by compiled code and by array code."""

import re

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import metrics
from kofn.kernels.cpu import every
from kofn.kernels.cpu.compiler import machine, now
from kofn.kernels.cpu.passes import sums
from kofn.kernels.cpu.rows import layout, passes
from kofn.kernels.cpu.rows.passes import Sum
from kofn.links.vocabulary import exp, log_of_any, where
from kofn.metrics import entropies
from kofn.metrics import sums as of_metrics
from kofn.operations.sums import by_arrays

INF, NAN = float("inf"), float("nan")
EVERY = {f"{each.name}-{at}": (each, at) for each in passes.SUMS for at in range(3)}
ALPHAS = 0.5, 1.001, 2.0


def numbers(of, at):
    return entropies._numbers(ALPHAS[at]) if of.numbers else ()


def entropy_of(p):
    return (-p * log_of_any(where(p == 0, 1.0, p)),)


def slope_of(p):
    return (where(p == 0, 0.0, -log_of_any(where(p == 0, 1.0, p)) - 1.0),)


def perplexity_of(entropy):
    return exp(entropy)


PERPLEXITY = Sum(__name__, "PERPLEXITY", entropy_of, slope_of, outer=perplexity_of)
passes.SUMS.remove(PERPLEXITY)  # those of kofn alone are compiled with it


def weights(rng, dtype, n=40):
    p = rng.dirichlet(np.full(n, 0.1), 6)
    p[1] *= 3
    p[2, 3], p[3, 4], p[4, 5:] = NAN, -0.25, 0
    tiny = np.finfo(dtype).tiny
    p[0, :5] = 0, tiny / 4, tiny, 1e-30, 1
    return p.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EVERY)
def test_both_codes_give_the_sums_and_their_ways_back(name, dtype, rng):
    of, _ = EVERY[name]
    p, given = weights(rng, dtype), numbers(*EVERY[name])
    wide, near = p.astype(float), 20 * np.finfo(dtype).eps
    with np.errstate(all="ignore"):
        right = by_arrays(wide, of, given)
        size = by_arrays(np.abs(wide), of, given)
        slopes = of.slopes(wide, *given)
    got = sums.terms(of, p, given)
    assert got.dtype == dtype
    assert np.isnan(got).any()
    np.testing.assert_allclose(got, right, rtol=near, atol=near * float(np.nanmax(np.abs(size))))
    g = rng.standard_normal(right.shape).astype(dtype)
    got = sums.slopes(of, p, g, given)
    several = zip(g if of.count > 1 else [g], slopes, strict=True)
    right = sum(each[:, None] * slope for each, slope in several)
    some = np.isfinite(right)
    assert np.array_equal(np.isnan(right), ~(p >= 0))
    assert np.array_equal(np.isnan(got), np.isnan(right))
    assert (np.abs(got - right)[some] <= 4 * near * (1 + np.abs(right[some]))).all()


@pytest.mark.parametrize("name", EVERY)
def test_a_declared_slope_is_the_derivative_of_its_term(name):
    of, given = EVERY[name][0], numbers(*EVERY[name])
    p = torch.tensor([0.0, 1e-12, 0.01, 0.3, 0.999, 1.0, 2.5], dtype=torch.float64).requires_grad_()
    for term, slope in zip(of.terms(p, *given), of.slopes(p, *given), strict=True):
        (right,) = torch.autograd.grad(term.sum(), p, retain_graph=True)
        torch.testing.assert_close(slope, right, rtol=1e-12, atol=1e-13)
    assert all(not term[0] for term in of.terms(p, *given))


def test_parts_of_long_rows_are_added_and_threads_change_nothing(rng, monkeypatch):
    p = rng.random((3, 70_001)).astype(np.float32)
    got = sums.terms(entropies.ENTROPY, p, ())
    monkeypatch.setenv("KOFN_NUM_THREADS", "1")
    assert np.array_equal(got, sums.terms(entropies.ENTROPY, p, ()))
    right = by_arrays(p.astype(float), entropies.ENTROPY, ())
    np.testing.assert_allclose(got, right, rtol=1e-6)
    g = np.float32([1, 2, 3])
    slopes = sums.slopes(entropies.ENTROPY, p, g, ())
    right = g[:, None] * (-np.log(p.astype(float)) - 1)
    np.testing.assert_allclose(slopes, right, rtol=1e-6, atol=1e-6)


def test_a_new_sum_is_one_declaration(rng):
    p = weights(rng, "float64", 3000)[:2]
    right = np.exp(metrics.entropy(p))
    np.testing.assert_allclose(of_metrics.answer(PERPLEXITY, p), right, rtol=1e-13)
    for few in (p[:, :6].copy(), p):
        leaf = torch.tensor(few, requires_grad=True)
        of_metrics.answer(PERPLEXITY, leaf).sum().backward()
        exact = np.exp(metrics.entropy(few))[:, None] * slope_of(few)[0]
        np.testing.assert_allclose(leaf.grad, exact, rtol=1e-12, atol=1e-12)


def test_derivatives_of_tensors_by_compiled_code(rng, monkeypatch):
    monkeypatch.setattr(of_metrics, "LEAST", 0)
    monkeypatch.setattr(of_metrics, "SHORTEST", 0)
    p = torch.tensor(rng.dirichlet(np.ones(5), 3), requires_grad=True)
    for function in (
        metrics.entropy,
        lambda p: metrics.tsallis_entropy(p, 1.5),
        lambda p: metrics.renyi_entropy(p.mT, 0.5, dim=0),
    ):
        assert gradcheck(function, p)
        assert gradgradcheck(function, p)


@pytest.mark.parametrize("which", sums.PASSES)
def test_its_loop_is_vectors_of_the_precision_it_is_given(which):
    code = entropies.RENYI.code(which, 4)
    text = str(machine.optimised(now.translated(code), code.symbol))
    assert " x float>" in text
    assert not re.search(" x double>", text)


def test_sums_are_compiled_with_all_others():
    codes = {code.symbol for code in every.functions(layout.SERVED, (4, 8))}
    assert {entropies.ENTROPY.code("terms", 4).symbol, sums.WORK.symbol} <= codes
