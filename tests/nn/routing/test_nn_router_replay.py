"""nn.record_routing and nn.replay_routing: a choice of experts that is made twice."""

import copy
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kofn import nn, soft_topk
from kofn.nn.routing import following
from kofn.nn.routing.following import Following
from kofn.nn.routing.selection import SELECTIONS
from test_nn_router import E, H, K, T, own_seed

__all__ = ["own_seed"]  # a fixture

BALANCES = {
    "none": {},
    "signs": dict(balance=0.5),
    "quantile": dict(balance="quantile"),
    "bins": dict(balance="quantile", bins=50),
    "per sequence": dict(balance="quantile", per_sequence=True),
    "sigmoid": dict(balance="quantile", score_function="sigmoid"),
    "groups": dict(balance="quantile", score_function="sigmoid", n_group=4, topk_group=2),
}
GATES = [
    dict(gates=gates, normalize=normalize)
    for gates in ("mixture", "topk")
    for normalize in (True, False)
]


class Model(torch.nn.Module):
    """Layers of a router and experts that are matrices, each of which may be a checkpoint."""

    def __init__(self, layers=3, reentrant=None, **options):
        super().__init__()
        self.routers = torch.nn.ModuleList(nn.TopKRouter(H, E, K, **options) for _ in range(layers))
        self.experts = torch.nn.Parameter(torch.randn(layers, E, H, H) / 4)
        self.reentrant = reentrant

    def block(self, layer, x):
        _, weights, indices = self.routers[layer](x)
        each = torch.einsum("th,tkhi->tki", x, self.experts[layer][indices])
        return x + torch.tanh((weights[..., None] * each).sum(1))

    def forward(self, x):
        for layer in range(len(self.routers)):
            if self.reentrant is None:
                x = self.block(layer, x)
            else:
                x = checkpoint(self.block, layer, x, use_reentrant=self.reentrant)
        return x


def choices(*tokens, layers=3, k=K):
    """Random experts, all of a token different."""
    return torch.rand(*tokens, layers, E).argsort(-1)[..., :k].int()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [each.grad.clone() for each in model.parameters()]


def formula(logits, indices, gates, normalize, sigmoid):
    """The gates at given experts, with their gradients, of the logits of all experts."""
    weights = soft_topk(logits, K).gather(-1, indices)
    if gates == "topk":
        return weights / weights.sum(-1, keepdim=True) if normalize else weights
    share = (logits.sigmoid() if sigmoid else logits.softmax(-1)).gather(-1, indices)
    share = share / share.sum(-1, keepdim=True) if normalize else share
    return share * (1 + weights - weights.detach())


@pytest.mark.parametrize("how", GATES)
@pytest.mark.parametrize("balance", BALANCES)
def test_every_choice_has_the_gates_and_gradients_of_all_logits(balance, how):
    net = nn.TopKRouter(H, E, K, **how, **BALANCES[balance]).double()
    net(torch.randn(50, H, dtype=torch.float64))
    net.step()  # so that a bias would choose otherwise
    every = torch.tensor(list(itertools.permutations(range(E), K)))
    x = torch.randn(len(every), H, dtype=torch.float64)
    with nn.replay_routing(net, every[:, None]):
        logits, weights, indices = net(x)
    assert torch.equal(indices, every)
    free = logits.detach().requires_grad_()
    wanted = formula(free, every, sigmoid=net.score_function == "sigmoid", **how)
    assert torch.allclose(weights, wanted, rtol=1e-12, atol=0)
    back = torch.randn_like(weights)
    (found,) = torch.autograd.grad((weights * back).sum(), logits)
    (slopes,) = torch.autograd.grad((wanted * back).sum(), free)
    assert torch.allclose(found, slopes, rtol=1e-9, atol=1e-12)
    assert (found != 0).all()  # also of experts that nobody has chosen


