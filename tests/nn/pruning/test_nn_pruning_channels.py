"""nn.prune(pattern="channel"): whole output channels, and layers without them."""

import copy

import pytest
import torch

from kofn import nn, soft_topk
from support import each_compiler

COOL = nn.PruningSchedule(20, frozen=0.2)
X, Y = torch.randn(16, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def cnn(bias=True, between=torch.nn.Tanh):
    return torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1, bias=bias), torch.nn.ReLU()),
        torch.nn.Conv2d(8, 6, 3, padding=1),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(24, 12),
        between(),
        torch.nn.Linear(12, 4),
    )


def pruned(amount=0.5, model=None, **given):
    model = cnn() if model is None else model
    given = {"schedule": COOL, "exclude": "6", **given}
    return model, nn.prune(model, amount, pattern="channel", **given)


def trained(model, pruner, steps):
    groups = [{"params": pruner.other_parameters()}, pruner.score_parameters()]
    optimizer = torch.optim.Adam(groups, lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
        pruner.step(optimizer)


def alive(model):
    """How many channels of each layer are not 0, with their biases."""
    layers = model[0][0], model[1], model[4]
    found = []
    for layer in layers:
        rows = layer.weight.flatten(1)
        whole = (rows != 0).all(1)
        assert torch.equal(whole, (rows != 0).any(1))
        if layer.bias is not None:
            assert not layer.bias[~whole].any()
        found.append(int(whole.sum()))
    return found


@pytest.mark.parametrize("amount", [0.5, 13])
def test_channels_are_kept_or_removed_with_their_biases(amount):
    model, pruner = pruned(amount)
    assert repr(pruner) == "Pruner(3 weights, kept=13 of 26, step 0 of 20)"
    trained(model, pruner, 20)
    before = model(X)
    masks = pruner.masks()
    assert masks["1.weight"].shape == model[1].weight.shape
    pruner.finalize()
    assert sum(alive(model)) == 13
    assert torch.equal(model(X), before)
    assert list(model.state_dict()) == list(cnn().state_dict())
    assert (model[6].weight != 0).all()


def test_the_mask_is_one_soft_top_k_of_the_scores_of_channels():
    model, pruner = pruned(0.5, schedule=nn.PruningSchedule(20, temperature=(0.02, 0.01)))
    pruner.clock.owner.steps += 10  # k has fallen
    layers = model[0][0], model[1], model[4]
    row = torch.cat([layer.parametrizations.weight[0].scores for layer in layers])
    assert row.shape == (26,)
    row = row.detach().requires_grad_()
    p = soft_topk(row, 13, temperature=pruner.clock.schedule.temperature_at(10))
    own = torch.split(p, [8, 6, 12])
    given = {}
    for name, layer, part in zip(("0.0", "1", "4"), layers, own, strict=True):
        held = layer.parametrizations
        shaped = part.view(-1, *[1] * (layer.weight.ndim - 1))
        given[f"{name}.weight"] = held.weight.original.detach() * shaped
        given[f"{name}.bias"] = held.bias.original.detach() * part
        assert torch.allclose(layer.weight, given[f"{name}.weight"], atol=1e-6)
        assert torch.allclose(layer.bias, given[f"{name}.bias"], atol=1e-6)
    plain = cnn()
    plain.load_state_dict(
        {**plain.state_dict(), "6.weight": model[6].weight, "6.bias": model[6].bias}
    )
    torch.func.functional_call(plain, given, (X,)).square().sum().backward()
    model(X).square().sum().backward()
    found = torch.cat([layer.parametrizations.weight[0].scores.grad for layer in layers])
    assert row.grad.abs().max() > 1e-3
    assert torch.allclose(found, row.grad, rtol=1e-4, atol=1e-5)


def test_layers_keep_different_numbers_and_at_least_one():
    model, pruner = pruned(23)
    with torch.no_grad():
        model[1].parametrizations.weight[0].scores += 9
    pruner.finalize()
    assert alive(model) == [1, 1, 1]
    model, pruner = pruned(20)
    with torch.no_grad():
        model[1].parametrizations.weight[0].scores += 9
    pruner.finalize()
    assert alive(model) == [1, 4, 1]
    for given in (dict(amount=24), dict(amount=None, budget=2), dict(amount=1.0, scope="layer")):
        with pytest.raises(ValueError, match=r"must leave one channel to each of [13] layers"):
            pruned(**given)


@pytest.mark.parametrize(
    ("given", "cost"),
    [
        (dict(costs="bytes"), [36, 288, 96]),
        (dict(costs="flops", example_inputs=X), [288, 2304, 48]),
        (dict(costs=lambda name, module: torch.ones_like(module.weight)), [9, 72, 24]),
    ],
    ids=["bytes", "flops", "function"],
)
def test_channels_cost_what_their_weights_do(given, cost):
    model, pruner = pruned(0.5, **given)
    pruner.finalize()
    numbers = alive(model)
    whole = sum(c * n for c, n in zip(cost, (8, 6, 12), strict=True))
    spent = sum(c * n for c, n in zip(cost, numbers, strict=True))
    assert whole / 2 - max(cost) < spent <= whole / 2
    assert min(numbers) >= 1


def test_each_layer_loses_the_same_share_if_asked():
    model, pruner = pruned(0.5, scope="layer")
    pruner.finalize()
    assert alive(model) == [4, 3, 6]


@pytest.mark.parametrize("bias", [True, False])
def test_layers_without_the_channels_give_the_same(bias):
    model, pruner = pruned(model=cnn(bias))
    trained(model, pruner, 20)
    before, numbers = model(X), None
    masks = pruner.masks()
    numbers = [int(mask.flatten(1)[:, 0].sum()) for mask in masks.values()]
    assert pruner.finalize(take_out=True) is model
    assert torch.allclose(model(X), before, atol=1e-6)
    assert [model[0][0].out_channels, model[1].out_channels, model[4].out_features] == numbers
    assert [model[1].in_channels, model[4].in_features, model[6].in_features] == [
        *(numbers[0], 4 * numbers[1], numbers[2])
    ]
    assert sum(each.numel() for each in model.parameters()) < 0.6 * sum(
        each.numel() for each in cnn(bias).parameters()
    )
    model(X).sum().backward()
    assert all(each.grad is not None for each in model.parameters())


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)


