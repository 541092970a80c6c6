"""Calls that were made before: their answers, their frames, and what goes the long way."""

import gc
import math
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint

import kofn
from kofn.adapters import kept_kernels, short
from kofn.kernels.cpu import jobs, kept_jobs, ready
from kofn.kernels.cpu.runtime import memory
from kofn.kernels.cpu.runtime.layout import HALF_TYPES, PART
from kofn.links.table import TABLE
from kofn.operations.topk import WEIGHTS


def columns(x):
    return torch.arange(x.shape[-1]) % 3 != 1


MAPS = {
    "soft_topk": partial(kofn.soft_topk, k=2.5),
    "hard": partial(kofn.soft_topk, k=2, hard=True),
    "softmax": kofn.softmax,
    "sparsemax": kofn.sparsemax,
    "entmax": kofn.entmax,
    "masked": lambda x: kofn.softmax(x, mask=x.detach() > -0.8),
    "masked, out of order": lambda x: kofn.soft_topk(x, 2, mask=(x.detach().mT > -0.8).mT),
    "hard, masked by columns": lambda x: kofn.soft_topk(x, 2, hard=True, mask=columns(x)),
    "gates": lambda x: kofn.topk_gates(x, 2)[0],
    **{name: partial(kofn.soft_topk, k=2, link=name, temperature=0.7) for name in TABLE},
}

ROWS = torch.tensor([[0.3, -1.0, 0.2, 2.0], [1.0, 0.4, -0.7, 0.1], [3e8, -3e8, 0.0, 1.0]])


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch):
    monkeypatch.setattr(short, "_kept", {})
    monkeypatch.setattr(kept_kernels, "_kept", {})
    monkeypatch.delenv("KOFN_KERNELS", raising=False)


def all_of(function, x):
    """The answer, its gradient, a second derivative, and the answer that nothing records."""
    x = x.detach().requires_grad_()
    p = function(x)
    weights = torch.linspace(-1, 1, p.numel(), dtype=p.dtype).reshape(p.shape)
    (first,) = torch.autograd.grad(p, x, weights, retain_graph=True)
    (slope,) = torch.autograd.grad(p, x, weights, create_graph=True)
    (second,) = torch.autograd.grad(slope.square().sum(), x)
    return p.detach(), first, slope.detach(), second, function(x.detach())


def is_kept(function, x):
    """Whether a call is answered the short way."""
    for _ in range(3):
        function(x)
    return any(type(each) is not bool for each in short._kept.values())


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


DTYPES = [torch.float32, torch.float64, *(getattr(torch, name) for name in HALF_TYPES)]
KEPT = [
    pytest.param(name, dtype, id=f"{name}-{str(dtype)[6:]}") for name in MAPS for dtype in DTYPES
]


@pytest.mark.parametrize(("name", "dtype"), KEPT)
def test_a_call_that_was_made_before_has_the_same_bits(name, dtype, monkeypatch):
    """Rows that a kernel gives up on are among them."""
    for each in (ROWS, torch.linspace(-2, 3, 150).sin().repeat(2, 1)):
        x = each.to(dtype)
        before = all_of(MAPS[name], x)
        assert is_kept(MAPS[name], x)
        for one, other in zip(before, all_of(MAPS[name], x), strict=True):
            assert torch.equal(one, other)
        with monkeypatch.context() as patch:
            patch.setattr(short, "answer", lambda *_, **__: None)
            for one, other in zip(before, all_of(MAPS[name], x), strict=True):
                assert torch.equal(one, other)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(("name", "dtype"), KEPT)
