"""kofn.distributed: rows in several processes have the answers and gradients of whole ones."""

import contextlib
import os

import numpy as np
import pytest
import torch
from torch import distributed

import kofn
from kofn import links
from ranks import joined, run_on_ranks
from support import BOUNDED, LINKS, TWO_TAILS

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="PyTorch without torch.distributed"
)

CUTS = {1: (0, 40), 2: (0, 13, 40), 4: (0, 0, 7, 30, 40)}  # uneven, and one shard empty


def mine(x, dim=-1):
    """This rank's shard."""
    cuts, rank = CUTS[distributed.get_world_size()], distributed.get_rank()
    return x.narrow(dim, cuts[rank], cuts[rank + 1] - cuts[rank])


@contextlib.contextmanager
def counted():
    """The sizes of the messages of all collectives, in bytes."""
    sizes, before = [], distributed.all_reduce

    def all_reduce(message, *others):
        sizes.append(message.numel() * message.element_size())
        return before(message, *others)

    distributed.all_reduce = all_reduce
    try:
        yield sizes
    finally:
        distributed.all_reduce = before


def rows(std=2.0, n=40):
    return torch.from_numpy(np.random.default_rng(0).normal(0, std, (3, 2, n))).float()


K = torch.tensor([[1.0, 3.5], [0.0, 40.0], [20.5, 37.0]])
T = torch.tensor([[1.0, 0.3], [1.0, 2.0], [0.05, 1.0]])

MAPS = {
    **{
        link: lambda f, x, k, t, link=link: f.soft_topk(x, k, temperature=t, link=link)
        for link in LINKS
    },
    "hard": lambda f, x, k, t: f.soft_topk(x, k, temperature=t, hard=True),
    "threshold": lambda f, x, k, t: f.soft_topk_threshold(x, k, temperature=t, link="normal"),
    "sum": lambda f, x, k, t: f.soft_topk_sum(x, k, temperature=t),
    "sum of linear": lambda f, x, k, t: f.soft_topk_sum(x, k, temperature=t, link="linear"),
    "softmax": lambda f, x, k, t: f.softmax(x, temperature=t),
    "sparsemax": lambda f, x, k, t: f.sparsemax(x, temperature=t),
    "entmax 1.3": lambda f, x, k, t: f.entmax(x, 1.3, temperature=t),
}


def differentiated(function, f, x, v, dtype=torch.float32):
    x, k, t = (one.to(dtype, copy=True).requires_grad_() for one in (x, K, T))
    answer = function(f, x, k, t)
    v = v if answer.shape == x.shape else v[..., 0]
    v = v.to(answer.dtype)
    torch.where(answer.isfinite(), answer * v, 0.0).sum().backward()
    return (
        answer.detach(),
        x.grad,
        *(torch.zeros(3, 2) if a.grad is None else a.grad for a in (k, t)),
    )


def close(found, wanted, atol):
    return torch.allclose(found, wanted, atol=atol, rtol=1e-5, equal_nan=True)


def same_as_whole():
    """Weights, thresholds and sums, and the gradients of scores, k and temperature."""
    x, v = rows(), rows(1.0).flip(-1)
    wrong = []
    v[..., 0] = 0.7  # of what there is per row, the same cotangent on all ranks
    for name, function in MAPS.items():
        wanted = differentiated(function, kofn, x, v)
        weights = mine(v)
        if wanted[0].ndim == 2:
            weights = v
        found = differentiated(function, kofn.distributed, mine(x), weights)
        pairs = zip(found, wanted, ("answer", "x", "k", "T"), strict=True)
        for ours, whole, what in pairs:
            atol = 2e-6 * (1 + whole.nan_to_num(0, 0, 0).abs().max())
            whole = mine(whole) if whole.ndim == 3 else whole
            if not close(ours, whole, atol):
                wrong.append(f"{name}, {what}: {ours - whole}")
    assert not wrong, "\n".join(wrong)


