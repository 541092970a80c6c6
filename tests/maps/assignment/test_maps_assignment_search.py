"""The search for the prices of soft_assignment: how long it takes, what it must not give up on."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from kofn import links, soft_assignment, soft_assignment_prices
from kofn.maps.assignment import search, sight
from oracles.assignment import linear_program, matrix
from support import LINKS, every_link, full_but

BLOCKS = np.kron(np.eye(4), np.ones((15, 15))) > 0


@pytest.fixture
def counted(monkeypatch):
    """How many passes are taken, and in how many rows are wider than kernels take."""
    found = {"passes": 0, "given up": 0}

    def count(module, name, what):
        plain = getattr(module, name)

        def counts(*given):
            found[what] += 1
            return plain(*given)

        monkeypatch.setattr(module, name, counts)

    count(search, "_advanced", "passes")
    near = sight.near

    def watched(*given):
        rows = near(*given)
        spans = np.ptp(np.where(rows.y > -math.inf, rows.y, rows.y.max()), axis=(-2, -1))
        found["given up"] += int((spans > 1e6 * rows.t[..., 0]).any())
        return rows

    monkeypatch.setattr(sight, "near", watched)
    return found


@every_link
def test_scores_of_any_size_take_at_most_200_passes_by_kernels(link, counted, kernels_on):
    """A matrix of 2 × 3 scores of 1e10 took 509, and left the kernels for 497 of them."""
    for size in (1e5, 1e10, 1e100):
        for m, n, k in ((2, 3, 1.2), (8, 5, 2)):
            counted.update({"passes": 0, "given up": 0})
            w = soft_assignment(matrix(m, n) * size, k, link=link)
            assert abs(w.sum(1) - k).max() < 1e-6
            assert abs(w.sum(0) - m * k / n).max() < 1e-3
            assert counted["passes"] <= 200
            if size < 1e11:
                assert counted["given up"] == 0


@pytest.mark.parametrize("link", ["logistic", "linear"])
def test_blocks_at_a_low_temperature_take_few_passes_by_kernels(link, counted, kernels_on):
    """60 × 60 scores took 22 s."""
    w = soft_assignment(matrix(60, 60), 3, link=link, temperature=1e-9, mask=BLOCKS)
    assert abs(w.sum(1) - 3).max() < 1e-6
    assert abs(w.sum(0) - 3).max() < 1e-3
    assert counted["passes"] <= 200
    assert counted["given up"] == 0


@every_link
def test_scores_next_to_the_greatest_float_have_their_margins(link):
    for size in (1e150, 1e300, 1e306):
        w = soft_assignment(matrix(8, 5) * size, 2, link=link)
        assert abs(w.sum(1) - 2).max() < 1e-6
        assert abs(w.sum(0) - 3.2).max() < 1e-3
        _, best = linear_program(matrix(8, 5), np.full(8, 2.0), np.full(5, 3.2))
        assert (w * matrix(8, 5)).sum() > 0.5 * best


@pytest.mark.parametrize("alpha", full_but((8.0,), (3.0, 8.0, 20.0)))
def test_links_with_infinite_slopes_have_their_margins(alpha):
    """The temperature is raised: next to 0, weights are roots of what prices leave."""
    for t in (1.0, 1e-3):
        w = soft_assignment(matrix(8, 5), 2, link=links.entmax(alpha), temperature=t)
        assert abs(w.sum(1) - 2).max() < 1e-6
        assert abs(w.sum(0) - 3.2).max() < 1e-2


@pytest.mark.parametrize("link", [link for link in LINKS if link not in ("normal", "laplace")])
def test_margins_next_to_whole_numbers_are_met(link):
    """Most of these ended as NaN where links have ends: ground is flat but for narrow ramps."""
    rng = np.random.default_rng(0)
    x, whole = rng.standard_normal((12, 4, 3)), (rng.random((12, 4, 3)) < 0.5) * 1.0
    for part in (1e-6, 1e-2):
        plan = (1 - part) * whole + part * rng.random((12, 4, 3))
        for t in (0.5, 0.1):
            w = soft_assignment(x, plan.sum(-1), plan.sum(-2), link=link, temperature=t)
            assert not np.isnan(w).any()
            assert abs(w.sum(-1) - plan.sum(-1)).max() < 1e-8
            assert np.median(abs(w.sum(-2) - plan.sum(-2)).max(-1)) < 1e-9
            assert abs(w.sum(-2) - plan.sum(-2)).max() < 1e-5


def test_margins_that_no_weights_have_take_no_search(counted):
    """They took 200 passes, and the others of a batch with them."""
    x = np.stack([matrix(6, 4), matrix(6, 4, 1)])
    x[0, 1:, 0] = -math.inf
    w = soft_assignment(x, np.full(6, 1.5), temperature=0.5)
    assert np.isnan(w[0]).all()
    assert abs(w[1].sum(0) - 2.25).max() < 1e-9
    assert counted["passes"] < 8


# One bad entry, and none.


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@every_link
def test_a_bad_entry_leaves_the_bits_of_other_matrices(link, bad):
    x = torch.tensor(
        np.stack([matrix(6, 4, seed) * size for seed, size in enumerate((1, 30, 1e6))])
    )
    k = torch.tensor([1.0, 2, 1, 1, 2, 1], dtype=torch.float64)
    broken = torch.cat([x[:1], x])
    broken[0, 2, 1] = bad

    def answers(x):
        x = x.clone().requires_grad_()
        w = soft_assignment(x, k, link=link)
        (w[-3:] ** 2).sum().backward()
        return w[-3:], x.grad[-3:], w[0]

    (w, slope, _), (wanted, expected, _) = answers(broken), answers(torch.cat([x[:1], x]))
    assert torch.equal(w, wanted)
    assert torch.equal(slope, expected)
    assert answers(broken)[2].isnan().all() == (bad != -math.inf)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_matrices_without_entries_have_a_graph(shape, hard):
    *batch, m, n = shape
    given = [torch.zeros(size, requires_grad=True) for size in (shape, (*batch, m), (*batch, n))]
    given.append(torch.ones(batch, requires_grad=True))
    w = soft_assignment(*given[:3], temperature=given[3], hard=hard)
    assert w.shape == shape
    for argument, slope in zip(given, torch.autograd.grad(w.sum(), given), strict=True):
        assert slope.shape == argument.shape
        assert torch.all(slope == 0)
    jax = pytest.importorskip("jax")
    slope = jax.grad(lambda x: soft_assignment(x, 0, hard=hard).sum())(jax.numpy.zeros(shape))
    assert slope.shape == shape
    assert soft_assignment(np.zeros(shape), 0, hard=hard).shape == shape


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 4, 3), (2, 0, 3)])
def test_prices_of_matrices_without_entries_are_nan_with_a_graph(shape):
    *batch, m, n = shape
    given = [torch.zeros(size, requires_grad=True) for size in (shape, (*batch, m), (*batch, n))]
    rows, columns = soft_assignment_prices(*given)
    assert (rows.shape, columns.shape) == ((*batch, m), (*batch, n))
    assert rows.isnan().all()
    assert columns.isnan().all()
    for slope in torch.autograd.grad(rows.sum() + columns.sum(), given):
        assert torch.all(slope == 0)


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    full_but(
        [(20, 1e-3, (4, 3))], list(product((2, 4, 8, 20), (1, 0.1, 1e-3), ((4, 3), (3, 4), (5, 5))))
    ),
    ids=str,
)
def test_margins_next_to_whole_numbers_are_met_at_a_raised_temperature(case):
    """A weight of 1e-6 needs z = 1e-114 with entmax(20): no float is so close to a price."""
    alpha, temperature, shape = case
    (m, n), near = shape, torch.tensor([0, 1e-9, -1e-9, 1e-7, -1e-7, 1e-6, -1e-6, 1e-4, -1e-4])
    near = near.to(torch.float64)
    made = torch.Generator().manual_seed(10 * m + n)
    scores = torch.randn(m, n, dtype=torch.float64, generator=made).expand(len(near), m, n)
    k, c = (torch.ones(len(near), size, dtype=torch.float64) for size in shape)
    k[:, 0] += near + max(n - m, 0)
    k[:, 1] -= near / 3
    c[:, 0] += max(m - n, 0)
    c[:, -1] += k.sum(-1) - c.sum(-1)
    p = soft_assignment(scores, k, c, link=links.entmax(float(alpha)), temperature=temperature)
    for axis, margin in ((-1, k), (-2, c)):
        assert (p.sum(axis) - margin).abs().max() < 1e-4