@pytest.mark.parametrize("shape", [(1100, 30), (1, 66_000)], ids=["rows", "a row"])
def test_large_calls_have_the_bits_of_one_thread(shape, name, dtype, monkeypatch):
    """Two threads share so many rows, or one that is so long."""
    count = math.prod(shape)
    assert (shape[0] > kept_jobs.MOST and count > 2 * jobs.GRAIN) or count > PART
    x = torch.linspace(-2, 99, count).sin().reshape(shape).to(dtype).requires_grad_()
    found = []
    for threads in (1, 2, 2):
        torch.set_num_threads(threads)
        assert is_kept(MAPS[name], x.detach()) == (name != "gates")  # of which small calls are
        p = MAPS[name](x)
        found.append((p, *torch.autograd.grad(p, x, p.detach().cos())))
    monkeypatch.setattr(short, "answer", lambda *_, **__: None)
    p = MAPS[name](x)
    for each in (*found[1:], (p, *torch.autograd.grad(p, x, p.detach().cos()))):
        assert all(map(torch.equal, each, found[0]))


def test_a_link_may_be_an_object():
    x, links = ROWS[:2], {name: [TABLE[name], name] for name in TABLE}
    for alpha in (1.0, 1.3, 1.5, 1.7, 2):
        links[alpha] = [kofn.links.entmax(alpha)] * 2
    assert is_kept(partial(kofn.soft_topk, k=2, link=kofn.links.entmax(1.3)), x)
    for link, other in links.values():
        for _ in range(3):
            found = kofn.soft_topk(x, 2, link=link)
        wanted = kofn.soft_topk(x[..., None], 2, link=other, dim=1)[..., 0]
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_kept_call_serves_several_threads_at_once(dtype):
    """They share what is written once, and nothing that a call writes."""
    call, rows = partial(kofn.soft_topk, k=5), torch.randn(8, 64, 40).to(dtype)
    assert is_kept(call, rows[0])
    wanted = [call(x) for x in rows]
    with ThreadPoolExecutor(8) as pool:
        found = [[*pool.map(call, rows)] for _ in range(50)]
    assert all(all(map(torch.equal, each, wanted)) for each in found)


@pytest.mark.parametrize("rows", [3, memory.FEW + 1, kept_jobs.MOST + 1])
def test_a_kept_call_keeps_what_its_job_names(rows, monkeypatch):
    """Others forget plans, and the arrays of one number, when there are many."""
    named, plan_of, each_per_row = [], kept_jobs.plan_of, kept_jobs.each_per_row

    def planned(*given):
        named.append(weakref.ref(plan_of(*given).passes))
        return plan_of(*given)

    def repeated(*given):
        named.extend(weakref.ref(array) for array, _ in each_per_row(*given))
        return each_per_row(*given)

    monkeypatch.setattr(kept_jobs, "plan_of", planned)
    monkeypatch.setattr(kept_jobs, "each_per_row", repeated)
    assert is_kept(partial(kofn.soft_topk, k=1.5), torch.linspace(-1, 1, 4 * rows).reshape(rows, 4))
    plan_of.cache_clear()
    memory._kept.cache_clear()
    gc.collect()
    assert len(named) == 6
    assert all(each() is not None for each in (named if rows <= memory.FEW else named[::3]))


def test_it_takes_few_calls():
    x, home, found = ROWS[:2].clone().requires_grad_(), str(Path(kofn.__file__).parent), []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(home):
            found.append(frame.f_code.co_qualname)

    for hard, most in ((False, 10), (True, 12)):
        call = partial(kofn.soft_topk, x, 2, hard=hard)
        assert is_kept(partial(kofn.soft_topk, k=2, hard=hard), x)
        back = partial(call().backward, torch.ones_like(x), retain_graph=True)
        for function, limit in ((call, most), (back, 6)):
            found.clear()
            sys.setprofile(count)
            try:
                function()
            finally:
                sys.setprofile(None)
            assert len(found) <= limit, found


def test_arguments_are_still_checked():
    for _ in range(3):
        kofn.soft_topk(ROWS, 1)
    with pytest.raises(TypeError, match="mask must be a dense tensor"):
        kofn.soft_topk(ROWS, 1, mask=(ROWS > 0).to_sparse())
    masks = (
        dict(k=1, mask=ROWS),
        dict(k=1, mask=columns(ROWS).numpy()),
        dict(k=1, mask=ROWS[:2] > 0),
    )
    for options in (dict(k=True), dict(k=5), dict(k=1, hard=1), dict(k=1, dim=True), *masks):
        with pytest.raises((TypeError, ValueError)):
            kofn.soft_topk(ROWS, **options)
    with pytest.raises(TypeError):
        kofn.soft_topk(ROWS, 1, temperature=True)
    with pytest.raises(ValueError, match="link"):
        kofn.soft_topk(ROWS, 1, link="none")