def knapsacks():
    """Weights, prices and values, and their gradients, +inf among the scores or not."""
    f, x, v = kofn.distributed, rows(), rows(1.0).flip(-1)
    costs = torch.rand(3, 2, 40, generator=torch.Generator().manual_seed(0)) * 3
    costs[:, :, ::7] = 0.0
    budget = torch.tensor([[3.0, 7.0], [0.0, 500.0], [20.0, 2.0]])
    for name, link in (
        ("", "logistic"),
        ("", "normal"),
        ("_threshold", "normal"),
        ("_value", "logistic"),
    ):
        for top in (False, True):
            y = x.clone()
            y[2, :, 5 : 9 if top else 5] = torch.inf
            y[0, 0, 3] = -torch.inf

            def of(f, y, costs, v, name=name, link=link):
                given = y, costs, budget, T
                y, c, b, t = (one.clone().requires_grad_() for one in given)
                answer = getattr(f, f"soft_knapsack{name}")(y, c, b, temperature=t, link=link)
                v = v if answer.ndim == 3 else v[..., 0]
                torch.where(answer.isfinite(), answer * v, 0.0).sum().backward()
                return answer.detach(), y.grad, c.grad, b.grad, t.grad

            w = v.clone()
            w[..., 0] = 0.7
            wanted = of(kofn, y, costs, w)
            found = of(f, mine(y), mine(costs), w if name else mine(w))
            for ours, whole, what in zip(found, wanted, "pxcbt", strict=True):
                whole = mine(whole) if whole.ndim == 3 else whole
                assert close(ours, whole, 5e-6), (name, link, top, what, ours, whole)


def hard_knapsacks():
    """What is bought, exactly; of equally dense entries, the first ones of the whole row."""
    f, x = kofn.distributed, special_rows().round(decimals=1)
    # Sums of these costs are exact. Every seventh entry costs nothing.
    costs = (1 + torch.arange(40) % 4).float().repeat(12, 1)
    costs[:, ::7] = 0.0
    costs[10, 5] = -1.0
    twins = torch.ones(12, 40), torch.ones(12, 40)
    budgets = 0.0, 7.0, 30, 1e3, torch.inf, torch.arange(12.0) * 8 - 4
    for y, c in ((x, costs), twins, (costs.flip(-1), costs)):
        for budget in budgets:
            given = y.clone().requires_grad_(), mine(y).clone().requires_grad_()
            wanted = kofn.soft_knapsack(given[0], c, budget, hard=True)
            found = f.soft_knapsack(given[1], mine(c), budget, hard=True)
            assert torch.equal(mine(wanted).nan_to_num(9), found.nan_to_num(9)), (budget, found)
            with torch.no_grad():
                alone = f.soft_knapsack(given[1], mine(c), budget, hard=True)
            assert torch.equal(alone.nan_to_num(9), found.nan_to_num(9)), budget
            v = x.nan_to_num(0.0, 0.0, 0.0)
            for p, w in ((wanted, v), (found, mine(v))):
                torch.where(p.isfinite(), p * w, 0.0).sum().backward()
            parts_equal("gradient", given[1].grad, given[0].grad, 1e-5)
    with counted() as sizes, torch.no_grad():
        f.soft_knapsack(mine(x), mine(costs), 30.0, hard=True)
    assert len(sizes) <= 30, len(sizes)
    assert max(sizes) <= 64 * 12, sizes


