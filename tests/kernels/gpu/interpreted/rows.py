"""The maps' rows on a GPU, by Triton's interpreter."""

import numpy as np
import pytest
import torch

import kofn
from kofn.kernels.contract import KINDS, kind_of
from kofn.kernels.cpu.rows import launch as cpu
from kofn.kernels.gpu.rows import launch as gpu
from kofn.kernels.gpu.rows import one_program
from kofn.kernels.gpu.rows import search as gpu_search
from kofn.links import table
from oracles import exact_threshold
from support import (
    CAPPED,
    ENDLESS,
    GRADIENT,
    LINKS,
    TWO_TAILS,
    WEIGHTS,
    double,
    every_link,
    full_but,
    single,
)

INF, NAN = np.inf, np.nan
POWERS = (kofn.links.entmax(1.2), kofn.links.entmax(1.7))
SERVED = LINKS + POWERS
LOWEST = float(np.finfo("float32").min)


def first(*names):
    """Every link that is served, those named in the ordinary run, the others in the full one."""
    return pytest.mark.parametrize("link", full_but(names, SERVED))


two_tails = pytest.mark.parametrize("link", full_but(("logistic", "laplace"), TWO_TAILS))


@pytest.fixture
def in_parts(monkeypatch):
    """Rows as if they were long: evaluated in parts, then, where that is too few times, by one."""
    monkeypatch.setattr(gpu, "LONG", 0)
    monkeypatch.setattr(gpu, "PART", 64)
    monkeypatch.setattr(gpu, "EVALUATIONS", 2)


def cotangents(x, k, t, v, link):
    leaves = [a.clone().requires_grad_() for a in (x, k, t)]
    p = kofn.soft_topk(leaves[0], leaves[1], link=link, temperature=leaves[2])
    return p.detach(), *torch.autograd.grad(p, leaves, v)


def test_the_links_that_are_served():
    for link in SERVED:
        link = table.resolve(link).inner
        assert kind_of(link) in gpu.SERVED
        assert kind_of(link) in cpu.SERVED
    cauchy = kofn.Link(lambda z: 0.5 + torch.atan(z) / 3, lambda z: 1 / (3 + z * z))
    for other in (cauchy, kofn.links.entmax(1.05), kofn.links.entmax(2.5)):
        assert kind_of(other.inner) is None


def against_the_reference(x, k, t, v, link, reference):
    """The bounds that design promises, row by row."""
    count, n = x.shape
    ours = cotangents(x, k, t, v, link)
    exact = reference(cotangents, *double(x, k, t, v), link)
    assert torch.max(torch.abs(ours[0] - exact[0])) <= WEIGHTS["float32"]
    least = 0.1 if link in POWERS else 0.0  # powers lose more of a weight that is small and alone
    off = torch.abs(ours[0].double().sum(-1) - k)
    assert torch.all(off <= 1e-6 * k.clamp(min=least))
    for got, wanted in zip(ours[1:], exact[1:], strict=True):
        got, wanted = got.double().reshape(count, -1), wanted.reshape(count, -1)
        # What moves with T is a sum that cancels, wholly so where all scores are equal.
        alike = x.amax(-1) == x.amin(-1)
        size = wanted.norm(dim=-1) + torch.where(alike, float(n), 0.02 * n**0.5)
        assert torch.all((got - wanted).norm(dim=-1) <= GRADIENT["float32"] * size)


@pytest.mark.parametrize(
    ("n", "k"), [(10, 1), *(pytest.param(*a, marks=pytest.mark.full) for a in ((99, 5), (200, 7)))]
)
def test_many_scores_at_the_end_of_the_support(n, k, rng):
    """One more step of θ and all of them enter: the sum of the weights stays k all the same."""
    temperature = np.exp2(rng.uniform(-40, 45, 16)).astype("float32")
    base = rng.standard_normal(16).astype("float32") * temperature
    x = np.where(np.arange(n) < k, (base + temperature)[:, None], base[:, None])
    p = kofn.soft_topk(torch.tensor(x), k, link="linear", temperature=torch.tensor(temperature))
    assert torch.max(torch.abs(p.double().sum(-1) / k - 1)) <= 5e-7