def test_k_of_every_kind_is_told_apart():
    for k in (1, 2, 2.0, 1.5, torch.tensor([1.0, 2.0, 3.0])):
        for _ in range(3):
            total = kofn.soft_topk(ROWS.double(), k).sum(-1)
        assert torch.allclose(total, torch.as_tensor(k).double().expand(3))


OWN = kofn.Link(cdf=torch.sigmoid, pdf=lambda z: torch.sigmoid(z) * torch.sigmoid(-z))

LONG = {
    "masked by rows": lambda: kofn.soft_topk(ROWS, 2, mask=ROWS[:, :1] > 0.5),
    "gates with a mask": lambda: kofn.topk_gates(ROWS, 2, mask=ROWS > 0)[0],
    "transposed": lambda: kofn.soft_topk(ROWS.T, 2),
    "along another dimension": lambda: kofn.soft_topk(ROWS, 2, dim=0),
    "negated by a bit": lambda: kofn.soft_topk(torch._neg_view(ROWS), 2),
    "gates with a bias": lambda: kofn.topk_gates(ROWS, 2, bias=ROWS[0])[0],
    "with an alpha of each row": lambda: kofn.entmax(ROWS, torch.tensor([1.2, 1.5, 2.0])),
    "with a link of one's own": lambda: kofn.soft_topk(ROWS, 2, link=OWN),
    "normalized gates": lambda: kofn.topk_gates(ROWS, 2, normalize=True)[0],
    "wider gates": lambda: wider(kofn.topk_gates),
    "mapped over": lambda: torch.vmap(lambda x: kofn.soft_topk(x, 2))(ROWS),
    "differentiated": lambda: torch.func.grad(lambda x: kofn.soft_topk(x, 2)[0, 0])(ROWS),
    "forward": lambda: torch.func.jvp(lambda x: kofn.soft_topk(x, 2), (ROWS,), (ROWS,))[1],
    "without entries": lambda: kofn.soft_topk(ROWS[:, :0], 0),
    "without rows": lambda: kofn.soft_topk(ROWS[:0], 2),
    "large": lambda: kofn.soft_topk(torch.linspace(0, 1, ready.LARGE + 2).reshape(-1, 2), 1),
}


def wider(function):
    with torch.autocast("cpu", torch.bfloat16):
        return function(ROWS.bfloat16(), 2)[0]


