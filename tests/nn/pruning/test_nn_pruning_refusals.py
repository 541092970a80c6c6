"""nn.prune: what it refuses by name, and budgets that decimal costs add up to."""

import math

import pytest
import torch
from torch.nn.utils import prune as torch_prune

from kofn import nn


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def two_layers():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_weight_that_is_not_finite_is_refused_by_name(bad, dtype):
    model = two_layers().to(dtype)
    model[2].weight.data[1, 3] = bad
    with pytest.raises(ValueError, match=r"^2\.weight must be finite"):
        nn.prune(model, 0.5, schedule=3)
    nn.prune(model, 0.5, schedule=3, exclude="2").finalize()
    assert int((model[0].weight != 0).sum()) == 256


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("scores", ["learned", "magnitude"])
def test_scores_that_are_not_finite_fix_no_mask(scores, scope):
    model = two_layers()
    pruner = nn.prune(model, 0.5, schedule=3, scores=scores, scope=scope)
    change = pruner.members[1].scores if scores == "learned" else pruner.members[1].original
    change.data[0, 0] = math.nan
    for call in (pruner.freeze, pruner.masks, pruner.finalize):
        with pytest.raises(ValueError, match=r"^the scores of 2\.weight must be finite"):
            call()
    assert all(each.mask is None for each in pruner.members)
    change.data[0, 0] = 0.0
    pruner.finalize()
    assert sum(int((each.weight != 0).sum()) for each in (model[0], model[2])) == 320


@pytest.mark.parametrize("budget", [0.1, 33.0, True, "many"])
def test_a_budget_without_costs_is_an_integer(budget):
    with pytest.raises(TypeError, match=r"budget is a number of weights.* amount=0\.9"):
        nn.prune(two_layers(), budget=budget, schedule=3)


@pytest.mark.parametrize("way", ["prune", "weight_norm", "spectral_norm"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_something_computes_are_refused_by_name(way):
    model = two_layers()
    if way == "prune":
        torch_prune.l1_unstructured(model[2], "weight", 0.5)
    else:
        getattr(torch.nn.utils, way)(model[2])
    with pytest.raises(ValueError, match=r"2\.weight is not a parameter.* remove that param"):
        nn.prune(model, 0.5, schedule=3)
    nn.prune(model, 0.5, schedule=3, exclude="2").finalize()


@pytest.mark.parametrize("pattern", [None, "2:4"])
def test_nothing_is_left_to_ask_after_finalize(pattern):
    amount = None if pattern else 0.5
    pruner = nn.prune(two_layers(), amount, schedule=3, pattern=pattern)
    pruner.finalize()
    for call in (pruner.masks, pruner.freeze, pruner.step, pruner.finalize, pruner.entropy):
        with pytest.raises(RuntimeError, match=r"finalize\(\) was called before"):
            call()
    assert pruner.steps == 0


@pytest.mark.parametrize(
    "bad", [1.0, (1,), (1, -1), (1, 0.1, 0.01), (math.inf, 1), (1, math.nan), ("1", 1), None]
)
def test_temperatures_of_a_schedule_are_checked_by_name(bad):
    with pytest.raises((TypeError, ValueError), match=r"^temperature(\[[01]\])? must be"):
        nn.PruningSchedule(10, temperature=bad)


@pytest.mark.parametrize("inputs", [None, 3, (), torch.zeros(()), torch.zeros(0, 6)], ids=str)
def test_example_inputs_without_an_example_are_refused_by_name(inputs):
    with pytest.raises(ValueError, match="example_inputs"):
        nn.prune(two_layers(), 0.5, schedule=3, costs="flops", example_inputs=inputs)


def test_example_inputs_that_the_model_does_not_take_are_told_with_its_error():
    wrong = torch.zeros(2, 99)
    with pytest.raises(
        ValueError, match=r"example_inputs must .* shape \(2, 99\) .* raised Runtime"
    ):
        nn.prune(two_layers(), 0.5, schedule=3, costs="flops", example_inputs=wrong)
    with pytest.raises(
        ValueError, match=r"example_inputs must .* with \[1\.0\] it raised TypeError"
    ):
        nn.prune(two_layers(), 0.5, schedule=3, costs="flops", example_inputs=[1.0])


@pytest.mark.parametrize("bad", [None, 3, "layer", [torch.zeros(64, 64)]], ids=str)
def test_what_has_no_weights_is_not_checked_for_semi_structured_ones(bad):
    with pytest.raises(TypeError, match=r"weights must be a torch\.nn\.Module or a torch\.Tensor"):
        nn.check_semi_structured(bad)


@pytest.mark.parametrize("cost", [0.1, 0.3, 1e-20, 1 / 3])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("tensor", [False, True])
def test_decimal_costs_that_sum_to_the_budget_fit(cost, tied, tensor):
    for shape in ((8, 16), (257, 300)):
        for kept in (1, 3, 50, 64, 127):
            layer = torch.nn.Linear(*shape, bias=False)
            if tied:
                layer.weight.data.fill_(1.0)
            price = torch.full_like(layer.weight, cost, dtype=torch.float64) if tensor else cost
            budget = kept * cost
            nn.prune(layer, budget=budget, costs=lambda n, m, p=price: p, schedule=4).finalize()
            assert int((layer.weight != 0).sum()) == kept


def test_half_of_many_equal_decimal_costs_is_half_of_them():
    layer = torch.nn.Linear(512, 512, bias=False)
    layer.weight.data.fill_(1.0)
    nn.prune(layer, 0.5, costs=lambda name, module: 0.1, schedule=4).finalize()
    assert int((layer.weight != 0).sum()) == 512 * 256


def train(model, steps, after_each):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().sum().backward()
        optimizer.step()
        after_each()


@pytest.mark.parametrize("scores", ["learned", "magnitude"])
def test_a_forgotten_step_is_told_once(scores):
    model = two_layers()
    nn.prune(model, 0.5, schedule=3, scores=scores)
    with pytest.warns(UserWarning, match=r"pruner\.step\(\) was not called") as warned:
        train(model, 5, lambda: None)
    assert len(warned) == 1


def test_steps_that_are_counted_need_no_warning():
    model = two_layers()
    pruner = nn.prune(model, 0.5, schedule=3)
    model.load_state_dict(model.state_dict())  # a change that no optimizer made
    model(torch.randn(8, 16))
    train(model, 5, pruner.step)
    for _ in range(3):  # gradients of several batches in one step
        model(torch.randn(8, 16)).sum().backward()


def test_weights_that_change_in_evaluation_need_no_step():
    model = two_layers().eval()
    nn.prune(model, 0.5, schedule=3)
    for _ in range(4):
        model.load_state_dict(model.state_dict())
        model(torch.randn(8, 16))


@pytest.mark.parametrize(
    "options", [{"amount": 0.5}, {"amount": 0.5, "scope": "layer"}, {"pattern": "2:4"}]
)
def test_vmap_over_soft_masks_is_refused_by_name_and_fixed_ones_are_right(options):
    models = [two_layers() for _ in range(2)]
    pruners = [nn.prune(each, schedule=3, **options) for each in models]
    x = torch.randn(3, 16)

    def of_all():
        state = torch.func.stack_module_state(models)
        one = lambda *own: torch.func.functional_call(models[0], own, (x,))  # noqa: E731
        return torch.func.vmap(one)(*state)

    with pytest.raises(RuntimeError, match=r"vmap cannot map over models whose masks are soft"):
        of_all()
    for each in pruners:
        each.freeze()
    for found, model in zip(of_all(), models, strict=True):
        assert torch.allclose(found, model(x), atol=1e-6)