@first("logistic", "linear")
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.full), 33])
def test_many_rows_to_a_program(link, n, reference, rng):
    """Eight of them; the second program's last rows are beyond the end."""
    spreads = np.tile([0.0, 0.3, 3.0, 12.0], 3)[:, None]
    k, t = n * rng.uniform(0.02, 0.98, 12), rng.uniform(0.3, 2.0, 12)
    x, v = spreads * rng.standard_normal((12, n)), rng.standard_normal((12, n))
    against_the_reference(*single(x, k, t, v), link, reference)


@first("logistic", "entmax")
def test_a_row_to_a_program(link, reference, rng):
    """In several steps, the last of which the row does not fill."""
    x, v = [[0.3], [3.0]] * rng.standard_normal((2, 300)), rng.standard_normal((2, 300))
    against_the_reference(*single(x, [30.5, 180.0], [0.5, 1.5], v), link, reference)


@pytest.mark.parametrize("n", [20, 300, "in parts"])
def test_an_alpha_per_row(n, reference, rng, request):
    """General ones in one launch, a special one in its own, and one that the array code takes."""
    if n == "in parts":
        request.getfixturevalue("in_parts")
    n = 100 if n == "in parts" else n
    alpha = torch.tensor([1.25, 1.7, 1.25, 2.0, 1.9, 1.1])
    x, v = 2 * rng.standard_normal((6, n)), rng.standard_normal((6, n))
    k, t = n * rng.uniform(0.1, 0.9, 6), rng.uniform(0.5, 1.5, 6)

    def cotangents(x, k, t, alpha, v):
        leaves = [a.clone().requires_grad_() for a in (x, k, t, alpha)]
        link = kofn.links.entmax(leaves[3])
        p = kofn.soft_topk(leaves[0], leaves[1], link=link, temperature=leaves[2])
        return p.detach(), *torch.autograd.grad(p, leaves, v)

    x, k, t, v = single(x, k, t, v)
    ours = cotangents(x, k, t, alpha, v)
    exact = reference(cotangents, *double(x, k, t, alpha, v))
    assert torch.max(torch.abs(ours[0] - exact[0])) <= WEIGHTS["float32"]
    for got, wanted in zip(ours[1:], exact[1:], strict=True):
        got, wanted = (each.double().reshape(6, -1)[:5] for each in (got, wanted))
        size = wanted.norm(dim=-1) + 0.02 * n**0.5
        assert torch.all((got - wanted).norm(dim=-1) <= GRADIENT["float32"] * size)
    same = kofn.soft_topk(x[0], k[0], link=kofn.links.entmax(1.25), temperature=t[0])
    assert torch.equal(ours[0][0], same)


@pytest.mark.parametrize("times", [1, 6])
@pytest.mark.parametrize("link", ["laplace", "entmax"])
def test_several_programs_to_a_row(link, times, reference, rng, in_parts, monkeypatch):
    """Where parts are evaluated often enough, and where one program does most of the search."""
    monkeypatch.setattr(gpu, "EVALUATIONS", times)
    x, v = 2 * rng.standard_normal((1, 100)), rng.standard_normal((1, 100))
    against_the_reference(*single(x, [20.5], [0.7], v), link, reference)


@first(*LINKS)
def test_the_edges_are_the_reference(link, reference):
    x = np.array(
        [
            [1.0, 2.0, -1.0, 0.5, 0.0],
            [1.0, NAN, -1.0, 0.5, 0.0],
            [INF, 2.0, -1.0, INF, INF],
            [INF, 2.0, -1.0, -INF, 0.25],
            [-INF, -INF, -1.0, -INF, 3.0],
            [-INF, -INF, -INF, -INF, -INF],
            [INF, NAN, -1.0, -INF, 0.0],
            [3.0, 3.0, 3.0, 3.0, 3.0],
        ]
    )
    whole = [(k, 1.0) for k in (0.0, 0.5, 2.0, 3.0, 4.5, 5.0, NAN, 7.0)]
    every = [(row, k, t) for k, t in (*whole, (2.0, 0.05), (3.0, 0.05), (2.0, NAN)) for row in x]
    given = single(*(np.array(a) for a in zip(*every, strict=True)))
    given = (*given, torch.linspace(-1, 2, given[0].numel()).reshape(given[0].shape))
    ours, theirs = cotangents(*given, link), reference(cotangents, *double(*given), link)
    assert ours[0].numpy() == pytest.approx(theirs[0].numpy(), abs=1e-6, nan_ok=True)
    whole = torch.isfinite(theirs[0]).all(-1).numpy()
    for got, wanted in zip(ours[1:], theirs[1:], strict=True):
        got, wanted = got.numpy()[whole], wanted.numpy()[whole]
        assert got == pytest.approx(wanted, rel=1e-5, abs=2e-6, nan_ok=True)