@pytest.mark.parametrize("name", LONG)
def test_others_go_the_long_way(name, monkeypatch):
    """They do so after a call of the same shape as well, and have the answer of a first one."""
    first = LONG[name]()
    for _ in range(3):
        kofn.soft_topk(ROWS, 2), kofn.soft_topk(ROWS[:2], 2)
    answer, found = short.answer, []

    def watched(*arguments, **options):
        found.append(answer(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(short, "answer", watched)
    again = LONG[name]()
    assert all(each is None for each in found)
    assert torch.equal(first, again)


def test_without_kernels_nothing_is_kept(monkeypatch):
    assert is_kept(partial(kofn.soft_topk, k=2), ROWS)
    by_kernel = kofn.soft_topk(ROWS, 2)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    assert torch.allclose(kofn.soft_topk(ROWS, 2), by_kernel, atol=1e-5)
    assert short.answer(WEIGHTS, ROWS, 2, "logistic", 1.0, -1) is None
    monkeypatch.setenv("KOFN_KERNELS", "none")
    with pytest.raises(ValueError, match="KOFN_KERNELS"):
        kofn.soft_topk(ROWS, 2)


ROUTERS = {
    "plain": {},
    "cold": dict(link="linear", temperature=0.3),
    "balanced": dict(balance=1e-2),
    "by quantiles": dict(balance="quantile"),
    "of all": dict(normalize=False),
    "by sigmoids": dict(score_function="sigmoid"),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_gates_of_one_node_have_the_same_bits(name, monkeypatch):
    def run():
        torch.manual_seed(0)
        router = kofn.nn.TopKRouter(8, 6, 2, **ROUTERS[name])
        h, weights = torch.randn(20, 8, requires_grad=True), torch.randn(20, 2)
        found = []
        for _ in range(3):
            logits, gates, indices = router(h)
            (slope,) = torch.autograd.grad(gates, h, weights, create_graph=True)
            found += [logits, gates, indices, slope, *torch.autograd.grad(slope.square().sum(), h)]
            plain = router(h)[1]
            plain.mul_(2)  # the caller's own
            found += [router.counts.clone(), *torch.autograd.grad(plain, router.weight, weights)]
            router.step()
        return found, gates.grad_fn.name()

    found, node = run()
    assert (node == "_GatesBackward") == (name in ("plain", "cold", "balanced", "by quantiles"))
    monkeypatch.setattr(short, "gates", lambda *_: None)
    others, node = run()
    assert node != "_GatesBackward"
    assert all(torch.equal(one, other) for one, other in zip(found, others, strict=True))


@pytest.mark.parametrize("dtype", DTYPES[2:])
@pytest.mark.parametrize("name", ROUTERS)
def test_routers_of_16_bits_have_gates_of_a_wider_copy(name, dtype, monkeypatch):
    def run():
        torch.manual_seed(0)
        router = kofn.nn.TopKRouter(8, 6, 2, **ROUTERS[name]).to(dtype)
        h = torch.randn(20, 8).to(dtype).requires_grad_()
        _, gates, indices = router(h)
        scores = torch.randn(5, 6).to(dtype)
        scores[:, 1], scores[2, 3] = torch.finfo(dtype).min, torch.finfo(dtype).min / 2  # deleted
        chosen = router.choose(scores)
        first = gates.detach(), indices, router.counts.clone(), *chosen
        return first, torch.autograd.grad(gates, h, torch.linspace(-1, 1, 40).to(dtype).view(20, 2))

    found, (slope,) = run()
    assert found[0].dtype == dtype
    monkeypatch.setattr(short, "gates", lambda *_: None)
    others, (other,) = run()
    assert all(torch.equal(one, other) for one, other in zip(found, others, strict=True))
    assert torch.allclose(slope.float(), other.float(), rtol=0.02, atol=2e-3)


def test_a_nan_spoils_the_gates_of_its_row():
    """The largest scores of the row are numbers."""
    router, scores = kofn.nn.TopKRouter(8, 6, 2), torch.randn(20, 6)
    for _ in range(3):
        assert router.choose(scores)[0].isfinite().all()
    scores[3, 0] = torch.nan
    assert router.choose(scores)[0].isnan().all(-1).nonzero().tolist() == [[3]]


def test_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(short, "MOST", 8)
    for step in range(3 * short.MOST):
        kofn.soft_topk(ROWS, 2, temperature=1 + step / 1000)
    assert len(short._kept) <= short.MOST


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    [
        "soft_topk",
        *(each for each in MAPS if "hard" in each or "masked" in each),
        "gates",
        "router",
    ],
)
def test_a_checkpoint_runs_a_first_call_again(name, dtype):
    """It keeps the same tensors in both runs, or PyTorch refuses."""
    router = kofn.nn.TopKRouter(4, 6, 2).to(dtype)
    function = MAPS.get(name, lambda x: router(x)[1])
    x = ROWS[:2].to(dtype).requires_grad_()
    p = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)
    (slope,) = torch.autograd.grad(p.square().sum(), x)
    assert torch.equal(slope, torch.autograd.grad(function(x).square().sum(), x)[0])


def test_hooks_see_the_memory():
    x, kept = ROWS.clone().requires_grad_(), []
    assert is_kept(partial(kofn.soft_topk, k=2), x)

    def pack(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kofn.soft_topk(x, 2)
    assert kept == [(3, 4), (2, 3)]
