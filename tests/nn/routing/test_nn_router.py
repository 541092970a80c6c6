"""nn.TopKRouter: what it chooses, what learns, and what it remembers."""

import copy
import io
import pickle

import pytest
import torch

from kofn import nn, schedules, soft_assignment, soft_topk, topk_gates
from kofn.nn.routing.state import RunningThreshold

T, H, E, K = 12, 16, 8, 2

WAYS = {
    "hard": {},
    "raw gates": dict(gates="topk", normalize=False),
    "soft": dict(selection="soft"),
    "expert choice": dict(selection="expert_choice", inference_threshold=True),
    "budget": dict(selection="budget", inference_threshold=True, max_experts=4, balance=1e-2),
    "assignment": dict(selection="assignment", inference_threshold=True),
    "annealed": dict(temperature=schedules.exponential(1.0, 0.1, steps=10), balance=1e-2),
}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def router(way="hard", k=K, **changes):
    return nn.TopKRouter(H, E, k, **{**WAYS[way], **changes})


def experts_of(weights, indices):
    """The weights as [T, E], 0 for experts that a token does not have."""
    return weights.new_zeros(len(weights), E).scatter_add(1, indices, weights)


@every_way
def test_every_logit_gets_a_gradient(way):
    net, x = router(way), torch.randn(3, 4, H)
    logits, weights, indices = net(x)
    assert logits.shape == (T, E)
    assert weights.shape == indices.shape
    assert indices.dtype == torch.int64
    assert ((indices >= 0) & (indices < E)).all()
    assert torch.equal(logits, x.reshape(T, H) @ net.weight.T)
    back = torch.randn_like(weights)
    (grad,) = torch.autograd.grad((weights * back).sum(), logits)
    assert (grad.abs().sum(0) > 0).all()
    if way in ("hard", "raw gates", "soft"):
        assert (grad != 0).all()


def test_a_mixture_has_the_values_of_a_softmax_of_the_chosen():
    logits, weights, indices = router()(torch.randn(T, H))
    top, chosen = logits.topk(K)
    assert torch.equal(indices, chosen)
    assert torch.allclose(weights, top.softmax(-1))
    logits, weights, indices = router(normalize=False)(torch.randn(T, H))
    assert torch.allclose(weights, logits.softmax(-1).gather(1, indices))


def test_a_mixture_has_the_gradients_of_the_softmax_and_of_the_choice():
    net, x = router(normalize=False, temperature=0.7), torch.randn(T, H)
    logits, weights, indices = net(x)
    back = torch.randn_like(weights)
    (found,) = torch.autograd.grad((weights * back).sum(), logits)
    free = logits.detach().requires_grad_()
    share, chosen = free.softmax(-1).gather(1, indices), soft_topk(free, K, temperature=0.7)
    chosen = chosen.gather(1, indices)
    product = share + share.detach() * chosen
    (wanted,) = torch.autograd.grad((product * back).sum(), free)
    assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_topk_gates_are_those_of_the_map(normalize):
    net = router("raw gates", normalize=normalize, link="laplace", temperature=0.5)
    logits, weights, indices = net(torch.randn(T, H))
    gates = topk_gates(logits, K, link="laplace", temperature=0.5, normalize=normalize)
    assert torch.equal(weights, gates[0])
    assert torch.equal(indices, gates[1])


def test_soft_weights_of_all_experts():
    logits, weights, indices = router("soft", k=2.5)(torch.randn(T, H))
    assert torch.equal(indices, torch.arange(E).expand(T, E))
    assert torch.allclose(weights, soft_topk(logits, 2.5) / 2.5)
    assert torch.allclose(weights.sum(-1), torch.ones(T))