REFUSED = [
    (lambda: cnn(between=torch.nn.Sigmoid), "6", r"5 \(Sigmoid\) does not take 0 to 0"),
    (cnn, (), "6 gives the answer of the model, whose channels cannot be taken out; exclude it"),
    (Plain, "last", r"taken out of torch\.nn\.Sequential alone, .* got Plain"),
    (
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 6), Plain()),
        "1.last",
        r"taken out of torch\.nn\.Sequential alone, .* got 1 \(Plain\)",
    ),
    (
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)),
        (),
        r"1 \(BatchNorm1d\) does not take 0 to 0",
    ),
    (
        lambda: torch.nn.Sequential(torch.nn.Conv1d(1, 4, 3), torch.nn.Linear(4, 2)),
        "1",
        r"1 \(Linear\) does not take the 4 channels before it",
    ),
    (
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Conv1d(4, 2, 1)),
        "1",
        r"1 \(Conv1d\) does not take the 4 channels before it",
    ),
    (
        lambda: torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Flatten(), torch.nn.Linear(8, 2)
        ),
        "2",
        r"2 \(Linear\) does not take the 4 channels before it",
    ),
    (
        lambda: torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.MaxPool1d(2), torch.nn.Linear(2, 2)
        ),
        "2",
        r"1 \(MaxPool1d\) does not take 0 to 0",
    ),
    (
        lambda: torch.nn.Sequential(torch.nn.Conv1d(1, 4, 3), torch.nn.Linear(8, 2)),
        "1",
        r"1 \(Linear\) does not take the 4 channels before it",
    ),
    (
        lambda: torch.nn.Sequential(torch.nn.Conv1d(1, 4, 3), torch.nn.Conv1d(4, 4, 3, groups=2)),
        "1",
        r"1 \(Conv1d\) has groups",
    ),
]


@pytest.mark.parametrize(("make", "exclude", "words"), REFUSED)
def test_other_models_are_refused_by_name_and_stay(make, exclude, words):
    model, pruner = pruned(0.5, make(), exclude=exclude)
    names = list(model.state_dict())
    with pytest.raises(ValueError, match=words):
        pruner.finalize(take_out=True)
    assert list(model.state_dict()) == names
    pruner.finalize()


def test_what_has_no_output_channels_is_refused_by_name():
    transposed = torch.nn.Sequential(torch.nn.ConvTranspose1d(2, 4, 3))
    with pytest.raises(ValueError, match=r"0\.weight is of ConvTranspose1d; pattern=\"channel\""):
        nn.prune(transposed, 0.5, pattern="channel", schedule=9)
    model = cnn()
    torch.nn.utils.parametrize.register_parametrization(model[1], "bias", torch.nn.Identity())
    with pytest.raises(ValueError, match=r"the bias of 1\.weight has a parametrization"):
        pruned(model=model)
    with pytest.raises(ValueError, match="choice='k_subset' needs pattern=\"n:m\""):
        pruned(choice="k_subset")
    _, pruner = pruned()
    with pytest.raises(TypeError, match="take_out must be True or False; got 'yes'"):
        pruner.finalize(take_out="yes")
    pruner = nn.prune(cnn(), 0.5, schedule=9)
    with pytest.raises(ValueError, match='take_out is for pattern="channel"'):
        pruner.finalize(take_out=True)


def test_a_run_that_is_resumed_is_the_same_before_the_mask_is_fixed_and_after():
    whole, by = pruned()
    trained(whole, by, 10)
    for steps in (0, 10):
        trained(whole, by, steps)
        again, other = pruned()
        again.load_state_dict(whole.state_dict())
        assert other.frozen == by.frozen
        assert torch.equal(again(X), whole(X))
    assert by.frozen


def test_copies_and_averages_have_the_mask_too():
    model, pruner = pruned()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.module, twin = copy.deepcopy((model, pruner))
    trained(model, pruner, 20)
    twin.freeze()
    averaged.update_parameters(model)
    assert torch.equal(averaged.module[1].bias, model[1].bias)
    pruner.finalize()
    # The classes of parametrized layers are shared with copies, whose masks stay.
    assert torch.equal(averaged.module(X), model(X))
    twin.finalize()
    assert alive(averaged.module) == alive(model)


@pytest.mark.full
@each_compiler
def test_it_compiles_as_one_graph(backend):
    torch._dynamo.reset()
    model, pruner = pruned()
    pruner.clock.owner.steps += 3
    for freeze in (False, True):
        if freeze:
            pruner.freeze()
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        assert torch.allclose(compiled(X), model(X), atol=1e-5)
