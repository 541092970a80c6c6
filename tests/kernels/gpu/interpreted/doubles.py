"""Rows of float64, and soft assignment, by a GPU's kernels, against array code and a CPU's."""

import math

import pytest
import torch

import kofn
from benchmarks.gpu import stand_in
from kofn import links as of_links
from kofn.formulas import answers, pullbacks
from kofn.kernels.gpu.doubles import launch
from kofn.kernels.gpu.rows import launch as of_rows
from kofn.links import table
from kofn.rows.given import Given
from kofn.rows.settled import rows_of
from kofn.solver.reductions import DENSE
from kofn.solver.threshold import solve
from support import LINKS

N = 8
EVERY = [*LINKS, of_links.entmax(2.0), of_links.entmax(1.3)]
NUMBERS = 0.001, 1.0, 2.0, 2.6, 4.999, 5.0, 0.0, 8.0, math.nan


def matrices():
    """Ordinary rows, tied and equal ones, wide ones, scores out of play, and next to the ends."""
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(8, N, generator=draw, dtype=torch.float64)
    x[1] = x[1].round()
    x[2] = 0.5
    x[3] *= 1e7
    x[4, ::3] = -math.inf
    x[5] += torch.tensor([0.0, 1e6] * 4)
    x[6, :2], x[7] = 40.0, x[7] * 1e-9 + 1e3
    every = x.expand(len(NUMBERS), 8, N).clone()
    every[0, 0, :2], every[1, 1, 2], every[3, 2, 0] = math.inf, math.nan, math.inf
    return every


def numbers(t):
    k = torch.tensor(NUMBERS, dtype=torch.float64)[:, None].expand(-1, 8)
    return k, t * torch.linspace(1, 2, len(NUMBERS), dtype=torch.float64)[:, None].expand(-1, 8)


@pytest.fixture(autouse=True)
def many_at_once(monkeypatch):
    """Each program has all rows, for the interpreter takes as long for one."""
    monkeypatch.setattr(of_rows, "empty", lambda x, shape: x.new_full(shape, math.nan))
    monkeypatch.setattr(launch, "shape_of", lambda n: (128, N, 1))


@pytest.mark.parametrize("t", [1.0, 0.03, 30.0])
@pytest.mark.parametrize("link", EVERY, ids=str)
def test_weights_are_those_of_array_code(link, t):
    link, x, (k, temperature) = table.resolve(link).inner, matrices(), numbers(t)
    rows = rows_of(Given(x, k, temperature, link))
    theta = solve(rows.scores, rows.k, rows.temperature, rows.link)
    wanted = answers.weights(rows, theta=theta)
    found, pair, lost = launch.weights(x, k, temperature, link)
    assert not lost
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=4e-15, equal_nan=True)
    alone, _ = launch.threshold(x, k, temperature, link)
    torch.testing.assert_close(alone, pair, rtol=0, atol=0, equal_nan=True)

    v = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
    in_x, in_rows = launch.gradients(x, v, pair, k, temperature, link)
    slopes, of_k, in_t = pullbacks.of_weights(v, rows, (pair[0], pair[1]), DENSE)
    z = ((x - pair[0, ..., None]) - pair[1, ..., None]) / temperature[..., None]
    far = 1 + z.nan_to_num(0, 0, 0).abs().amax(-1)
    # Where θ is such that an entry is at a kink, either side's slope will do.
    kinks = [] if link.order is None else [at for at, _ in link.kinks]
    alike = ~torch.stack([(z - at).abs() < 1e-12 for at in (math.nan, *kinks)]).any(0).any(-1)
    for one, other, unit in (
        (in_x, slopes, 1 / temperature[..., None]),
        (in_rows[0], of_k(), 1.0),
        (in_rows[1], in_t, far / temperature),
    ):
        one, other = ((each / unit)[alike] for each in (one, other))
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("link", EVERY, ids=str)
def test_prices_come_off_the_scores(link):
    link = table.resolve(link).inner
    x, (k, t) = matrices()[1:3, :, :], (each[1:3] for each in numbers(0.7))
    beta = torch.linspace(-1, 1, 2 * N, dtype=torch.float64).reshape(2, N)
    y = x - beta[:, None]
    (found, slopes), pair = launch.priced(x, k, t, link, beta)
    wanted, theta, _ = launch.weights(y, k, t, link)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(pair, theta, rtol=0, atol=0, equal_nan=True)
    is_open = (wanted > 0) & (wanted < 1)
    z = ((y - pair[0, ..., None]) - pair[1, ..., None]) / t[..., None]
    exact = link.pdf(torch.where(is_open, z, link.median(z)))
    torch.testing.assert_close(slopes[is_open], exact[is_open], rtol=1e-9, atol=1e-15)


FUNCTIONS = {
    "weights": kofn.soft_assignment,
    "hard": lambda *given, **how: kofn.soft_assignment(*given, **how, hard=True),
    "prices": lambda *given, **how: torch.cat(kofn.soft_assignment_prices(*given, **how), -1),
}


def pulled(function, dtype, t, link):
    """Return the answer for some matrices, one with scores out of play, and the cotangents."""
    draw = torch.Generator().manual_seed(8)
    x = torch.randn(2, 5, 3, generator=draw)
    x[1, :2, 1] = -math.inf
    given = x, torch.tensor([2.0, 1.6, 1.4]), torch.tensor([t, 2 * t])
    leaves = [each.to(dtype).requires_grad_() for each in given]
    out = function(leaves[0], 1, leaves[1], temperature=leaves[2], link=link)
    v = torch.linspace(-1, 2.1, out.numel(), dtype=dtype).reshape(out.shape)
    return out.detach(), *torch.autograd.grad(out, leaves, v)


# Of a link with ends, any price is one where a row has whole weights.
PAIRS = [
    pytest.param(link, function, id=f"{link}-{function}")
    for link in EVERY
    for function in FUNCTIONS
    if function != "prices" or table.resolve(link).inner.order is None
]


@pytest.mark.parametrize(("link", "function"), PAIRS)
def test_assignments_are_a_cpus(link, function, monkeypatch):
    monkeypatch.undo()
    dtype = torch.float64 if function == "weights" else torch.float32
    wanted = pulled(FUNCTIONS[function], dtype, 1.0, link)
    with stand_in.for_device():
        found = pulled(FUNCTIONS[function], dtype, 1.0, link)
    bound = 1e-8 if dtype == torch.float64 else 1e-5
    for one, other in zip(found, wanted, strict=True):
        unit = max(1.0, float(other.abs().nan_to_num(0, 0, 0).max()))
        torch.testing.assert_close(one, other, rtol=bound, atol=bound * unit, equal_nan=True)


LOW = [("linear", 0.05), *(pytest.param(one, 0.01, marks=pytest.mark.full) for one in EVERY)]


@pytest.mark.parametrize(("link", "t"), LOW, ids=str)
def test_assignments_at_low_temperatures_meet_the_margins(link, t, monkeypatch):
    monkeypatch.undo()
    draw = torch.Generator().manual_seed(9)
    x = torch.randn(1, 5, 3, generator=draw, dtype=torch.float64)
    capacity = torch.tensor([2.0, 1.6, 1.4], dtype=torch.float64)
    with stand_in.for_device():
        found = kofn.soft_assignment(x, 1, capacity, temperature=t, link=link)
    for sums, margin in ((found.sum(-1), 1.0), (found.sum(-2), capacity)):
        assert (sums - margin).abs().max() < 1e-9
    wanted = kofn.soft_assignment(x, 1, capacity, temperature=t, link=link)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-7)
