"""soft_topk_threshold from a kernel: the value and gradients of array code."""

import jax
import numpy as np
import pytest
import torch

from kofn import links, segment_soft_topk_threshold, soft_topk, soft_topk_threshold
from kofn.formulas import pullbacks
from kofn.operations import by_kernel, topk
from support import INNER, LINKS

pytestmark = pytest.mark.usefixtures("kernels_on")


def cotangent(theta):
    return torch.linspace(-1, 2, theta.numel(), dtype=theta.dtype)


def gradients(x, k, link, t):
    leaves = [leaf.clone().requires_grad_() for leaf in (x, k, t)]
    theta = soft_topk_threshold(leaves[0], leaves[1], link=link, temperature=leaves[2])
    return theta.detach(), *torch.autograd.grad(theta, leaves, cotangent(theta))


def by_array_code(x, k, link, t):
    """The same by torch.func, which differentiates array code at the θ of the kernel."""

    def function(x, k, t):
        return soft_topk_threshold(x, k, link=link, temperature=t)

    theta, pull = torch.func.vjp(function, x, k, t)
    return theta, *pull(cotangent(theta))


@pytest.mark.parametrize("size", [1, 1e4, 1e9])
@pytest.mark.parametrize("link", [*LINKS, links.entmax(1.3)], ids=str)
def test_rows_of_every_sort(link, size):
    x = torch.tensor(np.random.default_rng(0).integers(-3, 4, (6, 9)) * float(size))
    x[0, 1], x[1, 2], x[3, 0] = torch.inf, -torch.inf, torch.nan
    x[2], x[4, :5] = -torch.inf, torch.inf
    t = torch.tensor([0.1, 1, 2, 0.5, 1, 3.0], dtype=x.dtype)
    for k in (0.0, 1.0, 2.5, 8.0, 9.0):
        k = torch.full((6,), k, dtype=x.dtype)
        for got, wanted in zip(gradients(x, k, link, t), by_array_code(x, k, link, t), strict=True):
            # dθ/dT is a mean of z = (x − θ)/T, so that a rounding of its weights costs eps·max |z|
            rounding = max(1e-11, float(np.finfo(float).eps) * size)
            assert torch.allclose(got, wanted, rtol=2e-8, atol=rounding, equal_nan=True)


def test_eager_code_solves_once(monkeypatch):
    calls, solved = [], topk.threshold_of
    monkeypatch.setattr(topk, "threshold_of", lambda *given: calls.append(given) or solved(*given))
    monkeypatch.setattr(topk.THETA, "reference", None)
    for x in (torch.randn(2, 5), torch.randn(2, 5, requires_grad=True), np.ones((2, 5))):
        assert soft_topk_threshold(x, 2).shape == (2,)
    assert len(calls) == 3


@pytest.mark.parametrize("link", ["logistic", "laplace"])
@pytest.mark.parametrize("t", [1e-31, 1e-19])
def test_next_to_temperature_zero_plain_code_moves_it_with_its_two_neighbours(link, t):
    """Derivatives of z overflow there, so z is a constant; θ still is halfway between two scores.

    Its derivative was 0, and nothing said so.
    """
    x = torch.tensor([1.5, 0.3, -0.2, -1.0])
    slopes = torch.func.grad(lambda x: soft_topk_threshold(x, 2, link=link, temperature=t))(x)
    assert slopes.tolist() == [0.0, 0.5, 0.5, 0.0]


JUMPS = [*(link for link in LINKS if INNER[link].order == 1), links.entmax(2)]