def test_the_edges_of_long_rows_are_the_reference(reference, in_parts, monkeypatch):
    monkeypatch.setattr(gpu, "PART", 16)
    x = np.tile([1.0, 2.0, -1.0, 0.5, 0.0], (6, 5))
    x[0, 20], x[1, 3::4], x[2, 1:] = NAN, INF, -INF
    x[3, 0], x[3, 7] = INF, NAN
    x[4, 2:] = -1e9
    k = np.array([2.5, 3.0, 2.0, 2.0, 1.5, 25.0])
    given = single(x, k, np.ones(6), np.linspace(-1, 2, x.size).reshape(x.shape))
    ours, theirs = (
        cotangents(*given, "logistic"),
        reference(cotangents, *double(*given), "logistic"),
    )
    assert ours[0].numpy() == pytest.approx(theirs[0].numpy(), abs=1e-6, nan_ok=True)
    whole = torch.isfinite(theirs[0]).all(-1).numpy()
    for got, wanted in zip(ours[1:], theirs[1:], strict=True):
        got, wanted = got.numpy()[whole], wanted.numpy()[whole]
        assert got == pytest.approx(wanted, rel=1e-5, abs=2e-6)


PLATEAU = (10, 9.5, 9.2, -9, -10, -9.5, -9.9)


@two_tails
def test_a_plateau_is_balanced_in_logs(link):
    ts = [1.0, 0.3, 0.1, 0.03, 0.01, 1e-3]
    theta = kofn.soft_topk_threshold(
        torch.tensor(PLATEAU).expand(6, 7), 3, link=link, temperature=torch.tensor(ts)
    )
    exact = [exact_threshold(PLATEAU, 3.0, t, link) for t in ts]
    assert theta.numpy() == pytest.approx(np.array(exact), abs=2e-6)


@two_tails
def test_a_long_plateau(link, in_parts):
    theta = kofn.soft_topk_threshold(torch.tensor(PLATEAU), 3, link=link, temperature=0.1)
    assert float(theta) == pytest.approx(exact_threshold(PLATEAU, 3.0, 0.1, link), abs=2e-6)


@two_tails
def test_a_plateau_with_more_scores_on_one_side(link):
    """θ is off the middle, by more than one step of Newton's can tell."""
    ts = [0.08, 0.05, 0.02]
    x = torch.tensor([0.0, 0, 0, -2]).expand(3, 4)
    theta = kofn.soft_topk_threshold(x, 3, link=link, temperature=torch.tensor(ts))
    exact = [exact_threshold((0, 0, 0, -2), 3.0, t, link) for t in ts]
    assert theta.numpy() == pytest.approx(np.array(exact), abs=2e-6)


@two_tails
def test_a_hard_choice_still_learns_k(link, reference):
    """ΣF′ underflows at the low temperatures, softmax(log F′) does not."""
    x, t = torch.tensor([10.0, 9.0, -9.0, -10.0]).expand(4, 4), torch.tensor([1.0, 0.3, 0.1, 0.05])
    v = torch.tensor([0.3, -1.0, 2.0, 0.7]).expand(4, 4)
    k = torch.full((4,), 2.0)
    ours = cotangents(x, k, t, v, link)
    exact = reference(cotangents, *double(x, k, t, v), link)
    assert ours[2].numpy() == pytest.approx(exact[2].numpy(), abs=1e-4)


