"""The search for the prices of soft assignment by a GPU's kernels, against array code on a CPU."""

import math
from itertools import pairwise

import pytest
import torch

import kofn
from benchmarks.gpu import counted, stand_in
from kofn.arrays.kinds import namespace
from kofn.kernels import prices
from kofn.kernels.gpu.doubles import launch
from kofn.kernels.gpu.doubles.recorded import rules_of
from kofn.maps.assignment import newton, on_device
from support import BOUNDED, TWO_TAILS

COUNT, N = 4096, 3


def states(draw):
    """Numbers of matrices in all states that a search may be in, and some that it may not."""

    def uniform(low, high):
        return low + (high - low) * torch.rand(COUNT, generator=draw, dtype=torch.float64)

    def one_of(*values):
        table = torch.tensor(values, dtype=torch.float64)
        return table[torch.randint(len(values), (COUNT,), generator=draw)]

    numbers = {name: uniform(0, 1) for name in prices.Numbers._fields}
    given = one_of(1.0, 0.01)
    numbers |= dict(
        given=given,
        t=given * one_of(1.0, 1.0, 1.1, 4.0, 1e5),
        spread=10 ** uniform(-2, 6),
        length=one_of(1.0, 1.0, 0.5, 0.21, 1e-9),
        gain=10 ** uniform(-14, 2) * one_of(1.0, 1.0, -1.0),
        damping=10 ** uniform(-9, 6),
        retried=one_of(0.0, 1.0),
        low=one_of(0.0, 0.3),
        high=one_of(1.0, 1.0, 0.6),
        best=10 ** uniform(-14, 2),
        stalled=one_of(*range(10)),
        passes=one_of(0, 1, 3, 4, 8, 9, 10, 11, 39, 40, 59, 60),
        ratio=one_of(4.0, 16.0, 1e6),
        active=one_of(1.0, 1.0, 1.0, 0.0),
        met=one_of(0.0, 0.0, 1.0),
    )
    numbers["hot"] = numbers["t"] * one_of(0.0, 0.0, 1.1, 4.0, 256.0)
    looked = dict(
        curved=10 ** uniform(-14, 2) * one_of(1.0, 1.0, 0.0),
        farthest=10 ** uniform(-2, 16) * one_of(1.0, 1.0, 1.0, 0.0, math.inf),
    )
    size = 10 ** uniform(-14, 3) * one_of(*[1.0] * 20, math.nan, math.inf, 0.0)
    columns = [torch.randn(COUNT, N, generator=draw, dtype=torch.float64) for _ in range(5)]
    *columns, excess = columns
    columns[2][::3] *= 1e-9
    return prices.Numbers(**numbers), looked, prices.Columns(*columns), excess * size[:, None]


def as_flags(numbers):
    return numbers._replace(**{name: getattr(numbers, name) != 0 for name in prices.FLAGS})


