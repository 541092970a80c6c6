"""Rows such as users have on a GPU, by Triton's interpreter: weights, thresholds, gradients."""

import numpy as np
import pytest
import torch

import kofn
from kofn.kernels.gpu.rows import launch
from rows_of_users import draw, hold, hold_gradients
from support import LINKS, SYMMETRIC, TWO_TAILS, double, single

INF = np.inf
EVERY = (*LINKS, 1.2, 1.37, 1.9)
LARGEST = float(np.finfo("float32").max)


@pytest.fixture(autouse=True)
def many_rows_to_a_program(monkeypatch):
    """The interpreter takes about as long for a program of a thousand rows as for one of 32."""
    shape_of = launch.shape_of
    monkeypatch.setattr(launch, "shape_of", lambda n: shape_of(n)._replace(rows=1024))


def cotangents(x, k, t, v, link):
    leaves = [torch.as_tensor(a).clone().requires_grad_() for a in (x, k, t)]
    p = kofn.soft_topk(leaves[0], leaves[1], link=link, temperature=leaves[2])
    return [g.numpy() for g in torch.autograd.grad(p, leaves, torch.as_tensor(v))]


@pytest.mark.parametrize(
    ("count", "n", "link"),
    [
        *((32, 9, link) for link in ("exponential", "linear")),
        *(pytest.param(2048, 9, link, marks=pytest.mark.full) for link in EVERY),
        *(pytest.param(64, 100, link, marks=pytest.mark.full) for link in EVERY),
    ],
)
def test_the_laws_hold(count, n, link, rng, reference):
    rows = draw(rng, count, n, "float32")
    hold(rows, link, "torch")
    link = link if isinstance(link, str) else kofn.links.entmax(link)
    v = rng.standard_normal(rows.x.shape)
    ours = cotangents(*single(rows.x, rows.k, rows.temperature, v), link)
    reference(hold_gradients, rows, v, ours, lambda *given: cotangents(*given, link), link)


@pytest.mark.parametrize("link", [pytest.param(a, marks=pytest.mark.full) for a in EVERY])
def test_the_laws_hold_in_parts(link, rng, monkeypatch):
    monkeypatch.setattr(launch, "LONG", 0)
    monkeypatch.setattr(launch, "PART", 64)
    hold(draw(rng, 24, 100, "float32"), link, "torch")


@pytest.mark.parametrize("link", TWO_TAILS)
def test_outliers_lead_no_search(link):
    """Nor do squares that overflow, or a θ beyond all scores."""
    x, k, temperature, wanted = zip(
        ([4.6, 1e15, -INF, -INF], 1.047, 1.0, [0.047, 1, 0, 0]),
        ([1.0, -1e9, -1e15, -1e30], 2, 1.0, [1, 1, 0, 0]),
        ([LARGEST, 3, -INF, LARGEST], 1e-5, 1.0, [5e-6, 0, 0, 5e-6]),
        ([2e25, 2e25, 0, -4e35], 1.0, 1e22, [0.5, 0.5, 0, 0]),
        ([-1.7014115e38, -1.7014118e38, -1.7014118e38, -9e29], 1.5, 1e30, [0.5, 0, 0, 1]),
        strict=True,
    )
    x, k, temperature, wanted = (np.array(a, np.float32) for a in (x, k, temperature, wanted))
    t, count = torch.tensor(temperature), torch.tensor(k)
    p = kofn.soft_topk(torch.tensor(x), count, link=link, temperature=t).numpy()
    assert np.all(np.abs(p - wanted) <= 2e-6 * np.minimum(k, 1)[:, None])
    assert np.all(p[wanted == 0] == 0)


@pytest.mark.parametrize("parts", [False, True])
def test_a_hard_choice_by_the_exponential_link_ends_at_the_least(parts, monkeypatch, reference):
    """What the others have underflows, yet is not 0: k moves the least of the chosen."""
    if parts:
        monkeypatch.setattr(launch, "LONG", 0)
    x = [[9.0, 3.0, -200.0, -300.0], [9.0, 3.0, 3.0, -1e9], [9.0, 3.0, -1e15, -1e9]]
    given = single(x, [2.0, 3.0, 2.0], [1.0, 0.1, 1.0], [[0.3, -1.0, 2.0, 0.7]] * 3)
    ours, exact = (
        cotangents(*given, "exponential"),
        reference(cotangents, *double(*given), "exponential"),
    )
    for got, wanted in zip(ours, exact, strict=True):
        assert got == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert ours[1] == pytest.approx([-1.0, 0.5, -1.0], rel=1e-6)
    theta = kofn.soft_topk_threshold(given[0], given[1], link="exponential", temperature=given[2])
    # The link of mean zero has its end one temperature above θ.
    assert theta.numpy() == pytest.approx(np.array([2.0, 2.9, 2.0]), abs=1e-6)


@pytest.mark.parametrize("link", SYMMETRIC)
def test_what_k_moves_is_what_is_next_to_the_threshold(link, rng):
    """Half of it on each side, where z is known to no digit."""
    x = torch.tensor([[1.0, -1.0, -1.0], [1.0, -1.0, -5.0]]).repeat(4, 1)
    t = 2 / torch.tensor([1e4, 1e7, 1e10, 1e14]).repeat_interleave(2)
    v = torch.tensor(rng.standard_normal((8, 3)), dtype=torch.float32)
    in_k = cotangents(x, torch.ones(8), t, v, link)[1]
    moved = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]).repeat(4, 1)
    assert in_k == pytest.approx((moved * v).sum(-1).numpy(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize(
    "link", ["logistic", *(pytest.param(link, marks=pytest.mark.full) for link in LINKS[1:])]
)
def test_scores_that_differ_by_much_less_than_the_temperature(
    parts, link, rng, reference, monkeypatch
):
    """What rounding leaves of Σu = 0 must not reach the cotangent of T."""
    if parts:
        monkeypatch.setattr(launch, "LONG", 0)
        monkeypatch.setattr(launch, "PART", 64)
    x, v = single(1e-3 * rng.standard_normal((8, 200)), rng.standard_normal((8, 200)))
    k, t = single(np.full(8, 3.0), np.full(8, 5.0))
    found = cotangents(x, k, t, v, link)[2]
    wanted = reference(cotangents, *double(x, k, t, v), link)[2]
    assert np.linalg.norm(found - wanted) <= 2e-6 * np.linalg.norm(wanted)