@pytest.mark.parametrize("kernels", ["on", "reference"])
@pytest.mark.parametrize("row", [[0.1, 1.1], [1.0, 1, 0, 0, -3]], ids=str)
@pytest.mark.parametrize("link", JUMPS, ids=str)
def test_no_score_at_an_end_of_the_support_moves_a_threshold(link, row, kernels, monkeypatch):
    """Rounding of θ decided which did: 1 for the 1 of the row 0, 1, where either side has ½.

    Next to these rows there is no score inside of the support, and nothing moves but with T.
    """
    monkeypatch.setenv("KOFN_KERNELS", kernels)
    ids = np.zeros(len(row), int)
    given = np.array(row), np.array(2.0 if len(row) > 3 else 1.0), np.array(1.0)

    def plain(x, k, t):
        return soft_topk_threshold(x, k, link=link, temperature=t)

    def of_segments(x, k, t):
        options = {"segment_ids": ids, "num_segments": 1, "link": link, "temperature": t}
        return segment_soft_topk_threshold(x, k, **options)[0]

    def recorded(x, k, t):
        leaves = [torch.tensor(each, requires_grad=True) for each in (x, k, t)]
        return torch.autograd.grad(plain(*leaves), leaves)

    def of_func(x, k, t):
        return torch.func.grad(plain, (0, 1, 2))(*map(torch.tensor, (x, k, t)))

    for way in (
        recorded,
        of_func,
        jax.grad(plain, (0, 1, 2)),
        jax.grad(of_segments, (0, 1, 2)),
    ):
        in_x, in_k, in_t = way(*given)
        assert np.allclose(in_x, 0, atol=1e-12)
        assert abs(in_k) < 1e-12
        assert float(in_t) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("link", [*LINKS, links.entmax(1.3)], ids=str)
def test_gradients_of_usual_rows_need_no_array_code(link, monkeypatch):
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, 1], x[1, 2], x[2, 0] = -torch.inf, torch.inf, torch.finfo(x.dtype).min
    k, t = torch.tensor([2.0, 7.5, 30]).double(), torch.tensor([0.5, 1, 3]).double()
    wanted = by_array_code(x, k, link, t)
    monkeypatch.setattr(pullbacks, "of_thresholds", None)
    for got, want in zip(gradients(x, k, link, t), wanted, strict=True):
        assert torch.allclose(got, want, rtol=1e-9, atol=1e-12)


def test_rows_are_taken_some_at_a_time(monkeypatch):
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    x[3] = -torch.inf  # this row needs the array code, and the others of its block
    arguments = x, torch.full((7,), 2.0), "normal", torch.full((7,), 0.5)
    wanted = by_array_code(*arguments)
    monkeypatch.setattr(topk, "AT_ONCE", 10)
    for got, want in zip(gradients(*arguments), wanted, strict=True):
        assert torch.allclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_not_cast_outside(dtype, monkeypatch):
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 1], x[1, 2] = -torch.inf, torch.finfo(dtype).min
    k, t = torch.tensor([2.0, 7.5, 30]), torch.tensor([0.5, 2e4, 3])
    excluded = x == torch.finfo(dtype).min
    wanted = gradients(x.float().masked_fill(excluded, -torch.inf), k, "logistic", t)
    seen = []
    solved = topk.threshold_of
    monkeypatch.setattr(
        topk,
        "threshold_of",
        lambda backend, rows: seen.append(rows.scores.dtype) or solved(backend, rows),
    )
    got = gradients(x, k, "logistic", t)
    assert seen == [dtype]
    assert [each.dtype for each in got] == [torch.float32, dtype, torch.float32, torch.float32]
    for some, want in zip(got, wanted, strict=True):
        assert torch.equal(some, want.to(some.dtype))
    twice = torch.func.hessian(lambda x: soft_topk_threshold(x, 2.0))(x[2])
    assert twice.dtype == dtype
    leaf = x[2:].clone().requires_grad_()
    theta = soft_topk_threshold(leaf, 2.0)
    (slope,) = torch.autograd.grad(theta.sum(), leaf, create_graph=True)
    assert theta.dtype == torch.float32
    assert torch.autograd.grad(slope.float().square().sum(), leaf)[0].isfinite().all()


def test_a_row_is_solved_once_when_the_kernel_gives_up(monkeypatch):
    """And not by the kernel again: for a threshold alone, too."""
    calls, solve = [], by_kernel.solve
    monkeypatch.setattr(by_kernel, "solve", lambda *a: calls.append(1) or solve(*a))
    x = np.array([3.0, 1e30, 2.0, 1.5])
    p, theta = soft_topk(x, 2.5), soft_topk_threshold(x, 2.5)
    assert len(calls) == 2
    assert 1 / (1 + np.exp(theta - x[[0, 2, 3]])) == pytest.approx(p[[0, 2, 3]], abs=1e-12)