@pytest.mark.parametrize("how", GATES)
@pytest.mark.parametrize("balance", BALANCES)
def test_an_own_choice_is_the_same_replayed_or_left_to_the_router(balance, how):
    net = nn.TopKRouter(H, E, K, **how, **BALANCES[balance])
    net(torch.randn(50, H))
    net.step()
    net.eval()
    x = torch.randn(200, H)
    with nn.record_routing(net) as record:
        logits, weights, indices = net(x)
    assert record.indices.dtype == torch.int32
    assert torch.equal(record.indices[:, 0], indices.int())
    for told in (record.indices, torch.full_like(record.indices, -1)):
        with nn.replay_routing(net, told):
            again, others, same = net(x)
        assert torch.equal(same, indices)
        assert torch.allclose(others, weights, rtol=1e-6)
        (one,) = torch.autograd.grad(weights.square().sum(), logits, retain_graph=True)
        (other,) = torch.autograd.grad(others.square().sum(), again)
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("balance", BALANCES)
def test_balance_learns_from_what_was_not_replayed(balance):
    one = nn.TopKRouter(H, E, K, **BALANCES[balance])
    other = copy.deepcopy(one)
    x, told = torch.randn(60, H), choices(60, layers=1)
    with nn.replay_routing(one, told):
        one(x)
    if balance != "none":
        one.step(None)
        assert not one.balance().any()
    told[20:] = -1
    with nn.replay_routing(one, told):
        one(x)
    if balance == "per sequence":
        x = x[None]  # the others are counted with the sequence of 60 tokens
    mask = torch.arange(60) >= 20
    other(x, mask if x.ndim == 2 else mask[None])
    if balance != "none":
        one.step(None), other.step(None)
        assert one.balance().any()
        assert torch.equal(one.balance(), other.balance())
    found, wanted = one.statistics(reset=False), other.statistics()
    counts = told[:20].flatten().long().bincount(minlength=E)
    assert found["assignments"] == wanted["assignments"] == 80
    assert torch.equal(found["load"], wanted["load"])
    assert found["replayed_assignments"] == 60 * K + 40
    assert "replayed_load" not in wanted
    one.statistics()
    with nn.replay_routing(one, told):
        one(x)
    assert torch.allclose(one.statistics()["replayed_load"], counts / 40)
    assert one.statistics()["replayed_assignments"] == 0


@pytest.mark.parametrize("reentrant", [None, True, False])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("equal", [False, True])
def test_several_batches_run_again_in_any_order(reentrant, order, equal):
    model, plain = Model(reentrant=reentrant, balance=1e-2), Model(balance=1e-2)
    plain.load_state_dict(model.state_dict())
    batches = [torch.randn(T, H, requires_grad=True) for _ in range(3)]
    if equal:  # the first router has equal scores, and is told otherwise
        batches = [batches[0].detach().clone().requires_grad_() for _ in range(3)]
    told = choices(3 * T)
    told[::5] = -1
    wanted = []
    for x, part in zip(batches, told.split(T), strict=True):
        with nn.replay_routing(plain, part):
            wanted.append(gradients(plain, plain(x).square().sum()))
    with nn.replay_routing(model, told), nn.record_routing(model) as record:
        losses = [model(x).square().sum() for x in batches]
        found = {place: gradients(model, losses[place]) for place in order}
    for place, each in enumerate(wanted):
        for one, other in zip(found[place], each, strict=True):
            assert torch.allclose(one, other, atol=1e-6)
    free = told < 0
    assert torch.equal(record.indices[~free], told[~free])
    assert (record.indices[free] >= 0).all()
    for one, other in zip(model.routers, plain.routers, strict=True):
        assert torch.equal(one.counts, other.counts)
        assert torch.equal(one.replayed, other.replayed)
        assert one.replayed.sum() == K * (told[:, 0, 0] >= 0).sum()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_call_that_runs_again_after_the_block_is_an_error(reentrant):
    model, x = Model(reentrant=reentrant), torch.randn(T, H, requires_grad=True)
    with nn.replay_routing(model, choices(T)):
        loss = model(x).sum()
    with pytest.raises(RuntimeError, match=r"'routers.2' again after.*call backward\(\) in the"):
        loss.backward()
    model(x).sum().backward()  # those without a replay run again as ever


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("between", ["a call", "a replay", "a backward pass"])
def test_whatever_came_between_it_is_an_error(reentrant, between):
    model, x = Model(reentrant=reentrant), torch.randn(T, H, requires_grad=True)
    with nn.replay_routing(model, choices(T)):
        loss = model(x).sum()
    if between == "a replay":
        with nn.replay_routing(model, choices(T)):
            model(x).sum().backward()
            with pytest.raises(RuntimeError, match="again after its"):
                loss.backward()
        return
    other = model(x).sum()
    if between == "a backward pass":
        other.backward()
    with pytest.raises(RuntimeError, match="again after its"):
        loss.backward()


def test_a_pytorch_that_numbers_no_nodes_is_no_way_to_other_experts(monkeypatch):
    monkeypatch.setattr(following, "node_number", lambda: 0)
    monkeypatch.setattr(following, "numbers_nodes", False)
    model, x = Model(reentrant=False), torch.randn(T, H, requires_grad=True)
    with nn.replay_routing(model, choices(T)):
        model(x).sum().backward()
    loss = model(x).sum()
    with pytest.raises(RuntimeError, match="again after its"):
        loss.backward()


