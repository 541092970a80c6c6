"""nn.dispatch_plan: the order of grouped matrix products, and back."""

import pytest
import torch
from torch.nn.functional import grouped_mm

from kofn import nn

T, H, E, K = 10, 16, 4, 2


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def routed():
    return torch.randn(T, E).topk(K).indices


def through_experts(plan, x, experts, weights):
    return plan.combine(grouped_mm(plan.gather(x), experts, offs=plan.offsets), weights)


def one_by_one(indices, kept, x, experts, weights):
    each = torch.einsum("th,tkhi->tki", x, experts[indices.clamp(0, E - 1)])
    return (torch.where(kept, weights, 0.0)[..., None] * each).sum(1)


def test_pairs_are_sorted_by_expert_in_token_order():
    indices = routed()
    plan = nn.dispatch_plan(indices, E)
    experts = indices.flatten()[plan.permutation]
    assert (experts.diff() >= 0).all()
    assert (plan.permutation.diff()[experts.diff() == 0] > 0).all()
    assert torch.equal(plan.permutation[plan.inverse], torch.arange(T * K))
    assert torch.equal(plan.tokens, plan.permutation // K)
    assert plan.counts.tolist() == torch.bincount(indices.flatten(), minlength=E).tolist()
    assert torch.equal(plan.offsets, plan.counts.cumsum(0).int())
    assert plan.offsets.dtype == plan.counts.dtype == plan.dropped.dtype == torch.int32
    assert plan.kept.all()
    assert plan.dropped.sum() == 0


@pytest.mark.parametrize("limits", ["none", "mask", "capacity", "outside"])
def test_grouped_products_meet_those_of_single_tokens(limits):
    """Values and gradients; pairs that no expert takes count as 0, whatever memory holds."""
    indices, options = routed(), {}
    if limits == "mask":
        options["mask"] = torch.rand(T, K) > 0.5
    if limits == "capacity":
        options["capacity"] = 3
    if limits == "outside":
        indices[::3] = torch.tensor([E, -1])
    plan = nn.dispatch_plan(indices, E, **options)
    assert plan.kept.all() == (limits == "none")
    assert plan.counts.sum() == plan.kept.sum()
    x, experts, weights = torch.randn(T, H), torch.randn(E, H, H), torch.rand(T, K)
    leaves = [leaf.requires_grad_() for leaf in (x, experts, weights)]
    found = through_experts(plan, *leaves)
    wanted = one_by_one(indices, plan.kept, *leaves)
    assert torch.allclose(found, wanted, atol=1e-5)
    back = torch.randn_like(found)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, back),
        torch.autograd.grad(wanted, leaves, back),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_rows_of_dropped_pairs_may_hold_anything():
    plan = nn.dispatch_plan(routed(), E, capacity=2)
    outputs = torch.randn(T * K, H)
    outputs[plan.counts.sum() :] = torch.nan
    assert plan.combine(outputs, torch.rand(T, K)).isfinite().all()
    x = torch.randn(T, H, requires_grad=True)
    gathered = plan.gather(x)
    garbage = torch.full_like(gathered, torch.nan)
    garbage[: plan.counts.sum()] = 1.0
    (grad,) = torch.autograd.grad(gathered, x, garbage)
    assert torch.equal(grad[:, 0], plan.kept.sum(-1).float())


def test_at_capacity_the_first_tokens_keep_their_places():
    indices = torch.tensor([[0, 1], [0, 2], [0, 1], [1, 0]])
    plan = nn.dispatch_plan(indices, 3, capacity=2)
    assert plan.kept.tolist() == [[True, True], [True, True], [False, True], [False, False]]
    assert plan.counts.tolist() == [2, 2, 1]
    assert plan.dropped.tolist() == [2, 1, 0]
    masked = nn.dispatch_plan(indices, 3, capacity=2, mask=torch.tensor([[False], *[[True]] * 3]))
    assert masked.kept.tolist() == [[False, False], [True, True], [True, True], [True, False]]


def test_padding_of_a_budget_is_left_out():
    router = nn.TopKRouter(H, E, 1.5, selection="budget")
    _, weights, indices = router(torch.randn(T, H))
    plan = nn.dispatch_plan(indices, E, mask=weights > 0)
    assert plan.counts.sum() == T * 3 // 2


@pytest.mark.parametrize(("tokens", "k"), [(0, 2), (3, 0)])
def test_nothing_to_dispatch(tokens, k):
    plan = nn.dispatch_plan(torch.zeros(tokens, k, dtype=torch.int64), E, capacity=1)
    assert plan.offsets.tolist() == [0] * E
    assert plan.combine(plan.gather(torch.randn(tokens, H)), torch.rand(tokens, k)).shape == (
        tokens,
        H,
    )


@pytest.mark.full
def test_it_compiles_as_one_graph():
    """In bfloat16, the only type of grouped_mm that PyTorch 2.13 compiles."""

    def layer(x, indices, experts, weights):
        return through_experts(nn.dispatch_plan(indices, E, capacity=3), x, experts, weights)

    x, experts = torch.randn(T, H).bfloat16(), torch.randn(E, H, H).bfloat16()
    arguments = x, routed(), experts, torch.rand(T, K).bfloat16()
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(*arguments)
    assert torch.allclose(found, layer(*arguments), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(indices=torch.zeros(3)), TypeError, r"indices must be integers of shape \[T, k\]"),
        (dict(indices=torch.zeros(3, 2)), TypeError, "got torch.float32"),
        (dict(num_experts=0), ValueError, "num_experts must be an integer ≥ 1; got 0"),
        (dict(capacity=-1), ValueError, "capacity must be None or an integer ≥ 0; got -1"),
        (dict(mask=torch.ones(3, 2)), TypeError, "mask must be boolean.*got torch.float32"),
        (dict(mask=torch.ones(2, 2) > 0), ValueError, r"mask has shape \(2, 2\).*\(3, 2\)"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    usual = dict(indices=torch.zeros(3, 2, dtype=torch.int64), num_experts=E)
    with pytest.raises(error, match=message):
        nn.dispatch_plan(**{**usual, **arguments})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda plan: plan.gather(torch.ones(4, 2)), r"hidden_states .* T = 3; got \(4, 2\)"),
        (lambda plan: plan.gather(torch.ones(3, 1, 2)), r"hidden_states .* got \(3, 1, 2\)"),
        (lambda plan: plan.combine(torch.ones(7, 2), torch.ones(3, 2)), r"outputs .* got \(7, 2\)"),
        (lambda plan: plan.combine(torch.ones(6, 2), torch.ones(3, 1)), r"weights .* got \(3, 1\)"),
        (lambda plan: plan.combine(torch.ones(6, 2), torch.ones(2)), r"weights .* got \(2,\)"),
    ],
)
def test_wrong_shapes_are_not_broadcast(wrong, message):
    plan = nn.dispatch_plan(torch.tensor([[2, 0], [0, 1], [2, 1]]), 3)
    with pytest.raises(ValueError, match=message):
        wrong(plan)


def test_hidden_states_with_more_dimensions_are_taken_flat_and_the_error_says_so():
    plan = nn.dispatch_plan(torch.tensor([[0], [1], [1], [0]]), 2)
    with pytest.raises(ValueError, match=r"got \(2, 2, 3\); give their flatten\(0, -2\)"):
        plan.gather(torch.randn(2, 2, 3))
    with pytest.raises(ValueError, match=r"got \(3, 3\)$"):
        plan.gather(torch.randn(3, 3))
