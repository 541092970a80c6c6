"""Ties, modules over several steps, processes, JAX, and where tensors are."""

import copy
import os

import numpy as np
import pytest
import torch

import kofn
from asked import INTERPRETED, REHEARSED, WANTED
from benchmarks.gpu.functions import Draw, router_of
from kofn import distributed, losses, nn
from truth import DTYPES, array_code, off, off_in_norm

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda one: str(one)[6:])
LENGTHS = (2, 40, 64, 129, 1000, 4097) if REHEARSED else (2, 40, 64, 129, 1000, 4097, 70_000)


def tied(n, dtype, rows=6):
    """Few values, so that many are equal; zeros of both signs, infinities and a NaN among them."""
    rng = np.random.default_rng(n)
    x = torch.tensor(np.round(rng.standard_normal((rows, n)))).to(dtype)
    x[1, n // 2] = torch.inf
    x[2] = torch.where(torch.tensor(rng.random(n) < 0.5), -torch.inf, x[2])
    x[3] = torch.where(x[3] == 0, torch.tensor(rng.choice([-0.0, 0.0], n), dtype=dtype), x[3])
    if n > 2:
        x[4, 1] = torch.nan
    return x


@each_dtype
def test_ties_go_to_the_lowest_index(dtype, device):
    """The same places as on a CPU, and the same bits: those of a stable sort."""
    for n in LENGTHS:
        x = tied(n, dtype)
        k = max(1, n // 3)
        there = x.to(device)
        values, indices = kofn.topk(there, k)
        smallest = kofn.topk(there, k, largest=False)[1]
        hard, gates = kofn.hard_topk(there, k), kofn.topk_gates(there, k)
        segments = kofn.segment_topk(
            there.reshape(-1), k, ptr=torch.arange(len(x) + 1, device=device) * n
        )
        with array_code():
            wanted = kofn.topk(x, k)
            assert torch.equal(indices.cpu(), wanted[1])
            assert torch.equal(values.cpu().nan_to_num(), wanted[0].nan_to_num())
            assert torch.equal(smallest.cpu(), kofn.topk(x, k, largest=False)[1])
            assert torch.equal(hard.cpu().nan_to_num(), kofn.hard_topk(x, k).nan_to_num())
            assert torch.equal(gates[1].cpu(), kofn.topk_gates(x, k)[1])
            ptr = torch.arange(len(x) + 1) * n
            found = kofn.segment_topk(x.reshape(-1), k, ptr=ptr)
            assert torch.equal(segments[1].cpu(), found[1])
        whole = [row for row in range(len(x)) if not x[row].isnan().any()]
        stable = torch.sort(x[whole].double(), dim=-1, descending=True, stable=True).indices[:, :k]
        assert torch.equal(indices.cpu()[whole], stable)


@each_dtype
def test_quantiles_and_modes_are_those_of_the_cpu(dtype, device):
    for n in LENGTHS:
        x = tied(n, dtype)[[0, 3, 5]]
        for how in ("lower", "higher", "nearest"):
            got = kofn.quantile(x.to(device), 0.3, dim=-1, interpolation=how)
            with array_code():
                wanted = kofn.quantile(x, 0.3, dim=-1, interpolation=how)
            assert torch.equal(got.cpu(), wanted)


def steps_of(router, hidden, seed):
    """Two micro-batches, backward, a step; three times. The loads, bias and gradients then."""
    found = []
    for batch in hidden.chunk(3):
        for micro in batch.chunk(2):
            logits, weights, indices = router(micro)
            v = torch.randn(weights.shape, generator=torch.Generator().manual_seed(seed))
            loss = (weights * v.to(weights.device, weights.dtype)).sum()
            (loss + nn.load_balancing_loss(logits, indices)).backward()
        router.step()
        found.append(torch.cat([p.grad.flatten() for p in router.parameters()]).double().cpu())
        router.zero_grad()
    return found, [buffer.double().cpu() for buffer in router.buffers()]


@pytest.mark.parametrize("balance", [1e-2, "quantile"])
def test_two_micro_batches_of_a_router_with_balance(balance, device):
    rows, n = 192, 16
    routers, hidden = [], []
    for where, dtype in ((device, torch.float32), ("cpu", torch.float64)):
        draw = Draw(where, dtype, rows, n, rounded=torch.float32)
        routers.append(router_of(draw, balance=balance))
        hidden.append(draw.normal(rows, 32))
    got = steps_of(routers[0], hidden[0], 3)
    with array_code():
        wanted = steps_of(routers[1], hidden[1], 3)
    for ours, theirs in zip(got[0], wanted[0], strict=True):
        assert off_in_norm(ours, theirs) <= 1e-4
    assert len(got[1]) == len(wanted[1]) > 0
    for ours, theirs in zip(got[1], wanted[1], strict=True):
        assert off(ours, theirs) <= 1e-5


@pytest.mark.device
@pytest.mark.parametrize("balance", [None, 1e-2])
def test_a_router_steps_without_waiting(balance, device):
    draw = Draw(device, torch.float32, 256, 16)
    router, hidden = router_of(draw, balance=balance), draw.normal(256, 32)

    def step():
        logits, weights, indices = router(hidden)
        (weights.square().sum() + nn.load_balancing_loss(logits, indices)).backward()
        router.step()

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", [{}, {"signed": True}, {"selection": "batch"}], ids=str)
def test_training_an_autoencoder(options, device):
    def trained(where, dtype):
        draw = Draw(where, dtype, 64, 48, rounded=torch.float32)
        sae = nn.TopKSAE(32, 48, 4, device=where, dtype=dtype, **options)
        with torch.no_grad():
            for parameter in sae.parameters():
                parameter.copy_(draw.normal(*parameter.shape) / 6)
        optimizer = torch.optim.SGD(sae.parameters(), lr=0.05)
        for _ in range(3):
            x = draw.normal(64, 32)
            output = sae(x)
            loss = (output.reconstruction - x).square().mean() + nn.auxk_loss(sae, x, output) / 32
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sae.step()
        return torch.cat([p.detach().flatten() for p in sae.parameters()]).double().cpu()

    got = trained(device, torch.float32)
    with array_code():
        wanted = trained("cpu", torch.float64)
    assert off_in_norm(got, wanted) <= 1e-4


@pytest.mark.device
@pytest.mark.parametrize("weights", ["entmax", "sparsemax", "soft_topk"])
def test_flex_attention_and_its_backward_pass(weights, device):
    torch._dynamo.reset()
    shape = (1, 2, 256, 64)
    given = [torch.randn(shape, device=device).requires_grad_() for _ in range(3)]
    got = nn.sparse_flex_attention(*given, weights=weights)
    wanted = nn.sparse_attention(*given, weights=weights)
    assert off_in_norm(got.detach().double().cpu(), wanted.detach().double().cpu()) <= 5e-3
    v = torch.randn_like(got)
    ours, theirs = (torch.autograd.grad(out, given, v) for out in (got, wanted))
    for one, other in zip(ours, theirs, strict=True):
        assert off_in_norm(one.double().cpu(), other.double().cpu()) <= 2e-2


@pytest.fixture
def alone(tmp_path):
    """A group of one process: NCCL's, in a rehearsal Gloo's."""
    import torch.distributed as dist

    if dist.is_initialized():
        pytest.skip("a group is there")
    backend = "gloo" if REHEARSED else "nccl"
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_rows_of_one_process(alone, device):
    """What lies in one process is what it is without processes, but for rounding."""
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).to(device)
    for name, more in (
        ("soft_topk", (5,)),
        ("softmax", ()),
        ("sparsemax", ()),
        ("hard_topk", (5,)),
    ):
        got = getattr(distributed, name)(x, *more, group=alone)
        wanted = getattr(kofn, name)(x, *more)
        assert off(got.double().cpu(), wanted.double().cpu()) <= 4e-6
    leaf = x.clone().requires_grad_()
    (ours,) = torch.autograd.grad(distributed.soft_topk(leaf, 5, group=alone).square().sum(), leaf)
    (theirs,) = torch.autograd.grad(kofn.soft_topk(leaf, 5).square().sum(), leaf)
    assert off_in_norm(ours.double().cpu(), theirs.double().cpu()) <= 1e-5


def test_routers_of_one_process(alone, device):
    for options in ({"selection": "expert_choice"}, {"selection": "budget"}):
        draw = Draw(device, torch.float32, 64, 8)
        router, hidden = router_of(draw, process_group=alone, **options), draw.normal(64, 32)
        router(hidden)[1].square().sum().backward()
        router.step(alone)
    draw = Draw(device, torch.float32, 64, 16)
    router, hidden = router_of(draw, balance=1e-2), draw.normal(64, 32)
    other = copy.deepcopy(router)
    for one, group in ((router, alone), (other, None)):
        one(hidden)[1].square().sum().backward()
        one.step(group)
    for ours, theirs in zip(router.buffers(), other.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.device
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_a_device_that_is_not_the_current_one(device):
    x = torch.randn(4, 64)
    other = torch.device("cuda", 1)
    wanted = kofn.soft_topk(x.to(device), 5)
    leaf = x.to(other).requires_grad_()
    got = kofn.soft_topk(leaf, 5)
    got.square().sum().backward()
    assert got.device == leaf.grad.device == other
    assert torch.equal(got.detach().cpu(), wanted.cpu())
    assert torch.cuda.current_device() == device.index


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda one: str(one)[6:])
def test_autocast(dtype, device):
    if REHEARSED and dtype == torch.float16:
        pytest.skip("the device's autocast alone has it")
    draw = Draw(device, torch.float32, 64, 16)
    router, hidden = router_of(draw), draw.normal(64, 32)
    with torch.autocast(torch.device(WANTED).type, dtype=dtype):
        _, weights, _ = router(hidden)
        loss = losses.softmax_loss(hidden @ router.weight.T, draw.labels())
    assert weights.dtype == torch.float32
    assert loss.dtype == torch.float32
    weights.square().sum().backward()


def test_jax_on_the_same_card():
    """XLA's programs on a GPU are array code; the CPU has the truth."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if not REHEARSED and jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    if REHEARSED and INTERPRETED:
        pytest.skip("once is enough")
    rng, labels = np.random.default_rng(0), np.arange(8) % 40
    x = rng.standard_normal((8, 40)).astype(np.float32)
    with array_code():
        for name, function in (
            ("soft_topk", lambda x: kofn.soft_topk(x, 5)),
            ("soft_topk, normal", lambda x: kofn.soft_topk(x, 5, link="normal")),
            ("sparsemax", kofn.sparsemax),
            ("entmax", kofn.entmax),
            ("hard_topk", lambda x: kofn.hard_topk(x, 5)),
            ("topk", lambda x: kofn.topk(x, 5)[0]),
            ("log_soft_topk", lambda x: kofn.log_soft_topk(x, 5)),
            ("quantile", lambda x: kofn.quantile(x, 0.3, dim=-1)),
            ("softmax_loss", lambda x: losses.softmax_loss(x, jax.numpy.asarray(labels))),
        ):
            wanted = [np.asarray(function(jax.numpy.asarray(x)) if "loss" in name else function(x))]
            got = jax.jit(function)(jax.numpy.asarray(x))
            error = np.abs(np.asarray(got, np.float64) - wanted[0]).max()
            assert error <= 2e-5, name
            if name == "hard_topk":
                continue
            slope = jax.jit(jax.grad(lambda x, f=function: f(x).astype("float32").sum() ** 2 / 9))
            assert np.isfinite(np.asarray(slope(jax.numpy.asarray(x)))).all(), name
