"""Links of a user's own on a GPU, by Triton's interpreter."""

import math
import warnings

import mpmath
import numpy as np
import pytest
import torch

import kofn
import own_links
from kofn import kernels, losses
from kofn.kernels.gpu.rows import launch as gpu
from kofn.kernels.gpu.rows.own import own_of
from rows import PLATEAU, against_the_reference, cotangents
from support import double, single

INF, NAN = math.inf, math.nan
full = pytest.mark.full
GUMBEL, STUDENT = own_links.GumbelFarOut(), own_links.Student()
EVERY = [
    pytest.param(link, marks=() if link is GUMBEL else full, id=link.name)
    for link in (GUMBEL, STUDENT, own_links.Again(), own_links.Square(), own_links.Gumbel())
]


@pytest.mark.parametrize("link", EVERY)
@pytest.mark.parametrize("n", [20, pytest.param(300, marks=full)])
def test_weights_and_gradients_are_those_of_array_code(link, n, reference, rng):
    spreads = np.tile([0.0, 0.3, 3.0, 12.0], 3)[:, None]
    k, t = n * rng.uniform(0.02, 0.98, 12), rng.uniform(0.3, 2.0, 12)
    x, v = spreads * rng.standard_normal((12, n)), rng.standard_normal((12, n))
    x, k, t, v = single(x, k, t, v)
    assert kernels.serving_of("rows", x, "torch", link.inner) is gpu
    against_the_reference(x, k, t, v, link, reference)


def log_gumbel(z):
    """(log F, log(1 − F)) in mpmath."""
    w = mpmath.exp(-z - mpmath.euler)
    return -w, -z - mpmath.euler if w < 1e-40 else mpmath.log(-mpmath.expm1(-w))


def on_a_plateau(row, k, t):
    """θ where both tails are equal in mpmath."""
    ordered = sorted((mpmath.mpf(float(x)) for x in row), reverse=True)
    t, low, high = mpmath.mpf(float(t)), ordered[k], ordered[k - 1]
    while high - low > 1e-12:
        theta = (low + high) / 2
        below = [log_gumbel((x - theta) / t)[0] for x in ordered[k:]]
        above = [log_gumbel((x - theta) / t)[1] for x in ordered[:k]]
        most = max(below), max(above)
        totals = [
            m + mpmath.log(mpmath.fsum(mpmath.exp(a - m) for a in tails))
            for m, tails in zip(most, (below, above), strict=True)
        ]
        low, high = (theta, high) if totals[0] > totals[1] else (low, theta)
    return float(low)


PLATEAUS = (
    (PLATEAU, 3, (1.0, 0.3, 0.1, 0.03)),
    ((0.0, 0, 0, -2), 3, (0.08, 0.05, 0.02)),
    ((0.0, -2, -2, -2), 1, (0.08, 0.05, 0.02)),
)


@pytest.mark.parametrize(
    ("row", "k", "ts"),
    [pytest.param(*each, marks=full if i else ()) for i, each in enumerate(PLATEAUS)],
)
def test_a_tail_that_falls_as_an_exponential_of_one_is_balanced_in_logs(row, k, ts):
    """Its logarithm is all that is known: far.log_balance."""
    x, t = torch.tensor(row).expand(len(ts), len(row)), torch.tensor(ts)
    theta = kofn.soft_topk_threshold(x, k, link=GUMBEL, temperature=t)
    exact = [on_a_plateau(each, k, float(one)) for each, one in zip(x, t, strict=True)]
    assert theta.numpy() == pytest.approx(np.array(exact), abs=2e-6)


def test_a_hard_choice_still_learns_k(reference):
    """ΣF′ underflows at the low temperatures, the slopes of both tails' logarithms do not."""
    x, t = torch.tensor([10.0, 9.0, -9.0, -10.0]).expand(3, 4), torch.tensor([1.0, 0.1, 0.05])
    v = torch.tensor([0.3, -1.0, 2.0, 0.7]).expand(3, 4)
    k = torch.full((3,), 2.0)
    ours = cotangents(x, k, t, v, GUMBEL)
    exact = reference(cotangents, *double(x, k, t, v), GUMBEL)
    assert ours[2].numpy() == pytest.approx(exact[2].numpy(), abs=1e-4)


def test_masked_scores_have_nothing_of_a_heavy_tail():
    x = torch.tensor([1.0, 2.0, -INF, 0.5, torch.finfo().min], requires_grad=True)
    p = kofn.soft_topk(x, 1.5, link=STUDENT)
    (g,) = torch.autograd.grad(p, x, torch.tensor([1.0, 0, NAN, 0, NAN]))
    assert (p[2], p[4], g[2], g[4]) == (0, 0, 0, 0)
    assert p.sum().item() == pytest.approx(1.5)
    assert g.isfinite().all()


@pytest.mark.parametrize("link", [GUMBEL, pytest.param(own_links.Square(), marks=full)])
def test_logarithms_and_their_gradients(link, reference):
    x = torch.tensor([[3.0, 0.5, -1.0, 2.0, -4.0], [30.0, 20, -3, -20, -30]])

    def logs(x):
        x = x.clone().requires_grad_()
        found = kofn.log_soft_topk(x, 2.5, link=link)
        finite = torch.where(found.isinf(), 0.0, found)
        v = torch.linspace(-1, 2, 10, dtype=x.dtype).reshape(2, 5)
        return found.detach(), torch.autograd.grad(finite, x, v)[0]

    for found, wanted in zip(logs(x), reference(logs, x.double()), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("soft", [False, pytest.param(True, marks=full)])
@pytest.mark.parametrize("link", [STUDENT, pytest.param(own_links.Square(), marks=full)])
def test_sums_and_losses(link, soft, reference, rng):
    x = torch.tensor(3 * rng.standard_normal((4, 9)), dtype=torch.float32)

    def answers(x):
        x = x.clone().requires_grad_()
        target = (x.detach() > 1).to(x)
        target = 0.8 * target + 0.1 if soft else target
        for each in (
            kofn.soft_topk_sum(x, 2.5, link=link),
            losses.topk_loss(x, target, link=link, reduction="none"),
        ):
            yield each.detach()
            yield torch.autograd.grad(each.sum(), x)[0]

    wanted = reference(lambda: [*answers(x.double())])
    for found, exact in zip(answers(x), wanted, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=2e-5, atol=5e-6)


def test_the_number_of_a_link_tells_its_formulas():
    """Programs that Triton keeps on disk are found by it."""
    other = own_links.heavy("Student")()
    numbers = {own_of(link.number) for link in (GUMBEL, STUDENT, other)}
    assert len(numbers) == 3
    assert own_of(STUDENT.number) == own_of(own_links.Student().number)
    assert min(numbers) >= 100


def test_formulas_outside_of_the_vocabulary_are_array_code_and_say_why():
    x = torch.tensor([3.0, 1.0, 0.0])
    with pytest.warns(RuntimeWarning, match=r"array code serves .*Cauchy.*: its formula tail"):
        assert kernels.serving_of("rows", x, "torch", own_links.Cauchy()) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.serving_of("rows", x, "torch", own_links.Cauchy()) is None  # it says so once