@pytest.mark.parametrize(
    "link", [pytest.param(a, marks=pytest.mark.full) for a in ("linear", *POWERS)] + ["entmax"]
)
def test_beyond_the_support_weights_are_0_exactly(link, rng):
    """However near to the end of a plateau the search comes from outside."""
    x = torch.tensor(rng.standard_normal((64, 9)), dtype=torch.float32)
    ordered = x.sort(-1, descending=True).values
    width = 1.0 if link == "linear" else 1 / (table.resolve(link).alpha - 1)
    p = kofn.soft_topk(x, 3, link=link, temperature=(ordered[:, 2] - ordered[:, 3]) / width / 1.3)
    assert torch.all((p > 0).sum(-1) == 3)


def test_a_plateau_of_one_point_has_its_weights():
    """Its gradient in k is what rounding makes of two kinks in one place: nobody's to compare."""
    x = torch.tensor([INF, 2.0, -1.0, -INF, 0.0])
    assert kofn.soft_topk(x, 3, link="linear").tolist() == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("link", ["logistic", "exponential"])
def test_theta_is_two_floats(link, reference, rng):
    """One float of size 1,000 would move every z by 3e-4."""
    given = single(
        1000 + rng.standard_normal((2, 20)), [4.0, 7.0], [0.1, 0.1], rng.standard_normal((2, 20))
    )
    ours, exact = cotangents(*given, link), reference(cotangents, *double(*given), link)
    for got, wanted in zip(ours, exact, strict=True):
        assert torch.norm(got - wanted) <= 5e-6 * torch.norm(wanted)


def test_few_evaluations(monkeypatch, rng):
    """Start, third order and masks: searches are short."""
    kinds = []

    def advance(kind, row, search, *sums):
        kinds.append(kind)
        return gpu_search.advance(kind, row, search, *sums)

    monkeypatch.setattr(one_program, "advance", advance)
    x = torch.tensor(rng.standard_normal((8, 64)), dtype=torch.float32)
    masked = torch.where(torch.arange(64) % 3 == 0, -1e9, x)

    def count(*arguments, **options):
        kinds.clear()
        kofn.soft_topk(*arguments, **options)
        return len(kinds)

    for link in ENDLESS:
        most = (
            4
            if link in CAPPED
            else 2
            if KINDS[kind_of(table.TABLE[link].inner)].kind.order == 3
            else 3
        )
        assert count(x, 10, link=link) <= most
        assert count(masked, 10, link=link) <= most + 1
    assert count(10 * x, 10.5) <= 4
    # Here what a step is to mend is smaller than the rounding of sums, or of θ.
    ties = torch.tensor([[0.0, 1, 1, 0, 0, 0, -1, 1, 1, 1, 1, 0, -1, 0, 0, 0]])
    assert count(ties, 15, link=kofn.links.entmax(1.2), temperature=1.7247) <= 24
    among = torch.tensor([[-1e9, 2.723161, -1e9, -4.2994733]])
    assert count(among, 3.9883, link="entmax", temperature=0.71596) <= 48
    assert count(1e6 * x, 10.5) <= 40


@first("linear")
def test_wide_rows(link, reference, rng):
    spread = np.array([1e3, 1e3, 3e4, 3e4, 1e7, 1e7])[:, None]
    x = spread * rng.standard_normal((6, 60))
    x[1, :20] = -INF
    # Between the scores of a wide row any θ chooses 7 by a link with bounded support.
    k = np.array([7.5, 30.5, 20.5, 33.5, 7.5, 7.0 if link in TWO_TAILS else 40.5])
    x, k = single(x, k)
    exact = reference(kofn.soft_topk, x.double(), k.double(), link=link)
    assert torch.max(torch.abs(kofn.soft_topk(x, k, link=link) - exact)) <= WEIGHTS["float32"]
    wanted = reference(kofn.soft_topk_threshold, x.double(), k.double(), link=link)
    theta = kofn.soft_topk_threshold(x, k, link=link)
    assert torch.all(torch.abs(theta - wanted) <= 1e-6 + 2e-7 * torch.abs(wanted))


