"""nn.prune: what is kept, what learns, what is remembered, and what is left at the end."""

import copy
import gc
import io
import pickle

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrize
from torch.nn.utils import prune as torch_prune

from kofn import KSubset, hard_topk, nn, soft_topk
from kofn.nn.pruning.semi_structured import RULES

PLAIN = nn.PruningSchedule(20, frozen=0.2)


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def cnn():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 12),
        torch.nn.Tanh(),
        torch.nn.Linear(12, 4),
    )


X, Y = torch.randn(16, 1, 4, 4), torch.arange(16) % 4
N = 8 * 9 + 8 * 8 * 9 + 128 * 12 + 12 * 4


def adam(pruner):
    groups = [{"params": pruner.other_parameters()}, pruner.score_parameters()]
    return torch.optim.Adam(groups, lr=1e-2)


def trained(model, pruner, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
        pruner.step(optimizer)


def weights(model):
    return [each.weight for each in model if hasattr(each, "weight")]


def nonzeros(model):
    return sum(int((weight != 0).sum()) for weight in weights(model))


def test_as_many_are_left_as_asked_and_nothing_else():
    model, plain = cnn(), cnn()
    before = [id(each) for each in model.parameters()]
    pruner = nn.prune(model, 0.95, schedule=PLAIN)
    trained(model, pruner, adam(pruner), 20)
    masked = model(X)
    assert pruner.finalize() is model
    assert nonzeros(model) == N - round(0.95 * N)
    assert torch.allclose(model(X), masked, atol=1e-6)
    assert [type(each) for each in model] == [type(each) for each in plain]
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [id(each) for each in model.parameters()] == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any(parametrize.is_parametrized(each) for each in model)
    pickle.loads(pickle.dumps(model))
    with pytest.raises(RuntimeError, match="called before"):
        pruner.finalize()


@pytest.mark.parametrize(
    ("amount", "kept"), [(0.0, N), (1.0, 0), (0.5, N - round(0.5 * N)), (100, N - 100), (N, 0)]
)
def test_amounts_are_those_of_torch(amount, kept):
    model = cnn()
    pruner = nn.prune(model, amount, schedule=PLAIN)
    trained(model, pruner, adam(pruner), 3)
    assert torch.isfinite(model(X)).all()
    pruner.finalize()
    assert nonzeros(model) == kept
    reference = cnn()
    if isinstance(amount, float):
        layers = [(each, "weight") for each in reference if hasattr(each, "weight")]
        way = torch_prune.L1Unstructured
        torch_prune.global_unstructured(layers, way, amount=amount)
        assert sum(int(each.weight_mask.sum()) for each, _ in layers) == kept


def test_a_budget_is_what_is_kept_and_layers_lose_the_same_share():
    model = cnn()
    nn.prune(model, budget=33, schedule=PLAIN).finalize()
    assert nonzeros(model) == 33
    model = cnn()
    nn.prune(model, 0.75, scope="layer", schedule=PLAIN).finalize()
    assert [int((w != 0).sum()) for w in weights(model)] == [18, 144, 384, 12]


def test_the_masks_are_one_soft_top_k_of_all_scores():
    """Σ masks is what the schedule says; every score gets the gradient of the concatenated row."""
    model = cnn()
    pruner = nn.prune(model, 0.9, schedule=nn.PruningSchedule(10, temperature=(0.02, 0.01)))
    trained(model, pruner, adam(pruner), 3)
    lists = [each.parametrizations["weight"] for each in model if hasattr(each, "weight")]
    scores = [each[0].scores for each in lists]
    row = torch.cat([each.flatten() for each in scores]).detach().requires_grad_()
    schedule = pruner.clock.schedule
    k, temperature = schedule.kept(3, N, N - round(0.9 * N)), schedule.temperature_at(3)
    mask = soft_topk(row, k, temperature=temperature)
    parts = mask.split([each.numel() for each in scores])
    originals = [each.original for each in lists]
    masked = [p.view_as(w) * w for p, w in zip(parts, originals, strict=True)]
    for found, wanted in zip(weights(model), masked, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)
    names = {f"{i}.weight": w for i, w in zip((0, 2, 5, 7), masked, strict=True)}
    dense = cnn()
    dense.load_state_dict({n: p for n, p in model.state_dict().items() if "bias" in n}, False)
    loss = torch.nn.functional.cross_entropy(torch.func.functional_call(dense, names, X), Y)
    (wanted,) = torch.autograd.grad(loss, row)
    loss = torch.nn.functional.cross_entropy(model(X), Y)
    found = torch.cat([g.flatten() for g in torch.autograd.grad(loss, scores)])
    assert torch.allclose(found, wanted, atol=1e-5 * float(wanted.norm()))
    assert wanted.norm() > 0


def test_weights_outside_of_a_call_of_the_model_have_the_same_gradient():
    model = cnn()
    pruner = nn.prune(model, 0.5, schedule=nn.PruningSchedule(10, temperature=(0.02, 0.01)))
    pruner.clock.owner.steps += 2
    scores = pruner.score_parameters()["params"]
    inside = torch.autograd.grad(model(X).square().sum(), scores)
    x = X
    for layer in model:
        x = layer(x)
    outside = torch.autograd.grad(x.square().sum(), scores)
    for ours, theirs in zip(inside, outside, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6 * float(theirs.norm()) + 1e-9)
    one, two = model(X).sum(), model(-X).sum()  # two graphs, each with its own threshold
    one.backward(), two.backward()


def test_scores_that_the_optimizer_lacks_are_an_error():
    model = cnn()
    pruner = nn.prune(model, 0.9, schedule=PLAIN)
    without = torch.optim.Adam(pruner.other_parameters())
    with pytest.raises(RuntimeError, match=r"does not have the scores of 0\.weight; give it"):
        trained(model, pruner, without, 1)
    pruner = nn.prune(other := cnn(), 0.9, schedule=PLAIN)
    without = torch.optim.Adam(pruner.other_parameters())
    other(X).sum().backward()
    pruner.step()  # a step that an overflow made the optimizer leave out tells nothing
    without.step()
    with pytest.raises(RuntimeError, match="does not have the scores"):
        pruner.step()
    pruner = nn.prune(other := cnn(), 0.9, schedule=PLAIN)
    optimizer = adam(pruner)
    other(X).sum().backward()
    optimizer.step()
    pruner.step()
    magnitude = nn.prune(other := cnn(), 0.9, schedule=PLAIN, scores="magnitude")
    trained(other, magnitude, torch.optim.SGD(other.parameters(), lr=0.1), 2)


def test_a_run_that_is_resumed_is_the_same():
    """Bit for bit, before the mask is fixed and after."""
    for stop in (7, 18):
        model = cnn()
        start = copy.deepcopy(model.state_dict())
        pruner = nn.prune(model, 0.9, schedule=PLAIN)
        optimizer = adam(pruner)
        trained(model, pruner, optimizer, stop)
        file = io.BytesIO()
        torch.save((model.state_dict(), optimizer.state_dict()), file)
        file.seek(0)
        states = torch.load(file)
        trained(model, pruner, optimizer, 20 - stop)
        again = cnn()
        again.load_state_dict(start)
        other = nn.prune(again, 0.9, schedule=PLAIN)
        theirs = adam(other)
        again.load_state_dict(states[0], strict=True)
        theirs.load_state_dict(states[1])
        assert other.steps == stop
        assert other.frozen == (stop == 18)
        trained(again, other, theirs, 20 - stop)
        for ours, saved in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(ours, saved)
        pruner.finalize(), other.finalize()
        assert all(map(torch.equal, weights(model), weights(again)))


def test_a_fixed_mask_stays_and_its_scores_do_not_learn():
    model = cnn()
    pruner = nn.prune(model, 0.9, schedule=PLAIN)
    optimizer = adam(pruner)
    trained(model, pruner, optimizer, 16)
    assert pruner.frozen
    assert pruner.masks()["0.weight"].dtype == torch.bool
    kept = [w != 0 for w in weights(model)]
    assert sum(int(mask.sum()) for mask in kept) == N - round(0.9 * N)
    trained(model, pruner, optimizer, 4)
    assert all(torch.equal(w != 0, mask) for w, mask in zip(weights(model), kept, strict=True))
    assert all(each.grad is None for each in pruner.score_parameters()["params"])


@pytest.mark.parametrize("choice", ["soft_topk", "k_subset", "k_subset_sample"])
def test_two_of_four(choice):
    model = cnn()
    schedule = nn.PruningSchedule(20, temperature=(0.02, 1e-4), frozen=0.0)
    exclude = ["0", "7.*"]
    pruner = nn.prune(model, pattern="2:4", choice=choice, schedule=schedule, exclude=exclude)
    first = pruner.entropy()["5.weight"]
    assert 1.5 < first <= torch.tensor(6.0).log() + 1e-5
    trained(model, pruner, adam(pruner), 20)
    soft = weights(model)[1].detach()
    scores = pruner.members[0].scores.detach()
    if choice == "soft_topk":
        mask = soft_topk(scores.view(-1, 4), 2, temperature=1e-4)
    else:
        mask = KSubset(scores.view(-1, 4) / 1e-4, 2).marginals()
    original = pruner.members[0].original.detach()
    if choice != "k_subset_sample":
        assert torch.allclose(soft, mask.view_as(soft) * original, atol=1e-5)
    else:
        assert ((soft.view(-1, 4) != 0).sum(-1) == 2).all()
    assert pruner.entropy()["5.weight"] < first
    pruner.finalize()
    for weight in weights(model)[1:3]:
        assert ((weight.reshape(-1, 4) != 0).sum(-1) == 2).all()
    chosen = hard_topk(scores.view(-1, 4), 2) > 0
    assert torch.equal(weights(model)[1].view(-1, 4) != 0, chosen)
    assert (weights(model)[0] != 0).all()


def test_blocks_are_kept_or_removed_together():
    model = cnn()
    pruner = nn.prune(model, 0.75, pattern=(4, 8), exclude=("0", "7"), schedule=PLAIN)
    trained(model, pruner, adam(pruner), 20)
    pruner.finalize()
    kept = 0
    for weight in weights(model)[1:3]:
        matrix = weight.flatten(1)
        blocks = matrix.view(len(matrix) // 4, 4, -1, 8).transpose(1, 2).reshape(-1, 32)
        whole = (blocks != 0).sum(-1)
        assert set(whole.tolist()) <= {0, 32}
        kept += int(whole.sum())
    assert kept == 32 * round(0.25 * (576 + 1536) / 32)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (dict(budget=640), 640),
        (dict(budget=650), 640),
        (dict(amount=2112 - 640), 640),
        (dict(amount=2112 - 650), 640),
    ],
    ids=str,
)
def test_numbers_of_weights_are_of_whole_blocks(given, kept):
    model = cnn()
    nn.prune(model, pattern=(4, 8), exclude=("0", "7"), schedule=PLAIN, **given).finalize()
    assert sum(int((weight != 0).sum()) for weight in weights(model)[1:3]) == kept


