"""What nn.prune costs: memory beside the tensors themselves, and operations."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from kofn import nn
from kofn.links import logistic
from kofn.streaming.equation import Equation
from kofn.streaming.tensor_choice import choose
from kofn.streaming.tensors import Pieces

FLOAT = 4


def peak(function):
    """The most bytes that PyTorch's allocator held at a time while `function` ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function()
    changes = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for change in sorted(changes, key=lambda e: e.start_ns()):
        held += change.nbytes()
        most = max(most, held)
    return most


def test_the_peak_is_seen():
    assert 2e6 * FLOAT <= peak(lambda: (torch.ones(10**6) + 1).add_(1).mul(2)) <= 2.1e6 * FLOAT


def check_row(sizes):
    """θ takes no more than 1.2 of the largest tensor; nor do the masks, themselves apart."""
    tensors = [torch.randn(size) for size in sizes]
    total = float(sum(sizes))
    equation = Equation(Pieces(tensors, [1.0] * len(sizes)), 0.05 * total, total, 0.1, logistic)
    assert peak(equation.solve) <= 1.2 * FLOAT * max(sizes)
    assert peak(lambda: equation.solve(1.6)) <= 1.2 * FLOAT * max(sizes)
    pieces, masks = equation.pieces, []
    most = peak(lambda: masks.extend(choose(pieces, round(0.05 * total))))
    assert most <= 1.2 * FLOAT * max(sizes) + total
    assert sum(int(mask.sum()) for mask in masks) == round(0.05 * total)
    assert peak(lambda: torch.cat(tensors)) > 1.2 * FLOAT * max(sizes)


def network(width, depth):
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(depth)))


def check_step(width, depth, batch=8):
    """A step takes what a plain one takes, scores, weights, their gradients and one tensor more."""
    x = torch.randn(batch, width)

    def step(model, optimizer):
        model(x).square().mean().backward()
        optimizer.step()

    def peak_of(model, parameters):
        optimizer = torch.optim.SGD(parameters, lr=1e-3)
        return peak(lambda: step(model, optimizer))

    plain = network(width, depth)
    base = peak_of(plain, plain.parameters())
    model = network(width, depth)
    pruner = nn.prune(model, 0.95, schedule=100)
    groups = [{"params": pruner.other_parameters()}, pruner.score_parameters(0.01)]
    pruner.clock.owner.steps += 20
    # The scores are there before; their gradients, the masked weights and theirs are made.
    tensor, all_of = FLOAT * width * width, FLOAT * width * width * depth
    assert peak_of(model, groups) <= base + 3 * all_of + tensor + 2e6
    most = peak(pruner.finalize)
    assert most <= 1.2 * tensor + all_of / FLOAT + 2e6


def test_thresholds_and_masks_take_little_memory():
    check_row([10**6, 2 * 10**6, 300, 5 * 10**5])


def test_a_training_step_takes_scores_weights_and_their_gradients():
    check_step(512, 6)


@pytest.mark.full
def test_memory_at_50_million_parameters():
    check_row([20_000_000, 15_000_000, 10_000_000, 5_000_000, 1000])
    check_step(2500, 8)


def small():
    """A network whose steps are short."""
    layers = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten()
    return torch.nn.Sequential(*layers, torch.nn.Linear(7200, 10))


def operations(model, optimizer, pruner=None):
    """How many operations of PyTorch a training step takes."""
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if pruner is not None:
            pruner.step(optimizer)

    for _ in range(3):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    return sum(event.name.startswith("aten::") for event in seen.events())


def test_a_step_takes_few_operations_more():
    """What they cost beside those of a small network, `benchmarks/pruning.py` measures."""
    plain, model = small(), small()
    pruner = nn.prune(model, 0.95, schedule=1000)
    groups = [{"params": pruner.other_parameters()}, pruner.score_parameters()]
    more = operations(model, torch.optim.Adam(groups), pruner)
    more -= operations(plain, torch.optim.Adam(plain.parameters()))
    assert 0 < more <= 750