@first("laplace")
def test_additive_masks(link, rng):
    """Between such a mask and the scores float32 has numbers hundreds of temperatures apart."""
    x = (5 * rng.standard_normal((8, 64))).astype(np.float32)
    x[:, :2] = 0.5
    away = rng.random(x.shape) < 0.7
    t = torch.tensor([1.0, 0.3, 0.05, 1e-3]).repeat(2)
    k = torch.tensor([1.0, 1.5]).repeat_interleave(4)
    wanted = kofn.soft_topk(
        torch.tensor(np.where(away, -INF, x).astype(np.float32)), k, link=link, temperature=t
    )
    for hidden in (-1e4, -1e9, LOWEST):
        masked = torch.tensor(np.where(away, np.float32(hidden), x))
        got = kofn.soft_topk(masked, k, link=link, temperature=t)
        assert torch.max(torch.abs(got - wanted)) <= 1e-6


@first("linear")
def test_more_than_the_masks_leave(link):
    """k beyond what is not masked: the masks of −1e9, all alike, share the rest; half of the least
    float and less is no score at all.
    """
    x = torch.tensor([[1.0, LOWEST, 2.0, LOWEST / 2, -INF], [1.0, -1e9, 2.0, -1e9, -1e9]])
    x.requires_grad_()
    p = kofn.soft_topk(x, 3.5, link=link)
    wanted = np.array([[1, 0, 1, 0, 0], [1, 0.5, 1, 0.5, 0.5]])
    assert p.detach().numpy() == pytest.approx(wanted, abs=1e-6)
    (g,) = torch.autograd.grad(p, x, torch.tensor([1.0, 2.0, 0.0, 3.0, 5.0]).expand(2, 5))
    assert torch.all(g[0] == 0)


@pytest.mark.parametrize("size", [-1e9, 2e7, 1e15])
def test_softmax_of_equal_scores_far_from_0(size):
    """One float cannot tell θ from them, and all of ΣF is no sign of a θ."""
    x = torch.full((4,), size)
    assert kofn.softmax(x).tolist() == [0.25] * 4
    assert kofn.soft_topk(x, 2, link="exponential").tolist() == [0.5] * 4


def test_softmax_beside_a_mask_at_any_temperature():
    x = torch.tensor([1.0, 2.0, 0.0, LOWEST, -1.6e38]).expand(3, 5)
    t = torch.tensor([1e20, 1e26, 1e30])
    assert kofn.softmax(x, temperature=t).tolist() == [pytest.approx([1 / 3] * 3 + [0, 0])] * 3


@first("logistic")
def test_units_do_not_matter(link, rng):
    x = torch.tensor(rng.standard_normal((3, 9)), dtype=torch.float32)
    unit = torch.tensor([1e-24, 1e-29, 1e20])
    wanted = kofn.soft_topk(x, 2.5, link=link, temperature=2.0)
    got = kofn.soft_topk(x * unit[:, None], 2.5, link=link, temperature=2 * unit)
    assert torch.max(torch.abs(got - wanted)) <= 2e-6


@first("normal")
def test_extreme_temperatures(link, reference):
    rows = torch.tensor([[3.0, 2.0, 2.0, -7.0, 0.0], [1e30, -1e30, 5.0, 1e-30, 0.0]])
    x, k = rows.repeat(12, 1), torch.tensor([1.0, 2.0, 3.3]).repeat_interleave(2).repeat(4)
    t = torch.tensor([1e-30, 1e-10, 1e10, 1e30]).repeat_interleave(6)
    exact = reference(kofn.soft_topk, *double(x, k), link=link, temperature=t.double())
    got = kofn.soft_topk(x, k, link=link, temperature=t)
    assert got.numpy() == pytest.approx(exact.numpy(), abs=2e-6)


@two_tails
def test_one_entry_with_all_the_slope_keeps_its_small_difference_from_the_mean(link, reference):
    far = 4 if link == "normal" else 9
    given = single(
        [[0.1, -far, -far - 1, far + 0.5, far + 1]], [2.5], [1.0], [[1000.1, -3.0, 2.0, 5.0, 1.0]]
    )
    ours = cotangents(*given, link)[1].double()
    exact = reference(cotangents, *double(*given), link)[1]
    assert torch.norm(ours - exact) <= 2e-5 * torch.norm(exact)
    assert abs(ours.sum()) <= 1e-6 * torch.abs(ours).sum()