def test_costs_in_operations_and_bytes_are_within_the_budget():
    model = cnn()
    pruner = nn.prune(model, 0.9, costs="flops", example_inputs=X, schedule=PLAIN)
    assert [each.cost for each in pruner.members] == [32.0, 32.0, 2.0, 2.0]
    total = 32 * (72 + 576) + 2 * (1536 + 48)
    trained(model, pruner, adam(pruner), 20)
    pruner.finalize()
    spent = sum(
        c * int((w != 0).sum()) for c, w in zip((32, 32, 2, 2), weights(model), strict=True)
    )
    assert 0.1 * total - 32 <= spent <= 0.1 * total + 1e-6
    model = cnn()
    model[5].double()
    pruner = nn.prune(model, budget=800, costs="bytes", schedule=PLAIN)
    pruner.finalize()
    spent = sum(w.element_size() * int((w != 0).sum()) for w in weights(model))
    assert 800 - 8 <= spent <= 800
    model = cnn()
    own = lambda name, module: torch.rand(module.weight.shape) + 0.5  # noqa: E731
    pruner = nn.prune(model, budget=50.0, costs=own, schedule=PLAIN)
    trained(model, pruner, adam(pruner), 4)
    mask = pruner.masks()
    spent = sum(float((m.cost * mask[m.target.name]).sum()) for m in pruner.members)
    assert 48.5 <= spent <= 50