def test_expert_choice_fills_every_expert():
    net, x = router("expert choice", k=1.5), torch.randn(T, H)
    logits, weights, indices = net(x)
    load = experts_of((weights > 0).float(), indices).sum(0)
    capacity = -(-T * 3 // (2 * E))
    assert (load == capacity).all()
    chosen = experts_of(weights, indices) > 0
    assert torch.equal(
        chosen, torch.zeros(T, E).scatter(0, logits.topk(capacity, 0).indices, 1) > 0
    )
    assert (weights[:, :-1] >= weights[:, 1:]).all()


def test_a_budget_is_spent_where_the_logits_are_largest():
    net = router("budget", balance=None, max_experts=E)
    logits, weights, indices = net(torch.randn(T, H) * torch.linspace(0.1, 3, T)[:, None])
    chosen = experts_of(weights, indices) > 0
    assert torch.equal(chosen, logits >= logits.flatten().topk(K * T).values[-1])
    assert len(chosen.sum(-1).unique()) > 1  # experts per token differ


def test_a_token_with_too_many_experts_loses_the_smallest_gates():
    wide, narrow = router("budget", max_experts=E), router("budget", max_experts=2)
    narrow.load_state_dict(wide.state_dict())
    x = torch.randn(T, H) * torch.linspace(0.1, 3, T)[:, None]
    assert torch.equal(wide(x)[1][:, :2], narrow(x)[1])


@pytest.mark.parametrize("way", ["expert choice", "budget"])
def test_running_thresholds_choose_token_by_token(way):
    """Only in evaluation, and only with inference_threshold, is a token's choice its own."""
    net, other = router(way), router(way, inference_threshold=False)
    other.weight = net.weight
    for _ in range(60):
        net(torch.randn(64, H))
    x = torch.randn(64, H)
    at_once = experts_of(*net(x)[1:])
    net.eval(), other.eval()
    one_by_one = torch.cat([experts_of(*net(token[None])[1:]) for token in x])
    assert torch.allclose(one_by_one, experts_of(*net(x)[1:]), atol=1e-6)
    assert not torch.allclose(torch.cat([experts_of(*other(t[None])[1:]) for t in x]), one_by_one)
    assert ((one_by_one > 0) == (at_once > 0)).float().mean() > 0.9


def test_running_thresholds_stay_float32_and_skip_infinities():
    running = RunningThreshold(()).bfloat16()
    running.update(torch.tensor(1.001), torch.tensor(3.0))
    running.update(torch.tensor(torch.inf), torch.tensor(4.0))
    assert running.cut == torch.tensor(1.001)
    assert running.threshold == torch.tensor(3.5)


@every_way
def test_padding_gets_no_weight_and_counts_nothing(way):
    net, x = router(way), torch.randn(3, 4, H)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    _, weights, indices = net(x, mask)
    assert (weights[~mask.flatten()] == 0).all()
    alone = router(way)
    alone.load_state_dict(net.state_dict())
    compact = alone(x[mask])
    assert torch.allclose(experts_of(weights, indices)[mask.flatten()], experts_of(*compact[1:]))
    assert torch.equal(net.counts, alone.counts)


def test_a_schedule_follows_the_steps_and_is_resumed():
    net, x = router("annealed"), torch.randn(T, H)
    model = torch.nn.Sequential(net)
    for _ in range(5):
        nn.step_routers(model)
    assert net.current_temperature() == pytest.approx(0.1**0.5)
    again = router("annealed")
    again.load_state_dict(net.state_dict())
    for ours, theirs in zip(net(x), again(x), strict=True):
        assert torch.equal(ours, theirs)
    fixed = router(temperature=0.1**0.5)
    fixed.weight = net.weight
    back = torch.randn(T, K)
    grads = [torch.autograd.grad((n(x)[1] * back).sum(), n.weight)[0] for n in (net, fixed)]
    assert torch.allclose(*grads, atol=1e-6)


def test_the_state_of_a_plain_router_is_that_of_a_linear_layer():
    linear = torch.nn.Linear(H, E, bias=False)
    net = router()
    net(torch.randn(T, H))
    net.load_state_dict(linear.state_dict())
    linear.load_state_dict(net.state_dict())
    assert set(router("budget").state_dict()) == {
        *("weight", "balance.net_steps", "running.cut", "running.threshold", "running.updates")
    }


def test_a_learned_bias_is_that_of_a_linear_layer():
    linear, net = torch.nn.Linear(H, E), router(bias=True)
    net.load_state_dict(linear.state_dict())
    x = torch.randn(T, H)
    logits, weights, indices = net(x)
    assert torch.allclose(logits, linear(x), atol=1e-6)
    assert torch.equal(indices, logits.topk(K).indices)
    (grad,) = torch.autograd.grad((weights * torch.randn(T, K)).sum(), net.bias)
    assert (grad != 0).all()
    assert repr(net).endswith("bias=True)")


@every_way
def test_copies_and_saved_routers_are_the_same(way):
    net, x = router(way), torch.randn(T, H)
    net(x), net.step()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    loaded = router(way)
    loaded.load_state_dict(torch.load(file), strict=True)
    for other in (loaded, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert repr(other) == repr(net)
        for ours, theirs in zip(net.eval()(x), other.eval()(x), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "way", [way if way == "annealed" else pytest.param(way, marks=pytest.mark.full) for way in WAYS]
)
def test_it_compiles_as_one_graph(way, training):
    torch._dynamo.reset()
    net, x = router(way).train(training), torch.randn(T, H)
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(x), twin(x)
    for found, wanted in zip(ours, theirs, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)
    back = torch.randn_like(ours[1])
    (ours[1] * back).sum().backward(), (theirs[1] * back).sum().backward()
    assert torch.allclose(net.weight.grad, twin.weight.grad, atol=1e-5)
    assert all(torch.allclose(a, b) for a, b in zip(net.buffers(), twin.buffers(), strict=True))
    assert torch.equal(net.counts, twin.counts)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.full
@every_way
def test_an_exported_router_is_right_for_other_numbers_of_tokens(way):
    net = router(way).eval()
    tokens = ({0: torch.export.Dim("tokens", min=2)},)
    program = torch.export.export(net, (torch.randn(T, H),), dynamic_shapes=tokens)
    x = torch.randn(7, H)
    for found, wanted in zip(program.module()(x), net(x), strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


@every_way
def test_gates_are_float32_under_autocast_and_keep_the_dtype_elsewhere(way):
    net, x = router(way), torch.randn(T, H)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, weights, _ = net(x)
    assert (logits.dtype, weights.dtype) == (torch.bfloat16, torch.float32)
    assert torch.autograd.grad(weights.square().sum(), net.weight)[0].isfinite().all()
    logits, weights, _ = net.bfloat16()(x.bfloat16())
    assert (logits.dtype, weights.dtype) == (torch.bfloat16, torch.bfloat16)


@every_way
def test_no_tokens_are_fine(way):
    _, weights, indices = router(way)(torch.randn(0, H))
    assert weights.shape == indices.shape
    assert len(weights) == 0


def test_one_expert_is_not_normalized_and_says_so():
    with pytest.warns(UserWarning, match="normalize=False") as caught:
        net = router(k=1)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    logits, weights, indices = net(torch.randn(T, H))
    assert torch.allclose(weights, logits.softmax(-1).gather(1, indices))
    assert not router(k=1, normalize=False).normalize  # without a warning


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(hidden_size=0), ValueError, "hidden_size must be an integer ≥ 1; got 0"),
        (dict(num_experts=2.5), TypeError, "num_experts must be an integer ≥ 1; got 2.5"),
        (dict(k=9), ValueError, r"k must be an integer in \[1, num_experts\] .*= 8\); got 9"),
        (dict(k=1.5), TypeError, "k must be an integer"),
        (dict(k=0, selection="soft"), ValueError, r"k must be a number in \(0, num_experts\]"),
        (dict(selection="best"), ValueError, "selection must be one of 'hard', .*; got 'best'"),
        (dict(gates="raw"), ValueError, "gates must be one of 'mixture', 'topk'; got 'raw'"),
        (dict(gates="mixture", selection="soft"), ValueError, "gates must be 'topk' .* 'mixture'"),
        (dict(gates="topk", k=8), ValueError, "k must be below num_experts .* no gradient"),
        (dict(selection="soft", k=8), ValueError, "k must be below num_experts .* no gradient"),
        (dict(k=1, normalize=True), ValueError, "normalize must be False for k = 1: .*got True"),
        (dict(normalize=1.5), TypeError, "normalize must be True, False or None; got 1.5"),
        (dict(normalize=1), TypeError, "normalize must be True, False or None; got 1"),
        (dict(bias="no"), TypeError, "bias must be True or False; got 'no'"),
        (
            dict(inference_threshold=0.5, selection="budget"),
            TypeError,
            "inference_threshold must be True or False; got 0.5",
        ),
        (dict(normalize=True, selection="budget"), ValueError, "normalize must be False"),
        (dict(link="cauchy"), ValueError, "link must be a kofn.Link or one of .*; got 'cauchy'"),
        (dict(temperature=0), ValueError, "temperature must be .*; got 0"),
        (
            dict(balance=-1.0),
            ValueError,
            "balance must be None, 'quantile' or a finite number > 0; got -1.0",
        ),
        (dict(balance=0.1, selection="soft"), ValueError, "balance is for selection='hard' or"),
        (dict(inference_threshold=True), ValueError, "inference_threshold is for .*'hard'"),
        (dict(max_experts=4), ValueError, "max_experts is for selection='expert_choice' or"),
        (dict(max_experts=1, selection="budget"), ValueError, r"an integer in \[2, 8\].*got 1"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        nn.TopKRouter(**{**dict(hidden_size=H, num_experts=E, k=K), **arguments})


@pytest.mark.parametrize("shape", [(4, H // 2), (H // 2, 4), (3, 4, 2 * H), ()])
def test_hidden_states_of_another_size_are_not_cut_into_tokens(shape):
    with pytest.raises(ValueError, match=r"hidden_states must have shape .*here 16.*; got \("):
        router()(torch.randn(shape))


def test_a_wrong_mask_is_named():
    with pytest.raises(ValueError, match=r"mask must have the shape .* \(3, 4\); got \(3,\)"):
        router()(torch.randn(3, 4, H), torch.ones(3, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"mask must be boolean.* torch.float32"):
        router()(torch.randn(3, 4, H), torch.ones(3, 4))


def test_an_assignment_balances_the_loads_of_each_call():
    net = router("assignment", temperature=0.02)
    with torch.no_grad():
        net.weight.copy_(net.weight + torch.linspace(-1, 1, E)[:, None] / 4)
    x = torch.randn(400, H) + 0.5
    logits, weights, indices = net(x)
    loads = torch.bincount(indices.flatten(), minlength=E)
    assert (loads.sort().values[0] > 70) & (loads.max() < 130)  # 100 each
    assert torch.bincount(logits.topk(K).indices.flatten(), minlength=E).max() > 200
    assert torch.allclose(weights.sum(-1), torch.ones(400))
    soft = soft_assignment(logits, K, temperature=0.02)
    assert indices.shape == (400, K)
    raw = router("assignment", gates="topk", normalize=False, temperature=0.02)
    raw.load_state_dict(net.state_dict())
    _, gates, chosen = raw(x)
    assert torch.allclose(gates, soft.gather(-1, chosen))
    # In eval a token is chosen by the prices that were seen, alone or not.
    net.eval()
    _, _, together = net(x)
    alone = torch.cat([net(each)[2] for each in x[:5, None]])
    assert torch.equal(together[:5], alone)
    assert torch.bincount(together.flatten(), minlength=E).max() < 130