def parts_equal(name, found, wanted, atol=2e-6):
    wanted = mine(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
    assert close(found, wanted, atol), f"{name}: {found - wanted}"


def special_rows():
    """Every special case of docs/behaviour.md in a row of its own; the third is for all of them."""
    x = rows()[:, 0].repeat(4, 1)
    x[0, 5:20] = -torch.inf
    x[1] = -torch.inf
    x[2, 20] = torch.nan
    x[3, [3, 30]] = torch.inf
    x[4, 10:] = torch.inf
    x[5, 13:] = 1.0
    x[6, 3], x[6, 33] = torch.nan, torch.inf
    x[7] = 0.0
    x[8] *= 1e4
    x[9, 2] = torch.finfo(torch.float32).min
    return x


def special_cases():
    x = special_rows()
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[2, 20] = mask[10, :25] = mask[11] = False
    f = kofn.distributed
    for k in (0, 2, 2.5, 40, torch.arange(12.0) * 3):
        for m in (None, mask):
            part = None if m is None else mine(m)
            for hard in (False, True):
                found = f.soft_topk(mine(x), k, mask=part, hard=hard)
                parts_equal(("soft", k, hard), found, kofn.soft_topk(x, k, mask=m, hard=hard))
            parts_equal(
                ("hard", k), f.hard_topk(mine(x), k, mask=part), kofn.hard_topk(x, k, mask=m)
            )
            for name in ("soft_topk_threshold", "soft_topk_sum"):
                found = getattr(f, name)(mine(x), k, mask=part)
                wanted = getattr(kofn, name)(x, k, mask=m)
                near = torch.isclose(found, wanted, atol=2e-5, rtol=1e-4, equal_nan=True)
                assert near.all(), (name, k, found, wanted)
    parts_equal("softmax", f.softmax(mine(x)), kofn.softmax(x))
    some = torch.arange(40) % 3 > 0  # masked entries are 0 also in a row with a NaN
    parts_equal("softmax, masked", f.softmax(mine(x), mask=mine(some)), kofn.softmax(x, mask=some))
    parts_equal("sparsemax", f.sparsemax(mine(x)), kofn.sparsemax(x))


def nan_gradients():
    """A row with a NaN has gradients that are NaN, but for entries that do not count."""
    x = rows()[:, 0]
    x[1, 20], x[1, 7], x[1, 30] = torch.nan, -torch.inf, -torch.inf
    v = torch.linspace(-1, 1, 40)
    for name, function in MAPS.items():
        found, wanted = [], []
        for f, to, part in ((kofn.distributed, found, mine), (kofn, wanted, lambda x: x)):
            given = part(x).clone(), torch.full((3,), 4.0), torch.ones(3)
            given = [one.requires_grad_() for one in given]
            answer = function(f, *given)
            (answer * (part(v) if answer.ndim == 2 else 1.0)).sum().backward()
            to += [one.grad for one in given if one.grad is not None]
        assert found[0][1].isfinite().sum() == (mine(x)[1] == -torch.inf).sum(), name
        parts_equal(name, found[0], wanted[0], 1e-5)
        assert all(map(close, found[1:], wanted[1:], [1e-4] * 2)), (name, found, wanted)


def other_forms():
    """Other dtypes and dimensions, no rows, no entries, and a copy that is not contiguous."""
    x, f = rows(), kofn.distributed
    for dtype, atol in ((torch.float64, 1e-12), (torch.float16, 1e-3), (torch.bfloat16, 1e-2)):
        y = x.to(dtype)
        parts_equal(dtype, f.soft_topk(mine(y), 3), kofn.soft_topk(y, 3), atol)
        parts_equal(dtype, f.hard_topk(mine(y), 3), kofn.hard_topk(y, 3))
        assert f.soft_topk_threshold(mine(y), 3).dtype == kofn.soft_topk_threshold(y, 3).dtype
    turned = x.movedim(-1, 0)
    found = f.soft_topk(mine(turned, 0), K, dim=0)
    assert close(found, mine(kofn.soft_topk(turned, K, dim=0), 0), 2e-6)
    assert f.soft_topk(mine(x[:0]), 3).shape == mine(x[:0]).shape
    assert f.hard_topk(mine(x[:0]), 3).shape == mine(x[:0]).shape
    assert f.softmax(x[..., :0]).shape == (3, 2, 0)
    assert f.hard_topk(x[..., :0], 0).shape == (3, 2, 0)
    assert torch.isnan(f.soft_topk_threshold(x[..., :0], 0)).all()


def second_derivatives():
    """By the array code with all-reduces that are differentiable themselves."""

    def twice(f, x, k, v, again):
        k = k.clone().requires_grad_()
        x = x.clone().requires_grad_()
        p = f.soft_topk(x, k, temperature=0.7)
        first = torch.autograd.grad((p * v).sum(), (x, k), create_graph=True)
        return torch.autograd.grad((first[0] * again).sum() + first[1].sum(), (x, k))

    x, v, again = rows(), rows(1.0).flip(-1), rows(0.5).flip(-2)
    wanted = twice(kofn, x, K + 0.25, v, again)
    found = twice(kofn.distributed, mine(x), K + 0.25, mine(v), mine(again))
    parts_equal("second in x", found[0], wanted[0], 2e-5)
    assert close(found[1], wanted[1], 2e-5), (found[1], wanted[1])


def learned_alpha():
    def of(f, x, v):
        alpha = torch.full((3, 2), 1.4, requires_grad=True)
        x = x.clone().requires_grad_()
        (f.entmax(x, alpha) * v).sum().backward()
        return x.grad, alpha.grad

    x, v = rows(), rows(1.0).flip(-1)
    wanted, found = of(kofn, x, v), of(kofn.distributed, mine(x), mine(v))
    parts_equal("x", found[0], wanted[0], 1e-5)
    assert close(found[1], wanted[1], 1e-5)


def messages():
    """At most 3 + steps all-reduces of 64 bytes a row, 8 steps for std ≤ 5, 2 backward."""
    f, generator = kofn.distributed, np.random.default_rng(1)
    for std in (0.1, 1.0, 5.0):
        for link in ("logistic", "normal"):
            x = torch.from_numpy(generator.normal(0, std, (10, 40))).float()
            k, t = (torch.full((10,), one).requires_grad_() for one in (4.0, 1.0))
            part = mine(x).clone().requires_grad_()
            with counted() as sizes:
                p = f.soft_topk(part, k, temperature=t, link=link)
            assert len(sizes) <= 3 + 8, (std, link, len(sizes))
            assert max(sizes) <= 64 * 10, (std, link, sizes)
            with counted() as sizes:
                (p * part.detach()).sum().backward()
            assert len(sizes) <= 2, (std, link, sizes)
            assert max(sizes) <= 64 * 10, (std, link, sizes)
    with counted() as sizes:
        f.softmax(mine(x))
    assert len(sizes) == 4
    with counted() as sizes:
        f.hard_topk(mine(x), 4)
    assert len(sizes) <= 3 + 12, sizes
    assert max(sizes) <= 64 * 10, sizes


def messages_of_each_answer():
    """A number per row takes one message more than weights; θ is known to every derivative."""
    f, x, settings = kofn.distributed, mine(rows()), dict(create_graph=True)
    answers = {  # after the search; backward; backward that can be differentiated again
        "soft_topk": (0, 2, 17),
        "soft_topk_threshold": (0, 1, 11),
        "soft_topk_sum": (1, 0, 13),
    }
    with counted() as searched:
        f.soft_topk(x, (K + 0.25).clamp(max=39.0), temperature=T)
    for name, most in answers.items():
        given = [one.clone().requires_grad_() for one in (x, K + 0.25, T)]
        with counted() as sizes:
            answer = getattr(f, name)(given[0], given[1].clamp(max=39.0), temperature=given[2])
            forward = len(sizes)
        with counted() as sizes:
            v = torch.ones_like(answer).requires_grad_()
            torch.autograd.grad(answer, given, v, retain_graph=True)
        backward = list(sizes)
        with counted() as sizes:
            torch.autograd.grad(answer, given, v, **settings)
        found = forward - len(searched), len(backward), len(sizes)
        assert all(ours <= at_most for ours, at_most in zip(found, most, strict=True)), (
            name,
            found,
        )
        assert max(backward, default=0) <= 32 * 6, (name, backward)
    for again, most in ((False, 2), (True, 4)):
        given = x.clone().requires_grad_(), T.clone().requires_grad_()
        p = f.softmax(given[0], temperature=given[1])
        with counted() as sizes:
            torch.autograd.grad(p.sum(), given, create_graph=again)
        assert len(sizes) <= most, (again, sizes)


def sums_of_parts():
    """By one message each, of flags too; a derivative sends only what somebody asks for."""
    from kofn.rows.shards.ranks import ranks_of
    from kofn.rows.shards.reductions import GroupRows

    over, x = GroupRows(ranks_of((None,), "a test", rows())), rows()
    part, flags = mine(x).clone().requires_grad_(), x > 0
    with counted() as sizes:
        total, count, squares = over.sums(part, mine(flags), part * part)
        wide = over.wide_sums(part.detach(), mine(flags))
    assert sizes == [3 * 6 * 8, 2 * 6 * 8]
    assert (total.dtype, count.dtype, wide[0].dtype) == (torch.float32, torch.int64, torch.float64)
    assert close(total, x.sum(-1), 1e-5)
    assert close(squares, (x * x).sum(-1), 1e-4)
    assert torch.equal(count, flags.sum(-1))
    assert torch.equal(wide[1], count.double())
    (first,) = torch.autograd.grad((squares * squares).sum() + total.sum(), part, create_graph=True)
    assert close(first, mine(4 * x * (x * x).sum(-1, keepdim=True) + 1), 1e-3)
    with counted() as sizes:
        (again,) = torch.autograd.grad(first.sum(), part)
    assert sizes == [6 * 8], sizes
    wanted = 4 * (x * x).sum(-1, keepdim=True) + 8 * x * x.sum(-1, keepdim=True)
    assert close(again, mine(wanted), 2e-3)


def an_operation_of_ones_own():
    """One that is declared by its array code alone: the variance of the weights, Σ p(1 − p)."""
    from kofn.adapters.shards.answers import answer
    from kofn.formulas import answers
    from kofn.operations.operation import Operation
    from kofn.operations.signatures import ROWS
    from kofn.rows.shards import given
    from kofn.rows.shards.asked import Asked
    from kofn.rows.shards.ranks import ranks_of
    from kofn.rows.shards.reductions import GroupRows

    def variance(rows, over, theta):
        p = answers.weights(rows, over, theta=theta)
        return over.sum(p * (1 - p))

    takes = "x n, k #, t #, link"
    own = Operation("", takes, "variance r", ROWS, lambda _, given: None, reference=variance)

    def slopes(of, x):
        each = x, torch.full_like(K, 3.5), torch.ones_like(T)
        leaves = [one.clone().requires_grad_() for one in each]
        value = of(*leaves)
        first = torch.autograd.grad(value.sum(), leaves, create_graph=True)
        return [value.detach(), *first, *torch.autograd.grad(first[1].sum(), leaves)]

    def of_shards(x, k, t):
        link = kofn.links.logistic
        over = GroupRows(ranks_of((None,), "a test", x))
        return answer(own, given.shards(over, x, -1, Asked(k, link, t, None)))

    def of_whole(x, k, t):
        p = kofn.soft_topk(x, k, temperature=t)
        return (p * (1 - p)).sum(-1)

    found, wanted = slopes(of_shards, mine(rows())), slopes(of_whole, rows())
    for i, (ours, whole) in enumerate(zip(found, wanted, strict=True)):
        assert close(ours, mine(whole) if whole.shape[-1] > 6 else whole, 2e-4), i
    with counted() as sizes, torch.no_grad():
        of_shards(mine(rows()), K.clamp(max=39.0), T)
    assert 3 < len(sizes) <= 12


def messages_of_cold_rows():
    """A row of the exponential link at k = 1 where T is small: Newton's steps are T long."""
    x, k = rows()[:, 0].repeat(2, 1)[:4], torch.tensor([1, 3.5, 10, 36])
    for t in (0.03, 0.01, 1e-3, 1e-5):
        with counted() as sizes:
            p = kofn.distributed.soft_topk(mine(x), k, temperature=t, link="exponential")
        assert len(sizes) <= 30, (t, len(sizes))
        wanted = kofn.soft_topk(x, k, temperature=t, link="exponential")
        assert close(p, mine(wanted), 1e-6), t


def equal_on_all_ranks():
    """What there is per row, bit for bit."""
    f, x = kofn.distributed, rows(5.0)
    for link in (*TWO_TAILS, BOUNDED[0]):
        k = K.clone().requires_grad_()
        mine_of = mine(x).clone().requires_grad_()
        theta = f.soft_topk_threshold(mine_of, k, link=link)
        value = f.soft_topk_sum(mine_of, k, link=link)
        (f.soft_topk(mine_of, k, link=link) * mine_of.detach()).sum().backward()
        for number in (theta, value, k.grad):
            parts = [torch.empty_like(number) for _ in range(distributed.get_world_size())]
            distributed.all_gather(parts, number.detach().contiguous())
            assert all(torch.equal(part.nan_to_num(), number.nan_to_num()) for part in parts), link


def differences():
    """A rank that is asked for something else is named, on all ranks."""
    f, x, rank = kofn.distributed, rows(), distributed.get_rank()
    last = distributed.get_world_size() - 1
    odd = rank == last
    wrong = {
        "shape": lambda: f.soft_topk(x[: 2 if odd else 3], 3),
        "dtype": lambda: f.soft_topk(x.double() if odd else x, 3),
        "link": lambda: f.soft_topk(x, 3, link="normal" if odd else "logistic"),
        "number": lambda: f.soft_topk(x, 4 if odd else 3),
        "content": lambda: f.soft_topk(x, torch.full((3, 2), 4.0 if odd else 3.0)),
        "gradient": lambda: f.soft_topk(x.clone().requires_grad_(odd), 3),
        "function": lambda: (f.softmax if odd else f.sparsemax)(x),
        "hard": lambda: f.soft_topk(x, 3, hard=odd),
    }
    for name, call in wrong.items():
        with pytest.raises(ValueError, match=f"rank {last}.*This is rank {rank}") as caught:
            call()
        assert "kofn.distributed." in str(caught.value), name
    # One rank's own error, and that of a number that only the sum of all sizes shows to be wrong.
    with pytest.raises(TypeError if odd else ValueError, match="must have dtype"):
        f.soft_topk(x.long() if odd else x, 3)
    with pytest.raises(ValueError, match=r"k must be .* n = 40 "):
        f.soft_topk(mine(x), 41)
    with pytest.raises(ValueError, match="n = 40 "):
        f.hard_topk(mine(x), 41)
    parts_equal("afterwards", f.soft_topk(mine(x), 3), kofn.soft_topk(x, 3))


def early_differences():
    """What is wrong before the first message is sent reaches the other ranks, too."""
    f, x = kofn.distributed, rows()
    last = distributed.get_world_size() - 1
    odd = distributed.get_rank() == last
    word, labels = "logistik" if odd else "logistic", torch.zeros(3, 2, dtype=torch.int64)
    bad = links.Link(torch.sigmoid, torch.sigmoid, integral=torch.exp) if odd else links.logistic
    calls = {
        "link": lambda: f.soft_topk(x, 2, link=word),
        "link of theta": lambda: f.soft_topk_threshold(x, 2, link=word),
        "link of costs": lambda: f.soft_knapsack(x, 1.0, 2.0, link=word),
        "link of a loss": lambda: f.topk_loss(x, labels, link=word),
        "integral": lambda: f.topk_loss(x, labels, link=bad),
        "hard": lambda: f.soft_topk(x, 2, hard=1 if odd else True),
        "alpha": lambda: f.entmax(x, 0.5 if odd else 1.5),
        "alpha of a loss": lambda: f.entmax_loss(x, labels, 0.5 if odd else 1.5),
        "k of subsets": lambda: f.KSubset(x, 2.5 if odd else 2).marginals(),
        "huge k": lambda: f.soft_topk(x, 10**400 if odd else 2),
        "reduction": lambda: f.softmax_loss(x, labels, reduction="most" if odd else "mean"),
        "target": lambda: f.softmax_loss(x, labels.numpy() if odd else labels),
        "no tensor": lambda: f.softmax_loss(x.tolist() if odd else x, labels),
    }
    for name, call in calls.items():
        told = "." if odd else f"rank {last} raised"
        with pytest.raises((TypeError, ValueError), match=told):
            call()
        parts_equal(name, f.softmax(mine(x)), kofn.softmax(x))
    early_differences_of_dtensors(odd, last)


def early_differences_of_dtensors(odd, last):
    """Also where the other ranks have other rows."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    f, x, size = kofn.distributed, torch.randn(4, 6), last + 1
    mesh = init_device_mesh("cpu", (size,))
    labels = torch.tensor([0, 1, 2, 9 if odd else 3])
    told = "." if odd else f"rank {last} raised"
    cut = distribute_tensor(x, mesh, [Shard(1)])
    with pytest.raises((TypeError, ValueError), match=told):
        f.soft_topk(cut, 2, mask=torch.ones(5 if odd else 6).bool())
    with pytest.raises((TypeError, ValueError), match=told):
        f.softmax_loss(cut, labels[: 3 if odd else 4].clamp(max=3))
    batch = distribute_tensor(x, mesh, [Shard(0)])
    calls = (
        lambda: f.softmax_loss(batch, labels),
        lambda: f.topk_loss(batch, labels.clamp(max=3), link="logistik" if odd else "logistic"),
        lambda: f.softmax_loss(batch, labels.clamp(max=3), temperature=-1.0 if odd else 1.0),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=told):
            call()
    turned = DeviceMesh("cpu", list(range(size))[::-1])
    with pytest.raises(ValueError, match=r"kofn\.distributed\.hard_topk: the ranks .* ascend"):
        f.hard_topk(distribute_tensor(x, turned, [Shard(1)]), 2)


def on_dtensors():
    """Shards of unequal sizes along any dimension, on meshes of one and two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = distributed.get_world_size()
    flat = init_device_mesh("cpu", (size,))
    square = init_device_mesh("cpu", (min(2, size), max(1, size // 2)))
    torch.manual_seed(0)
    x, v = torch.randn(5, 3, 7), torch.randn(5, 3, 7)
    k, t = torch.arange(15.0).reshape(5, 3) / 3, torch.rand(5, 3) + 0.3
    mask = torch.rand(5, 3, 7) > 0.2
    cases = [(flat, [p]) for p in (Shard(2), Shard(1), Shard(0), Replicate())]
    pairs = (
        (Shard(0), Shard(2)),
        (Shard(2), Shard(2)),
        (Shard(2), Replicate()),
        (Shard(2), Shard(0)),
    )
    cases += [(square, list(pair)) for pair in pairs]
    maps = {
        "soft": lambda f, x, k, t, m: f.soft_topk(x, k, temperature=t, mask=m),
        "threshold": lambda f, x, k, t, m: f.soft_topk_threshold(x, k, temperature=t[..., None]),
        "sum": lambda f, x, k, t, m: f.soft_topk_sum(x, k, temperature=t, link="normal"),
        "softmax": lambda f, x, k, t, m: f.softmax(x, temperature=t, mask=m),
        "dim": lambda f, x, k, t, m: f.soft_topk(x, 2, temperature=t[0, 0], dim=1),
    }
    for name, function in maps.items():
        whole = [one.clone().requires_grad_() for one in (x, k, t)]
        wanted = function(kofn, *whole, mask)
        w = v if wanted.ndim == 3 else v[..., 0]
        torch.where(wanted.isfinite(), wanted, 0.0).mul(w).sum().backward()
        for mesh, placements in cases:
            alike = [Replicate()] * mesh.ndim
            part = distribute_tensor(x, mesh, placements).requires_grad_()
            numbers = [distribute_tensor(one, mesh, alike).requires_grad_() for one in (k, t)]
            found = function(kofn.distributed, part, *numbers, distribute_tensor(mask, mesh, alike))
            assert found.shape == wanted.shape
            if found.ndim == 3:
                assert found.placements == tuple(placements)
            assert close(found.full_tensor(), wanted, 2e-6), (name, placements)
            finite = torch.where(found.isfinite(), found, 0.0)
            (finite * distribute_tensor(w, mesh, alike)).sum().backward()
            assert part.grad.placements == tuple(placements), (name, part.grad.placements)
            for ours, theirs, what in zip((part, *numbers), whole, "xkt", strict=True):
                if theirs.grad is not None:
                    same = close(ours.grad.full_tensor(), theirs.grad, 5e-6)
                    assert same, (name, placements, what)
    part = distribute_tensor(x, flat, [Shard(2)])
    hard = kofn.distributed.hard_topk(part, 2.5)  # plain tensors are the same in every process
    assert torch.equal(hard.full_tensor(), kofn.hard_topk(x, 2.5))
    assert close(
        kofn.distributed.soft_topk(part, k, mask=mask).full_tensor(),
        kofn.soft_topk(x, k, mask=mask),
        2e-6,
    )
    with pytest.raises(ValueError, match="leave out group"):
        kofn.distributed.softmax(part, group=distributed.group.WORLD)


def partial_sums():
    """Scores and k of which each process has a summand."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    size = distributed.get_world_size()
    mesh, share = init_device_mesh("cpu", (size,)), (1 + distributed.get_rank()) * 2 / size
    x, v = rows()[0], rows()[1]
    whole, k = x.clone().requires_grad_(), torch.tensor(2.5, requires_grad=True)
    wanted = kofn.soft_topk(whole, k)
    (wanted * v).sum().backward()

    def placed(value, way):
        return DTensor.from_local(value, mesh, [way], run_check=False)

    x_part, k_part = ((one.detach() * share / (size + 1)).requires_grad_() for one in (x, k))
    sharded = placed(x, Replicate()).redistribute(mesh, [Shard(1)])
    for scores, count in ((placed(x_part, Partial()), 2.5), (sharded, placed(k_part, Partial()))):
        found = kofn.distributed.soft_topk(scores, count)
        assert close(found.full_tensor(), wanted, 2e-6)
        (found * placed(v, Replicate())).sum().backward()
    assert close(x_part.grad, whole.grad, 5e-6)
    assert close(k_part.grad, k.grad, 5e-6)


TASKS = (
    same_as_whole,
    special_cases,
    nan_gradients,
    other_forms,
    learned_alpha,
    knapsacks,
    hard_knapsacks,
    messages,
    messages_of_each_answer,
    sums_of_parts,
    an_operation_of_ones_own,
    messages_of_cold_rows,
    equal_on_all_ranks,
    differences,
    early_differences,
    partial_sums,
)


def losses_and_routers():
    """A few of what their files have, in the processes that are there already."""
    import test_distributed_losses as of_losses
    import test_nn_router_processes as of_routers

    of_losses.same_losses(("smoothed", "k-hot"), ("mean",))
    of_losses.edges()
    of_routers.expert_choice()


def test_rows_in_two_processes(tmp_path):
    run_on_ranks(tmp_path / "store", 2, *TASKS, losses_and_routers)


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 4])
def test_rows_in_more_processes(tmp_path, size):
    run_on_ranks(
        tmp_path / "store", size, *(TASKS if size > 2 else ()), second_derivatives, on_dtensors
    )


def test_bad_use_is_refused_by_name():
    f, x = kofn.distributed, torch.randn(3, 5)
    with pytest.raises(RuntimeError, match="init_process_group first"):
        f.soft_topk(x, 2)
    with joined(distributed.HashStore(), 0, 1):
        calls = {
            "reduces tensors on cpu": lambda: f.soft_topk(torch.empty(3, 5, device="meta"), 2),
            "group must be a": lambda: f.softmax(x, group="world"),
            "this process belongs": lambda: f.softmax(
                x, group=distributed.GroupMember.NON_GROUP_MEMBER
            ),
            "cannot follow its all-reduces": lambda: torch.func.grad(lambda x: f.softmax(x).sum())(
                x
            ),
            "eager PyTorch": lambda: torch.func.vmap(lambda x: f.soft_topk(x, 2))(x),
            "takes a torch.Tensor": lambda: f.soft_topk(x.numpy(), 2),
            "k must be a number": lambda: f.soft_topk(x, -1),
            "n = 5": lambda: f.soft_topk(x, 6),
            "temperature must be": lambda: f.soft_topk(x, 2, temperature=0.0),
            "budget must be": lambda: f.soft_knapsack(x, 1.0, -1.0),
            "mask must be boolean": lambda: f.hard_topk(x, 2, mask=x),
            "hard must be": lambda: f.soft_topk(x, 2, hard=1),
        }
        for text, call in calls.items():
            with pytest.raises((TypeError, ValueError), match=text):
                call()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            with pytest.raises(TypeError, match="forward-mode"):
                f.soft_topk(dual, 2)


@pytest.mark.full
def test_compiled_functions_call_it_outside_of_their_graphs():
    with joined(distributed.HashStore(), 0, 1):
        x = torch.randn(3, 5)

        def of(x):
            return kofn.distributed.soft_topk(x * 2, 2) + 1

        assert close(torch.compile(of)(x), kofn.soft_topk(x * 2, 2) + 1, 2e-6)
        with pytest.raises(Exception, match=r"kofn\.distributed decides by numbers from all ranks"):
            torch.compile(lambda x: kofn.distributed.softmax(x), fullgraph=True)(x)


def one_dies():
    """The others get the backend's error, with the name of the function."""
    x = rows()
    kofn.distributed.soft_topk(mine(x), 3)
    if distributed.get_rank() == distributed.get_world_size() - 1:
        os._exit(0)
    with pytest.raises(RuntimeError, match=r"kofn\.distributed\.hard_topk: .* rank may have died"):
        kofn.distributed.hard_topk(mine(x), 3)


@pytest.mark.full
def test_a_dead_rank_is_an_error_on_the_others(tmp_path):
    run_on_ranks(tmp_path / "store", 4, one_dies, dead=1)


def test_dtensors_of_one_process():
    """Everything but the communication."""
    with joined(distributed.HashStore(), 0, 1):
        on_dtensors()