@every_link
def test_what_is_not_chosen_may_carry_any_cotangent(link):
    x = torch.tensor([[2.0, -INF, 1.0, 0.5, -1e30]], requires_grad=True)
    v = torch.tensor([[0.3, NAN, -1.0, 2.0, INF]])
    p = kofn.soft_topk(x, 2, link=link)
    (g,) = torch.autograd.grad(p, x, v, retain_graph=True)
    (wanted,) = torch.autograd.grad(p, x, v.nan_to_num(0, 0, 0))
    assert torch.equal(g, wanted)
    assert torch.isfinite(g).all()


@pytest.mark.parametrize("n", [pytest.param(20, marks=pytest.mark.full), 200])
def test_a_row_does_not_depend_on_the_others(n, rng):
    x, v = single(rng.standard_normal((4, n)), rng.standard_normal((4, n)))
    x[1, 2], x[2], x[3] = NAN, 1e3 * x[2], x[3] - 1e9
    k, t = torch.full((4,), 4.5), torch.ones(4)
    together = cotangents(x, k, t, v, "logistic")
    again = cotangents(x, k, t, v, "logistic")
    for i in range(4):
        alone = cotangents(x[i : i + 1], k[:1], t[:1], v[i : i + 1], "logistic")
        for whole, repeated, one in zip(together, again, alone, strict=True):
            assert np.array_equal(whole[i : i + 1], one, equal_nan=True)
            assert np.array_equal(whole, repeated, equal_nan=True)


def test_second_derivatives_are_the_references(reference):
    def hessian_vector(x):
        x = x.clone().requires_grad_()
        p = kofn.soft_topk(x, 2)
        (g,) = torch.autograd.grad((p * p).sum(), x, create_graph=True)
        return torch.autograd.grad(g @ torch.tensor([1.0, -2.0, 0.5, 3.0]).to(x), x)[0]

    x = torch.tensor([1.0, 0.3, -0.2, 2.0])
    assert hessian_vector(x).numpy() == pytest.approx(
        reference(hessian_vector, x.double()).numpy(), abs=1e-5
    )


def test_any_layout_and_precision(rng):
    x = torch.tensor(rng.standard_normal((6, 10)), dtype=torch.float32)
    wanted = kofn.soft_topk(x, 3)
    assert torch.equal(kofn.soft_topk(x.t().contiguous().t(), 3), wanted)
    assert torch.equal(kofn.soft_topk(x.t(), 3, dim=0), wanted.t())
    assert torch.equal(kofn.soft_topk(torch._neg_view(-x), 3), wanted)
    assert torch.equal(kofn.soft_topk(x[:, None, :].expand(6, 2, 10), 3)[:, 1], wanted)
    half = kofn.soft_topk(x.bfloat16(), 3)
    assert half.dtype == torch.bfloat16
    assert torch.max(torch.abs(half - wanted)) <= WEIGHTS["bfloat16"]
    assert kofn.soft_topk(x[:0], 3).shape == (0, 10)
    leaf = x.clone().requires_grad_()
    kofn.soft_topk(leaf, 3).sum().backward()  # a cotangent of stride 0
    assert torch.max(torch.abs(leaf.grad)) <= 1e-6


of_half = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float16, marks=pytest.mark.full), torch.bfloat16]
)


