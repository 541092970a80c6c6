"""Rows with costs by a GPU's kernels, against array code in float64."""

import math
from unittest import mock

import pytest
import torch

import kofn
import own_links
from kofn import kernels
from kofn import links as of_links
from kofn.kernels.gpu.knapsack import launch
from support import BOUNDED, GRADIENT, GRADIENT_HARD, LINKS, WEIGHTS

N = 8
EVERY = [*LINKS, of_links.entmax(2.0), of_links.entmax(1.3)]
FUNCTIONS = (kofn.soft_knapsack, kofn.soft_knapsack_threshold, kofn.soft_knapsack_value)


def rows():
    """(scores, costs, budgets): ordinary, tied, alike, next to the ends, masked, free, spread."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(10, N, generator=draw)
    c = 0.5 + torch.rand(10, N, generator=draw)
    budget = c.sum(-1) * torch.linspace(0.1, 0.9, 10)
    x[1], c[1] = (2 * x[1]).round(), 1.0
    budget[1] = 2.6
    x[2], c[2] = 0.5, 2.0
    budget[3] = 1e-4
    budget[4] = c[4].sum() * (1 - 1e-4)
    x[5, ::3], x[5, 1] = -math.inf, torch.finfo(torch.float32).min
    c[6, ::3], x[6, 0] = 0.0, -1.0
    c[7] = 10.0 ** torch.linspace(-6, 6, N)
    budget[7] = 3.0
    c[8] = torch.arange(1.0, N + 1)
    budget[8] = 6.0
    return x, c, budget


def odd_rows():
    """Endless scores, more of them than the budget buys, nothing and everything bought, NaN."""
    x, c, budget = rows()
    x[0, 2] = math.inf
    x[1, :4] = math.inf
    budget[2], budget[3] = 0.0, 1e9
    x[4, 1] = math.nan
    c[5, 2], c[6, 2] = math.nan, -1.0
    budget[7] = math.nan
    x[8] = -math.inf
    c[9] = 0.0
    return x, c, budget


def pulled(function, x, c, budget, t, link, **options):
    leaves = [each.clone().requires_grad_() for each in (x, c, budget, t)]
    out = function(*leaves[:3], temperature=leaves[3], link=link, **options)
    v = torch.linspace(-1, 2.1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return out.detach(), *torch.autograd.grad(out, leaves, v)


def wide(x, *others):
    """The same in float64, where a score out of play in float32 is one of −inf."""
    x = torch.where(x <= torch.finfo(x.dtype).min / 2, -math.inf, x)
    return [each.double() for each in (x, *others)]


def compared(found, wanted, slopes=GRADIENT["float32"], reach=1.0):
    """`reach` is how large |z| is: the slope in T adds up terms of that size, of both signs."""
    for name, one, other in zip(
        ("answer", "x", "costs", "budget", "t"), found, wanted, strict=True
    ):
        other = torch.where(other.abs() > 1e38, torch.inf * other.sign(), other)
        size = other.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if name != "answer" else 1.0
        bound = WEIGHTS["float32"] if name == "answer" else slopes
        torch.testing.assert_close(
            one.double(), other.double(), rtol=bound, equal_nan=True,
            atol=2e-6 * max(size, reach if name == "t" else 1.0),
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


def test_no_row_is_left_to_the_host():
    assert kernels.serving_of("knapsack", rows()[0], "torch") is not None


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("link", EVERY, ids=str)
def test_answers_and_gradients(link, function, reference):
    x, c, budget = rows()
    t = torch.linspace(0.5, 2.0, len(x))
    wanted = reference(pulled, function, *wide(x, c, budget, t), link)
    compared(pulled(function, x, c, budget, t, link), wanted)


OWN = [own_links.GumbelFarOut(), own_links.Student(), own_links.Again(), own_links.Square()]


OF_OWN = [
    pytest.param(link, function, id=f"{link.name}-{function.__name__}")
    for link in OWN
    for function in FUNCTIONS
    if function is not kofn.soft_knapsack_value or "integral" in link.inner.kinds[0].formulas
]


@pytest.mark.parametrize(("link", "function"), OF_OWN)
def test_links_of_a_users_own(link, function, reference):
    x, c, budget = rows()
    t = torch.linspace(0.5, 2.0, len(x))
    wanted = reference(pulled, function, *wide(x, c, budget, t), link)
    with mock.patch.object(launch, "launch", wraps=launch.launch) as launched:
        compared(pulled(function, x, c, budget, t, link), wanted)
    assert launched.call_count > 1


@pytest.mark.parametrize("link", OWN[1:3], ids=lambda link: link.name)
def test_gaps_between_links_of_a_users_own(link, reference):
    """Tails are balanced by their logarithms, heavy ones as well.

    The slope of such a logarithm is as exact as the formulas are in float32, far off.
    """
    x, c = torch.tensor([[300.0, 0.0, 500.0, -20.0]]), torch.tensor([[1.0, 2.0, 1.5, 3.0]])
    given = x, c, torch.tensor([2.5]), torch.ones(1)
    for function in FUNCTIONS[:2]:
        wanted = reference(pulled, function, *wide(*given), link)
        found = pulled(function, *given, link)
        compared(found, wanted, GRADIENT_HARD["float32"], reach=600.0)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("link", ["logistic", "linear"])
def test_rows_without_an_equation(link, function, reference):
    x, c, budget = odd_rows()
    t = torch.linspace(0.5, 2.0, len(x))
    wanted = reference(pulled, function, *wide(x, c, budget, t), link)
    compared(pulled(function, x, c, budget, t, link), wanted)


@pytest.mark.parametrize(("scale", "t"), [(1e-30, 1e-30), (30.0, 1.0), (1e4, 1.0), (1e30, 1e18)])
@pytest.mark.parametrize("link", LINKS)
def test_spread_rows_spend_the_budget(link, scale, t, reference):
    x, c, budget = rows()
    x = x * scale
    t = torch.ones(len(x)) * t
    found = kofn.soft_knapsack(x, c, budget, temperature=t, link=link)
    wanted = reference(kofn.soft_knapsack, *wide(x, c, budget), temperature=t.double(), link=link)
    torch.testing.assert_close(
        (found.double() * c).sum(-1), (wanted * c).sum(-1), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=WEIGHTS["float32"])


@pytest.mark.parametrize("link", LINKS)
def test_gaps_in_which_tails_underflow(link, reference):
    x = torch.tensor([[300.0, 0.0, 500.0, -20.0], [900.0, 0.0, 1e4, 20.0]])
    c = torch.tensor([[1.0, 2.0, 1.5, 3.0], [1.0, 1.0, 1.0, 1.0]])
    budget, t = torch.tensor([2.5, 2.0]), torch.ones(2)
    for function in FUNCTIONS[:2]:
        if link in BOUNDED and function is kofn.soft_knapsack_threshold:
            continue  # any θ in the gap is one
        wanted = reference(pulled, function, *wide(x, c, budget, t), link)
        # F′ of entries 200 temperatures off is as exact as z² is.
        compared(
            pulled(function, x, c, budget, t, link), wanted, GRADIENT_HARD["float32"], reach=200.0
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(dtype, reference):
    x, c, budget = rows()
    x, c = x[:5].to(dtype), c[:5].to(dtype)
    found = kofn.soft_knapsack(x, c, budget[:5])
    wanted = reference(kofn.soft_knapsack, *wide(x, c, budget[:5]))
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), wanted, rtol=eps, atol=eps)


@pytest.mark.parametrize("odd", [False, True])
def test_hard_choices(odd, reference):
    x, c, budget = odd_rows() if odd else rows()
    found = kofn.soft_knapsack(x, c, budget, hard=True)
    wanted = reference(kofn.soft_knapsack, *wide(x, c, budget), hard=True)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=0, equal_nan=True)
    t = torch.linspace(0.5, 2.0, len(x))
    if not odd:
        wanted = reference(
            pulled, kofn.soft_knapsack, *wide(x, c, budget, t), "logistic", hard=True
        )
        compared(pulled(kofn.soft_knapsack, x, c, budget, t, "logistic", hard=True), wanted)


def test_long_rows(reference):
    draw = torch.Generator().manual_seed(5)
    x, c = torch.randn(2, 700, generator=draw), torch.rand(2, 700, generator=draw)
    budget, t = c.sum(-1) / 5, torch.tensor([0.3, 1.0])
    for options in ({}, {"hard": True}):
        wanted = reference(
            pulled, kofn.soft_knapsack, *wide(x, c, budget, t), "logistic", **options
        )
        compared(pulled(kofn.soft_knapsack, x, c, budget, t, "logistic", **options), wanted)
