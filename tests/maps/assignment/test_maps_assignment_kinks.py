"""Derivatives of soft_assignment where links have ends and margins are whole or closed.

There a margin that grows moves another entry off its end than one that falls. By one-sided
differences, the derivative lies between these two, or it is 0 where it is one in a margin.
"""

import numpy as np
import pytest
import torch

from kofn import links, soft_assignment
from support import BOUNDED, LINKS, every_link

STEP = 1e-6


def drawn(seed, m, n, first):
    """Scores, a cotangent, and whole margins; the first row takes nothing, all, or neither."""
    rng = np.random.default_rng(seed)
    plan = (rng.random((m, n)) < 0.5) * 1.0
    if first is not None:
        plan[0] = first
    return [torch.tensor(a) for a in (*rng.standard_normal((2, m, n)), plan.sum(1), plan.sum(0))]


def loss(v, link):
    def of(x, k, c, t):
        return (soft_assignment(x, k, c, link=link, temperature=t) * v).sum((-2, -1))

    return of


def neighbours(given):
    """Each entry of each argument a step up and down: which, by how much, the arguments."""
    for i, argument in enumerate(given):
        for j in range(argument.numel()):
            for step in (STEP, -STEP):
                changed = [each.clone() for each in given]
                changed[i].view(-1)[j] += step
                yield (i, j), step, changed


DRAWINGS = [(seed, shape, t) for seed, t in ((0, 0.1), (1, 20.0)) for shape in ((4, 3), (4, 5))]
"""Seeds, shapes, and temperatures: hard, and soft."""


@pytest.mark.parametrize("first", [None, 0.0, 1.0])
@pytest.mark.parametrize("drawing", DRAWINGS)
@every_link
def test_a_derivative_lies_between_one_sided_differences_or_is_0_in_a_margin(link, drawing, first):
    seed, shape, temperature = drawing
    moved = 0
    x, v, k, c = drawn(seed, *shape, first)
    given = [x, k, c, torch.tensor(temperature, dtype=torch.float64)]
    leaves = [each.clone().requires_grad_() for each in given]
    start = loss(v, link)(*leaves)
    slopes = torch.autograd.grad(start, leaves)
    which, steps, changed = zip(*neighbours(given), strict=True)
    values = loss(v, link)(*map(torch.stack, zip(*changed, strict=True)))
    found = {}
    for at, step, value in zip(which, steps, values.tolist(), strict=True):
        if value == value:  # a margin beyond its end is NaN
            found.setdefault(at, []).append((value - start.item()) / step)
    for (i, j), sides in found.items():
        slope, tolerance = slopes[i].reshape(-1)[j].item(), 1e-3 * (1 + max(map(abs, sides)))
        between = min(sides) - tolerance <= slope <= max(sides) + tolerance
        assert between or (i in (1, 2) and slope == 0), (i, j, slope, sides)
        moved += i in (1, 2) and slope != 0
    # Where the matrix is not in parts, margins have derivatives.
    assert moved > 0 or shape == (4, 5) or temperature < 1


def test_gradients_of_whole_margins_are_not_those_of_rounding_errors():
    """An inverse of a matrix without one gave −116 to −349 where the differences are below 2."""
    r = torch.Generator().manual_seed(2)
    x, v = (torch.randn(4, 3, dtype=torch.float64, generator=r) for _ in range(2))
    k, c = torch.ones(4, dtype=torch.float64), torch.tensor([2.0, 1, 1], dtype=torch.float64)
    for link in LINKS:
        for t in (0.3, 0.03, 0.01):
            leaves = [each.clone().requires_grad_() for each in (x, k, c)]
            slopes = torch.autograd.grad(loss(v, link)(*leaves, t), leaves)
            assert all(slope.abs().max() < 2.5 for slope in slopes[1:])


@pytest.mark.parametrize("link", BOUNDED)
def test_second_derivatives_are_those_of_the_first(link):
    x, v, k, c = drawn(5, 4, 3, 1.0)
    t = torch.tensor(0.5, dtype=torch.float64)
    given, of = [x, k, c, t], loss(v, link)

    def slopes(*given):
        leaves = [each.clone().requires_grad_() for each in given]
        return leaves, torch.autograd.grad(of(*leaves), leaves, create_graph=True)

    leaves, first = slopes(*given)
    u = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    second = torch.autograd.grad((first[0] * u).sum() + first[3], leaves, allow_unused=True)
    for i in (0, 3):
        direction = u if i == 0 else torch.ones(())
        ends = []
        for step in (STEP, -STEP):
            changed = [each + step * direction if j == i else each for j, each in enumerate(given)]
            _, near = slopes(*changed)
            ends.append(((near[0] * u).sum() + near[3]).item())
        wanted = (ends[0] - ends[1]) / (2 * STEP)
        assert abs((second[i] * direction).sum().item() - wanted) < 1e-4 * (1 + abs(wanted))
    assert all(one is None or torch.all(one == 0) for one in second[1:3])


def test_jax_has_the_same_derivatives():
    jax = pytest.importorskip("jax")
    x, v, k, c = drawn(3, 4, 3, 1.0)
    leaves = [each.clone().requires_grad_() for each in (x, k, c)]
    wanted = torch.autograd.grad(loss(v, "linear")(*leaves, 0.3), leaves)

    def of(x, k, c):
        return (soft_assignment(x, k, c, link="linear", temperature=0.3) * v.numpy()).sum()

    found = jax.grad(of, (0, 1, 2))(*(jax.numpy.asarray(each.numpy()) for each in (x, k, c)))
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(np.asarray(one) - other.numpy()).max() < 1e-9


@pytest.mark.parametrize("link", [links.linear, links.entmax(2.0)], ids=str)
def test_scores_at_an_end_of_the_support_count_as_outside(link):
    """Two entries of this matrix are there; counted as inside, their slopes were of no place."""
    x = torch.tensor([[0.0, 1, -2, 0], [1, -1, 2, 0], [2, 0, 0, 1]], dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [True, True, False, True], [True] * 4])
    outwards = torch.zeros_like(x)
    outwards[0, 0] = outwards[2, 3] = -1e-6
    rng = torch.Generator().manual_seed(0)
    v = torch.randn(3, 4, dtype=torch.float64, generator=rng)

    def slopes(x):
        x = x.clone().requires_grad_()
        found = soft_assignment(x, torch.tensor([2.0, 1, 1]).double(), 1.0, link=link, mask=mask)
        return found.detach(), torch.autograd.grad((found * v).sum(), x)[0]

    (here, slope), (nearby, wanted) = slopes(x), slopes(x + outwards)
    assert (here[0, 0], here[2, 3]) == (0, 0)
    assert (here - nearby).abs().max() < 1e-12
    assert (slope - wanted).abs().max() < 1e-9
    assert wanted.abs().max() > 0.1