def test_scores_by_magnitude_and_by_a_function():
    model = cnn()
    rule = copy.deepcopy(model)
    nn.prune(model, 0.8, schedule=PLAIN, scores="magnitude").finalize()
    layers = [(each, "weight") for each in rule if hasattr(each, "weight")]
    torch_prune.global_unstructured(layers, torch_prune.L1Unstructured, amount=0.8)
    for ours, theirs in zip(weights(model), weights(rule), strict=True):
        assert torch.equal(ours, theirs)
    model = cnn()
    nn.prune(model, 0.5, schedule=PLAIN, scores=lambda name, w: w * (name != "5.weight")).finalize()
    assert all((w >= 0).all() for w in weights(model)[:2])
    assert (weights(model)[2] < 0).any()


def test_a_deep_copy_goes_on_by_itself():
    model = cnn()
    pruner = nn.prune(model, 0.9, schedule=PLAIN)
    optimizer = adam(pruner)
    trained(model, pruner, optimizer, 5)
    other, theirs = copy.deepcopy((model, pruner))
    assert torch.allclose(other(X), model(X), atol=1e-6)
    trained(model, pruner, optimizer, 2)
    assert (theirs.steps, pruner.steps) == (5, 7)
    trained(other, theirs, adam(theirs), 15)
    theirs.finalize()
    assert nonzeros(other) == N - round(0.9 * N)
    assert parametrize.is_parametrized(model[0])
    model(X)  # PyTorch's own removal would take the weights of all copies away
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(model)


