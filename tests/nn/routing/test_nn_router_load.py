"""nn.TopKRouter's load: the bias that evens it, what is counted, and the losses."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kofn import nn
from kofn.nn.routing import base
from kofn.nn.routing.state import SelectionBias
from support import full_but
from test_nn_router import E, H, K, T, own_seed, router

__all__ = ["own_seed"]  # a fixture


def test_the_bias_moves_against_the_load_and_leaves_the_gates_alone():
    net = router(balance=0.5)
    with torch.no_grad():
        net.weight.zero_()
        net.weight[:2] = 1.0
    x = torch.ones(T, H)
    net(x)
    assert net.balance.counts.tolist() == [T, T] + [0] * 6
    net.step()
    assert net.balance.net_steps.tolist() == [-1, -1] + [1] * 6
    assert net.balance.counts.sum() == 0
    assert torch.allclose(net.balance(), 0.5 * torch.tensor([-1.5, -1.5] + [0.5] * 6))
    for _ in range(20):
        net.step()  # without load, nothing moves
    assert net.balance.net_steps.tolist() == [-1, -1] + [1] * 6
    for _ in range(16):
        net(x)
        net.step()
    net.balance.net_steps[5] = 100
    logits, weights, indices = net(torch.randn(T, H))
    assert (indices == 5).any(-1).all()
    assert torch.allclose(weights, logits.gather(1, indices).softmax(-1))


def test_a_balanced_router_gets_an_even_load():
    loads = []
    for balance in (None, 1e-2):
        torch.manual_seed(0)
        net, x = router(balance=balance), torch.randn(256, H) + 1
        for _ in range(200):
            net(x)
            net.step()
        net.statistics()
        net(x)
        loads.append(net.statistics()["max_violation"])
    assert loads[0] > 0.5 > 0.1 > loads[1]


def test_small_rates_are_not_lost_in_bfloat16():
    bias = SelectionBias(2, 1e-3).bfloat16()
    for _ in range(1000):
        bias.counts += torch.tensor([0, 1])
        bias.move(bias.counts)
    assert torch.allclose(bias(), torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_counts_once(use_reentrant):
    net, x = router("budget"), torch.randn(T, H, requires_grad=True)
    weights = checkpoint(lambda x: net(x)[1], x, use_reentrant=use_reentrant)
    weights.sum().backward()
    assert net.balance.counts.sum() == net.counts.sum() == K * T
    assert net.running.updates == 1


@pytest.mark.parametrize("outermost", full_but(("checkpoint",), ("compiled", "checkpoint")))
def test_compiled_code_and_checkpoints_count_once(outermost):
    torch._dynamo.reset()
    net, x = router("budget"), torch.randn(T, H, requires_grad=True)
    inner = net if outermost == "compiled" else torch.compile(net, backend="aot_eager")
    outer = lambda x: checkpoint(inner, x, use_reentrant=False)[1]  # noqa: E731
    if outermost == "compiled":
        outer = torch.compile(outer, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        outer(x).square().sum().backward()
    assert net.balance.counts.sum() == net.counts.sum() == 2 * K * T
    assert net.running.updates == 2


def test_it_starts_from_nothing_after_a_device_without_memory():
    for way in ("budget", "annealed"):
        net = router(way, device="meta").to_empty(device="cpu")
        for each in (net.counts, *net.buffers(), net.balance.counts):
            each.fill_(7)  # as new memory may be
        net.reset_parameters()
        fresh = router(way)
        for ours, theirs in zip(net.buffers(), fresh.buffers(), strict=True):
            assert torch.equal(ours, theirs)
        assert net.counts.sum() == net.balance.counts.sum() == 0
        assert net(torch.randn(T, H))[1].isfinite().all()


def test_statistics_describe_the_load_since_they_were_reset():
    net = router()
    assert net.statistics()["experts_in_use"] == 0
    with torch.no_grad():
        net.weight.zero_()
        net.weight[:2] = 1.0
    net(torch.ones(T, H))
    found = net.statistics(reset=False)
    assert found["load"].tolist() == [0.5, 0.5] + [0] * 6
    assert found["assignments"] == 2 * T
    assert found["dead_experts"] == 6
    assert found["max_violation"] == 3
    assert torch.allclose(found["experts_in_use"], torch.tensor(2.0))
    assert net.statistics()["assignments"] == 2 * T
    net.eval()(torch.ones(T, H))
    assert net.statistics()["assignments"] == 0


def test_the_losses_are_their_formulas():
    logits = torch.randn(T, E, requires_grad=True)
    indices = logits.topk(K).indices
    share = torch.bincount(indices.flatten(), minlength=E) / (K * T)
    wanted = E * (share * logits.softmax(-1).mean(0)).sum()
    assert torch.allclose(nn.load_balancing_loss(logits, indices), wanted)
    assert torch.allclose(nn.router_z_loss(logits), logits.logsumexp(-1).square().mean())
    mask = torch.arange(T) < 5
    for loss in (
        lambda *a: nn.load_balancing_loss(a[0], indices[: len(a[0])], *a[1:]),
        nn.router_z_loss,
    ):
        assert torch.allclose(loss(logits, mask), loss(logits[:5]))
        assert loss(logits, mask & False) == 0
        (grad,) = torch.autograd.grad(loss(logits, mask), logits)
        assert (grad[:5] != 0).any()
        assert (grad[5:] == 0).all()
    with pytest.raises(TypeError, match=r"indices must be integers.*got torch.float32"):
        nn.load_balancing_loss(logits, indices.float())
    with pytest.raises(ValueError, match="indices must have shape"):
        nn.load_balancing_loss(logits, indices[:3])
    with pytest.raises(ValueError, match="mask must be boolean with one entry per token"):
        nn.router_z_loss(logits, mask[:3])


@pytest.mark.parametrize("balance", [1e-3, "quantile"])
@pytest.mark.parametrize("assign", [False, True])
def test_the_state_of_a_linear_layer_loads_with_the_bias_at_0(balance, assign):
    linear = torch.nn.Linear(16, 8, bias=False)
    router = nn.TopKRouter(16, 8, 2, balance=balance)
    router(torch.randn(64, 16))
    router.step()
    assert router.balance().abs().sum() > 0
    router.load_state_dict(linear.state_dict(), assign=assign)
    assert torch.equal(router.weight, linear.weight)
    assert not router.balance().any()
    x = torch.randn(9, 16)
    assert torch.equal(router(x)[2], nn.TopKRouter.choose(router, x @ linear.weight.T)[1])
    router.step()
    with pytest.raises(RuntimeError, match=r'Missing key.*"weight"'):
        router.load_state_dict({})


def test_states_load_between_the_rules():
    signs = nn.TopKRouter(16, 8, 2, balance=1e-2)
    quantile = nn.TopKRouter(16, 8, 2, balance="quantile")
    quantile(torch.randn(64, 16))
    quantile.step()
    signs.load_state_dict(quantile.state_dict())
    assert torch.allclose(signs.balance(), quantile.balance(), atol=2e-2)
    quantile.load_state_dict(signs.state_dict())  # the first step finds the bias
    assert not quantile.balance().any()


@pytest.mark.parametrize(
    "options", [{"balance": 1e-3}, {"balance": "quantile"}, {"temperature": lambda step: 1.0}]
)
def test_a_router_that_waits_for_a_step_says_so_once(options, monkeypatch):
    monkeypatch.setattr(base, "MOST", 3)
    router, x = nn.TopKRouter(16, 8, 2, **options), torch.randn(4, 16)
    for _ in range(2):
        router(x)
    router.step()
    for _ in range(2):
        router(x)
    with pytest.warns(UserWarning, match=r"without a step.*call nn\.step_routers\(model\)"):
        router(x)
    for _ in range(4):
        router(x)
    plain = nn.TopKRouter(16, 8, 2)
    for _ in range(5):
        plain(x)


def test_a_model_without_routers_is_named():
    with pytest.warns(UserWarning, match="was given a Linear without routers") as seen:
        nn.step_routers(torch.nn.Linear(2, 2))
    assert seen[0].filename == __file__