def test_a_model_that_another_thread_calls_is_named():
    model = Model()
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(RuntimeError, match=r"the thread that calls the model; the router 'routers"),
        nn.replay_routing(model, choices(T)),
    ):
        pool.submit(model, torch.randn(T, H)).result()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("tokens", [T, T + 1])
def test_calls_outside_of_a_replay_run_again_by_their_own_choice(reentrant, tokens):
    """Those before it, whose backward pass is in it, and those after it, of the same scores."""
    model, plain = Model(reentrant=reentrant), Model()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(tokens, H, requires_grad=True)
    wanted = gradients(plain, plain(x).square().sum())
    before = model(x).square().sum()
    with nn.replay_routing(model, choices(tokens)):
        gradients(model, model(x).square().sum())
        found = gradients(model, before)
    after = gradients(model, model(x).square().sum())
    for each in (found, after):
        for one, other in zip(each, wanted, strict=True):
            assert torch.allclose(one, other, atol=1e-6)


def test_layers_tokens_and_experts_that_do_not_fit_are_named():
    model, x = Model(), torch.randn(T, H)
    named = r"\('routers.0', 'routers.1', 'routers.2'\)"
    for told, message in (
        (choices(T, layers=2), rf"a layer for each of the 3 routers {named}; got 2 layers"),
        (choices(T, layers=4), r"3 routers.*got 4 layers"),
        (choices(T, k=3), r"k = 2 experts for the router 'routers.0'; got 3"),
        (torch.zeros(T, 3), r"indices must be an array of integers.*got torch.float32"),
        ("three", r"indices must be an array of integers"),
        (torch.zeros(T, 3).int(), r"must have shape \(tokens, layers, k\); got \(12, 3\)"),
    ):
        kind = TypeError if "integers" in message else ValueError
        with pytest.raises(kind, match=message), nn.replay_routing(model, told):
            pass
    for row, what in (
        ([0, E], rf"in \[-1, {E}\); got \[0, {E}\]"),
        ([-2, 0], rf"in \[-1, {E}\)"),
        ([-1, 3], r"−1 for all k experts of a token, or for none"),
        ([3, 3], r"k different experts of a token; got \[3, 3\]"),
    ):
        told = choices(T)
        told[4, 1] = torch.tensor(row)
        with (
            pytest.raises(ValueError, match=rf"{what}.*the token 4 of the router 'routers.1'"),
            nn.replay_routing(model, told),
        ):
            pass
    with (
        pytest.raises(ValueError, match=r"'routers.0' has been given 12 tokens; got 11"),
        nn.replay_routing(model, choices(T - 1)),
    ):
        model(x)
    with (
        pytest.raises(ValueError, match=r"'routers.0' has been given 12 tokens; got 13"),
        nn.replay_routing(model, choices(T + 1)),
    ):
        model(x)
    with (
        pytest.raises(ValueError, match=r"'routers.2' has been given 0 tokens; got 12"),
        nn.replay_routing(model, choices(T)),
    ):
        model.routers[0](x), model.routers[1](x)
    with (
        nn.replay_routing(model, choices(0)),
        pytest.raises(RuntimeError, match=r"'routers.0' is in another nn.replay_routing"),
        nn.replay_routing(model, choices(T)),
    ):
        pass
    with nn.record_routing(model) as record:
        assert record.indices.shape == (0, 3, K)
        model.routers[0](x)
    with pytest.raises(ValueError, match=r"equal tokens; got 'routers.0': 12, 'routers.1': 0"):
        record.indices  # noqa: B018
    with pytest.raises(ZeroDivisionError), nn.replay_routing(model, choices(T)):
        1 / 0  # noqa: B018
    model(x)  # nothing is left of it


@pytest.mark.parametrize("selection", SELECTIONS)
def test_selections_other_than_hard_are_refused_by_name(selection):
    options = dict(inference_threshold=selection in ("expert_choice", "budget", "assignment"))
    model = torch.nn.Sequential(
        nn.TopKRouter(H, E, K), nn.TopKRouter(H, E, K, selection=selection, **options)
    )
    for followed in (nn.record_routing(model), nn.replay_routing(model, choices(0, layers=2))):
        if selection == "hard":
            with followed:
                continue
        with pytest.raises(ValueError, match=rf"got '{selection}' for the router '1'"), followed:
            pass
    with (
        pytest.raises(ValueError, match=r"needs a model with routers; got a Linear without"),
        nn.record_routing(torch.nn.Linear(2, 2)),
    ):
        pass
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module; got a int"):
        nn.record_routing(3).__enter__()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint8])