def test_what_is_decided_is_that_of_array_code():
    """Of thousands of random states, every flag, and every number to its last digits."""
    draw = torch.Generator().manual_seed(3)
    numbers, looked, columns, excess = states(draw)
    room = torch.rand(COUNT, N, generator=draw, dtype=torch.float64) + 0.5
    fixed = torch.stack([torch.zeros_like(room), room, room])
    rules = rules_of(on_device.rule, prices.Numbers, prices.Looked, prices.Columns, prices.FLAGS)
    out, columns_out = (torch.full(s, math.nan, dtype=room.dtype) for s in (
        (len(numbers), COUNT), (5, COUNT, N)
    ))  # fmt: skip
    given = launch.Matrices(
        torch.stack(numbers), torch.stack(columns), fixed, excess[None], COUNT, N
    )
    arrays = looked["curved"], looked["farthest"], out, columns_out
    launch.judge[1,](given, *arrays, rules, COUNT, launch.shape_of(N)[1])

    error = (excess.abs() / room).amax(-1)
    seen = prices.Looked(error=error, rest=(excess * columns.step).sum(-1), **looked)
    wanted, found_columns = on_device.rule(namespace(room), as_flags(numbers), seen, columns)
    found = as_flags(prices.Numbers(*out))
    for name in prices.FLAGS:
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
        assert 0 < getattr(wanted, name).sum() < COUNT, name
    for name, one in found._asdict().items():
        other = getattr(wanted, name)
        torch.testing.assert_close(
            one,
            other,
            rtol=1e-13,
            atol=0,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    for one, other in zip(columns_out, (*found_columns, excess), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13, equal_nan=True)


def drawn(*shape, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_different_difficulty():
    """Easy, cold, far and masked matrices, and some without weights."""
    x = drawn(6, 7, 4) * torch.tensor([1.0, 1.0, 30.0, 1.0, 1.0, 1.0])[:, None, None]
    x[3, :3, 1], x[3, 5] = -math.inf, -math.inf
    x[4, 2, 2], x[5, 1, 0] = math.nan, math.inf
    t = torch.tensor([1.0, 0.05, 0.5, 0.3, 1.0, 1.0], dtype=torch.float64)
    return (x, torch.full((7,), 1.3, dtype=x.dtype)), dict(temperature=t)


def with_closed_margins():
    """Rows that take nothing or all, and columns alike."""
    k = torch.tensor([0.0, 3.0, 1.5, 1.0, 0.5, 2.0], dtype=torch.float64)
    c = torch.tensor([[6.0, 0.8, 1.2], [5.0, 3.0, 0.0], [2.5, 2.5, 3.0]], dtype=torch.float64)
    c[0] = torch.tensor([5.0, 1.0, 2.0])
    return (drawn(3, 6, 3), k, c), dict(temperature=0.4)


def wide():
    return (drawn(2, 2, 3, 9), 2), dict(temperature=0.1)


def one_of_one_column():
    return (drawn(5, 1), 0.4), {}


def near_whole_margins():
    draw = torch.Generator().manual_seed(2)
    plan = (torch.rand(2, 4, 3, generator=draw) < 0.5).double() * (1 - 1e-6)
    plan += 1e-6 * torch.rand(2, 4, 3, generator=draw, dtype=torch.float64)
    return (drawn(2, 4, 3), plan.sum(-1), plan.sum(-2)), dict(temperature=0.3)


def far_apart():
    """The temperature is raised: floats resolve no prices that meet the margins at 1."""
    return (drawn(3, 2) * 1e30, 1.2), {}


CASES = (
    *(of_different_difficulty, with_closed_margins, wide, one_of_one_column, near_whole_margins),
    pytest.param(far_apart, marks=pytest.mark.full),
)


def answers_and_slopes(given, how, link):
    leaves = [x.clone().requires_grad_() for x in given if isinstance(x, torch.Tensor)]
    rest = [x for x in given if not isinstance(x, torch.Tensor)]
    out = kofn.soft_assignment(*leaves, *rest, link=link, **how)
    v = torch.linspace(-1, 2.1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return out.detach(), *torch.autograd.grad(out, leaves, v)


@pytest.mark.parametrize("link", [TWO_TAILS[0], BOUNDED[0], TWO_TAILS[-1]])
@pytest.mark.parametrize("case", CASES, ids=lambda case: getattr(case, "__name__", "far_apart"))
def test_hard_matrices_have_the_answers_of_array_code(case, link, monkeypatch):
    monkeypatch.undo()
    given, how = case()
    wanted = answers_and_slopes(given, how, link)
    with stand_in.for_device():
        found = answers_and_slopes(given, how, link)
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=1e-10, equal_nan=True)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        unit = max(1.0, float(other.abs().nan_to_num(0, 0, 0).max()))
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7 * unit, equal_nan=True)


@pytest.mark.parametrize("link", ["logistic", "linear"])
def test_a_pass_takes_at_most_25_launches_and_waits_once(link, monkeypatch):
    """The most that a pass may ask for: Newton's step, and thresholds of columns, in one batch."""
    monkeypatch.undo()
    x, seen, plain = drawn(2, 5, 3), [], launch.Search.judged
    t = torch.tensor([1.0, 0.02], dtype=torch.float64)

    def judged(search):
        seen.append((sum(tally.of.values()), tally.waits, search.moving, search.by_columns))
        return plain(search)

    monkeypatch.setattr(launch.Search, "judged", judged)
    with counted.counting() as tally:
        kofn.soft_assignment(x, 1.2, temperature=t, link=link)
    assert any(moving and by_columns for *_, moving, by_columns in seen)
    for before, after in pairwise(seen):
        assert after[0] - before[0] <= 25
        assert after[1] - before[1] == 1


def test_many_columns_take_conjugate_gradients(monkeypatch):
    monkeypatch.undo()
    given, how = wide()
    wanted = kofn.soft_assignment(*given, **how)
    taken, plain = [], newton.conjugate
    monkeypatch.setattr(newton, "conjugate", lambda *given: taken.append(1) or plain(*given))
    for each in (newton, on_device):
        monkeypatch.setattr(each, "DENSE", 2)
    with stand_in.for_device():
        found = kofn.soft_assignment(*given, **how)
    assert taken
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