def test_half_types_and_autocast():
    for dtype in (torch.bfloat16, torch.float16):
        model = cnn().to(dtype)
        pruner = nn.prune(model, 0.9, schedule=PLAIN)
        assert all(each.dtype == torch.float32 for each in pruner.score_parameters()["params"])
        model(X.to(dtype)).float().square().sum().backward()
        assert all(each.grad.isfinite().all() for each in pruner.score_parameters()["params"])
        pruner.finalize()
        assert nonzeros(model) == N - round(0.9 * N)
    model = cnn()
    pruner = nn.prune(model, 0.9, schedule=PLAIN)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(X)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(each.grad.dtype == torch.float32 for each in model.parameters())


def test_activation_checkpointing_has_the_same_gradient():
    from torch.utils.checkpoint import checkpoint

    model = cnn()
    pruner = nn.prune(model, 0.5, schedule=nn.PruningSchedule(10, temperature=(0.02, 0.01)))
    scores = pruner.score_parameters()["params"]

    class Whole(torch.nn.Module):
        def forward(self, x):
            return checkpoint(model, x, use_reentrant=False)

    plain = torch.autograd.grad(model(X).square().sum(), scores)
    again = torch.autograd.grad(Whole()(X).square().sum(), scores)
    for ours, theirs in zip(plain, again, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6 * float(theirs.norm()) + 1e-9)


def test_a_pruned_model_is_freed():
    model = cnn()
    pruner = nn.prune(model, 0.9, schedule=PLAIN)
    model(X).sum().backward()
    weak = __import__("weakref").ref(model[0])
    del model, pruner
    gc.collect()
    assert weak() is None