def against_a_cast(dtype, n, k, rng):
    """Converted inside the kernels: the bits of casts of whole tensors before and after."""
    least = torch.finfo(dtype).min
    x, v = (torch.tensor(3 * rng.standard_normal((5, n))).to(dtype) for _ in range(2))
    x[1, :3], x[1, n // 2] = torch.tensor([-INF, least, least / 2]), least / 2
    x[2, 1], x[3, :2] = NAN, INF
    k, t = torch.full((5,), float(k)), torch.linspace(0.5, 2, 5)
    wide = torch.where(x <= least / 2, -INF, x.float())
    theirs = cotangents(wide, k, t, v.float(), "logistic")
    for got, wanted in zip(cotangents(x, k, t, v, "logistic"), theirs, strict=True):
        assert torch.equal(got.nan_to_num(-7.0), wanted.to(got.dtype).nan_to_num(-7.0))
    theta = kofn.soft_topk_threshold(x, k, temperature=t)
    wanted = kofn.soft_topk_threshold(wide, k, temperature=t)
    assert torch.equal(theta.nan_to_num(-7.0), wanted.nan_to_num(-7.0))


@of_half
@pytest.mark.parametrize(("n", "k"), [(33, 5), pytest.param(300, 20.5, marks=pytest.mark.full)])
def test_half_precision_is_that_of_a_cast(dtype, n, k, rng):
    against_a_cast(dtype, n, k, rng)


@of_half
def test_half_precision_of_several_programs_is_that_of_a_cast(dtype, rng, in_parts):
    against_a_cast(dtype, 100, 7, rng)


def test_what_has_no_kernel_takes_half_precision(rng):
    """Logarithms, hard choices and k-subsets of a GPU are by other code."""
    x = torch.tensor(rng.standard_normal((2, 20))).half()
    for function in (
        lambda x: kofn.log_soft_topk(x, 3),
        lambda x: kofn.hard_topk(x, 3),
        lambda x: kofn.soft_topk(x, 3, hard=True),
        lambda x: kofn.KSubset(x, 3).marginals(),
    ):
        assert torch.equal(function(x), function(x.float()).half())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_hard_choice_has_the_gradient_of_the_weights(dtype, reference, rng):
    """The choice is array code, θ the kernel's."""
    x = torch.tensor(rng.standard_normal((3, 20)), dtype=getattr(torch, dtype))
    x[0, 3:5] = x[0, 2]  # ties
    v = torch.tensor(rng.standard_normal((3, 20)), dtype=x.dtype)

    def both(x, v):
        x = x.clone().requires_grad_()
        p = kofn.soft_topk(x, 5, hard=True)
        return p.detach(), torch.autograd.grad(p, x, v)[0]

    ours, wanted = both(x, v), reference(both, x.double(), v.double())
    assert ours[0].dtype == x.dtype
    assert torch.equal(ours[0].double(), wanted[0])
    bound = 1e-5 if dtype == "float32" else 2e-2
    assert (ours[1] - wanted[1]).norm() <= bound * wanted[1].norm()


@pytest.mark.parametrize("link", SERVED, ids=str)
def test_smoothed_sums_and_their_gradients(link, reference):
    """By θ of the kernel and sums in float64: rows with masks, ties, infinities and a NaN, too."""
    x = torch.randn((12, 20), generator=torch.Generator().manual_seed(0))
    x[1], x[3], x[7] = 40 * x[1], x[3].round(), 1e20 * x[7]
    x[2, :7], x[6] = -INF, -INF
    x[4, 3], x[5, 2], x[8, :4] = INF, NAN, INF
    k = torch.tensor([20, 2.5, 13, 3, 3, 3, 0, 3, 3, 0, 19.5, 3])
    t = torch.tensor([1, 1, 1, 1e-3, 1, 1, 1, 1e10, 1, 1, 1, 1e4])
    k = k.clamp(max=1) if link == "exponential" else k

    def sums(x, k, t):
        leaves = [one.clone().requires_grad_() for one in (x, k, t)]
        found = kofn.soft_topk_sum(leaves[0], leaves[1], link=link, temperature=leaves[2])
        return found.detach(), *torch.autograd.grad(found.sum(), leaves)

    ours, wanted = sums(x, k, t), reference(sums, *double(x, k, t))
    for place, (got, exact) in enumerate(zip(ours, wanted, strict=True)):
        same = (got == exact) | (got.isnan() & exact.isnan())
        error = (got - exact).abs() / exact.abs().clamp(min=1)
        error = error.masked_fill(same, 0.0).reshape(12, -1).amax(-1)
        if place == 2:
            error[7] = 0.0  # every θ between two scores is right
        assert error.max() <= 2e-5, (place, error)
    whole = kofn.soft_topk_sum(x[:2], 2.0, link=link if link != "exponential" else "logistic")
    exact = reference(
        kofn.soft_topk_sum, x[:2].double(), 2.0, link=link if link != "exponential" else "logistic"
    )
    assert whole.numpy() == pytest.approx(exact.numpy(), rel=1e-6, abs=1e-6)