def test_answers_of_an_engine_fill_a_padded_batch(side, dtype):
    lengths, width = (5, 3, 4), 6
    places = torch.arange(width)
    mask = torch.stack([places < n if side == "right" else places >= width - n for n in lengths])
    told = [choices(n) for n in lengths]
    answers = [each[:-1].numpy().astype(dtype) for each in told]  # no engine computes the last
    answers[2] = told[2].numpy().astype(dtype)  # unless the sequence was a prompt
    model, x = Model(), torch.randn(len(lengths), width, H)
    with nn.replay_routing(model, answers, mask), nn.record_routing(model) as record:
        model(x.flatten(0, 1))
    back = record.sequences(mask)
    assert [each.shape for each in back] == [(n, 3, K) for n in lengths]
    for row, answer in zip(back, answers, strict=True):
        assert np.array_equal(row[: len(answer)].numpy(), answer)
    with nn.record_routing(model) as free:
        model(x.flatten(0, 1))
    first = slice(0, 1)  # of padding and of the last tokens, the first layer chooses by itself
    last = back[0][-1, first], free.sequences(mask)[0][-1, first]
    assert torch.equal(*last)
    assert torch.equal(record.indices[~mask.flatten(), 0], free.indices[~mask.flatten(), 0])
    whole = record.indices.unflatten(0, mask.shape)  # (sequences, length, layers, k)
    with nn.replay_routing(model, whole), nn.record_routing(model) as again:
        model(x.flatten(0, 1))
    assert torch.equal(again.indices, record.indices)


def test_masks_and_lists_that_do_not_fit_are_named():
    model, mask = Model(), torch.ones(2, 4, dtype=torch.bool)
    for told, message in (
        ([choices(4)], r"one array for each of the 2 sequences of the mask; got 1 arrays"),
        (choices(8), r"indices must be a list .* got Tensor"),
        ([choices(4), choices(5)], r"indices\[1\] must have the 4 tokens of its sequence, or one"),
        ([choices(2), choices(4)], r"indices\[0\] must have the 4 tokens.*got the shape \(2, 3,"),
    ):
        with pytest.raises(ValueError, match=message), nn.replay_routing(model, told, mask):
            pass
    with nn.record_routing(model) as record:
        model(torch.randn(8, H))
    with pytest.raises(ValueError, match=r"one entry for each of the 8 recorded tokens"):
        record.sequences(mask[:1])
    with pytest.raises(ValueError, match=r"mask must have shape \[sequences, length\]"):
        record.sequences(mask[0])
    with pytest.raises(TypeError, match="boolean, False for padding"):
        record.sequences(mask.int())


def test_a_token_that_a_mask_leaves_out_is_recorded_as_free():
    net, x, mask = nn.TopKRouter(H, E, K), torch.randn(T, H), torch.arange(T) % 3 > 0
    with nn.record_routing(net) as record:
        _, weights, indices = net(x, mask)
    assert (indices >= 0).all()
    assert (record.indices[~mask] == -1).all()
    assert torch.equal(record.indices[mask, 0], indices[mask].int())
    with nn.replay_routing(net, record.indices):
        assert torch.allclose(net(x, mask)[1], weights)


def test_a_state_and_copies_know_nothing_of_it():
    model, x = Model(balance=1e-2), torch.randn(T, H)
    keys, told = model.state_dict().keys(), choices(T)
    with nn.replay_routing(model, told):
        copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        assert model.state_dict().keys() == keys
        model(x)
    assert model.state_dict().keys() == copied.state_dict().keys() == keys
    for each in (copied, pickled):
        assert all(router.following is None for router in each.routers)
        with nn.record_routing(each) as record:
            each(x)
        assert not torch.equal(record.indices, told)
    assert isinstance(model.routers[0].following, Following)
    with torch.inference_mode(), nn.record_routing(model) as record:
        model(x)
    with nn.replay_routing(model, record.indices):
        model(x).sum().backward()


def test_it_runs_in_bfloat16_and_in_autocast():
    net, x, told = nn.TopKRouter(H, E, K), torch.randn(T, H), choices(T, layers=1)
    with torch.autocast("cpu", torch.bfloat16), nn.replay_routing(net, told):
        logits, weights, indices = net(x)
    assert weights.dtype == torch.float32
    assert torch.equal(indices, told[:, 0].long())
    assert torch.allclose(weights, logits.float().gather(1, indices).softmax(-1))
    net.bfloat16()
    with nn.replay_routing(net, told):
        assert net(x.bfloat16())[1].dtype == torch.bfloat16