BAD = [
    (dict(), "give one of amount"),
    (dict(amount=0.5, budget=3), "give one of amount"),
    (dict(amount=1.5), "amount must be a share in .* got 1.5"),
    (dict(amount=-0.1), "amount must be"),
    (dict(amount=float("nan")), "amount must be"),
    (dict(amount=N + 1), "amount must be an integer"),
    (dict(amount=np.int64(N + 1)), "amount must be an integer"),
    (dict(amount="0.5"), r"amount must be a share in \[0, 1\], a float, or an integer; got '0.5'"),
    (dict(amount="half", pattern="2:4", exclude="0"), "removes 0.5; .* got 'half'"),
    (dict(amount=float("nan"), pattern="2:4", exclude="0"), "removes 0.5; .* got nan"),
    (dict(amount=0.5, costs=lambda n, m: None), r"cost of 0\.weight must be a number .* got None"),
    (dict(amount=0.5, costs=lambda n, m: np.ones(m.weight.shape)), "must be a number or a tensor"),
    (dict(amount=0.5, exclude=None), "exclude must be names, .* got None"),
    (dict(amount=0.5, exclude=[0]), r"exclude must be names, .* got \[0\]"),
    (dict(budget=N + 1), "budget must be in"),
    (dict(amount=0.5, scope="all"), "scope must be one of"),
    (dict(budget=5, scope="layer"), 'budget needs scope="global"'),
    (dict(amount=0.5, scope="layer", costs="bytes"), 'costs need scope="global"'),
    (dict(amount=0.5, costs="time"), "costs must be None"),
    (dict(amount=0.5, costs="flops"), "needs example_inputs"),
    (dict(amount=0.5, costs=lambda n, m: 0.0), r"the cost of 0\.weight must be finite and > 0"),
    (dict(amount=0.5, costs=lambda n, m: torch.ones(3)), "must be a number or have the shape"),
    (dict(amount=0.5, pattern="2:4"), "0.weight of shape .* has rows of 9 weights"),
    (dict(pattern="4:2", exclude="0"), "pattern must be"),
    (dict(pattern=(0, 4)), "pattern must be"),
    (dict(amount=0.9, pattern="2:4", exclude="0"), "removes 0.5"),
    (dict(amount=0.5, pattern=(3, 3)), "blocks of 3 x 3 do not cover"),
    (dict(amount=0.5, choice="k_subset"), 'needs pattern="n:m"'),
    (dict(pattern="2:4", exclude="0", choice="k_subset", link="linear"), "has no link"),
    (dict(amount=0.5, example_inputs=torch.zeros(1)), 'are for costs="flops"'),
    (dict(amount=0.5, costs="bytes", example_inputs=torch.zeros(1)), 'are for costs="flops"'),
    (dict(amount=0.5, exclude="head"), "exclude must name linear or"),
    (dict(amount=0.5, exclude="*"), "has no linear or convolution layer"),
    (dict(amount=0.5, link="cauchy"), "link must be"),
    (dict(amount=0.5, scores="random"), "scores must be one of"),
    (dict(amount=0.5, schedule=0), "schedule must be a number of steps ≥ 1"),
    (dict(amount=0.5, schedule="long"), "schedule must be a number of steps"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_arguments_are_refused_and_change_nothing(arguments, words):
    model = cnn()
    with pytest.raises((ValueError, TypeError), match=words):
        nn.prune(model, **{"schedule": 10, **arguments})
    assert list(model.state_dict()) == list(cnn().state_dict())


def test_what_is_no_model_and_no_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module; got list"):
        nn.prune([cnn()], 0.5, schedule=10)
    model = cnn()
    pruner = nn.prune(model, 0.5, schedule=10)
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer; got 'adam'"):
        pruner.step("adam")


def test_weights_that_cannot_be_pruned_are_named():
    model = cnn()
    nn.prune(model, 0.5, schedule=10)
    with pytest.raises(ValueError, match=r"0\.weight has a parametrization already"):
        nn.prune(model, 0.5, schedule=10)
    tied = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight are one parameter"):
        nn.prune(tied, 0.5, schedule=10)
    with pytest.raises(ValueError, match="is lazy"):
        nn.prune(torch.nn.Sequential(torch.nn.LazyLinear(3)), 0.5, schedule=10)
    broken = cnn()
    nn.prune(broken, 0.5, schedule=10, scores=lambda name, w: w.sum())
    with pytest.raises(ValueError, match="must return a tensor of the weight's shape"):
        broken(X)


@pytest.mark.parametrize(
    "bad",
    [dict(steps=0), dict(fall=0), dict(cool=1.5), dict(frozen=1), dict(temperature=(1.0, 0.0))],
)
def test_bad_schedules_are_refused(bad):
    with pytest.raises((ValueError, TypeError)):
        nn.PruningSchedule(**{"steps": 10, **bad})


def test_reprs_say_what_is_pruned():
    model = cnn()
    pruner = nn.prune(model, 0.5, schedule=10)
    assert repr(pruner) == f"Pruner(4 weights, kept={N // 2} of {N}, step 0 of 10)"
    assert "PrunedWeight(scores=learned, mask=soft)" in repr(model)
    pruner.freeze()
    assert "mask=fixed" in repr(model)


def test_semi_structured_rules_are_those_of_torch():
    classes = {
        "cutlass": torch.sparse.SparseSemiStructuredTensorCUTLASS,
        "cusparselt": torch.sparse.SparseSemiStructuredTensorCUSPARSELT,
    }
    for backend, theirs in classes.items():
        rules = theirs._DTYPE_SHAPE_CONSTRAINTS.items()
        wanted = {dtype: (each.sparse_min_rows, each.sparse_min_cols) for dtype, each in rules}
        assert wanted == RULES[backend]
    with pytest.raises(ValueError, match=r"shape \(0, 64\) does not fit"):
        nn.check_semi_structured(torch.zeros(0, 64), dtype=torch.float16)


def test_semi_structured_rules_name_the_layer_the_shape_and_what_is_allowed():
    layer = torch.nn.Linear(128, 64)
    with pytest.raises(ValueError, match=r"row 0 has more than 2 nonzeros in 4 neighbours"):
        nn.check_semi_structured(layer, dtype=torch.float16)
    nn.prune(layer, pattern="2:4", schedule=5).finalize()
    nn.check_semi_structured(layer, dtype=torch.float16)
    nn.check_semi_structured(layer, dtype=torch.bfloat16, backend="cusparselt")
    nn.check_semi_structured(layer, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"more than 1 nonzeros in 2 .* pattern=\"1:2\""):
        nn.check_semi_structured(layer)
    with pytest.raises(TypeError, match=r"has dtype torch.float64; cutlass takes torch.float16"):
        nn.check_semi_structured(layer.double())
    thin = torch.nn.Sequential(torch.nn.Linear(48, 32))
    with pytest.raises(ValueError, match=r"0\.weight of shape \(32, 48\) .* multiple of 32 and"):
        nn.check_semi_structured(thin, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"it must be a matrix, such as weight.flatten\(1\)"):
        nn.check_semi_structured(torch.nn.Conv2d(16, 32, 2), dtype=torch.float16)
    with pytest.raises(ValueError, match="must be contiguous"):
        nn.check_semi_structured(torch.zeros(64, 64).T[:, :], dtype=torch.float16)
