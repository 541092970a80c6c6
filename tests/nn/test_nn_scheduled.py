"""Temperatures from schedules: a wrong one is an error by name in every module that takes one."""

import math

import pytest
import torch

from kofn import nn, schedules

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def router(temperature, selection="hard"):
    return nn.TopKRouter(8, 4, 2, selection=selection, temperature=temperature)


def pruned(temperature, **options):
    schedule = nn.PruningSchedule(10, temperature=temperature)
    layer = torch.nn.Linear(8, 8)
    nn.prune(layer, schedule=schedule, **options)
    return layer


MODULES = {
    "sae": lambda temperature: nn.TopKSAE(8, 32, 4, temperature=temperature),
    "batch": lambda temperature: nn.TopKSAE(8, 32, 4, selection="batch", temperature=temperature),
    "hard": router,
    "soft": lambda temperature: router(temperature, "soft"),
    "expert_choice": lambda temperature: router(temperature, "expert_choice"),
    "budget": lambda temperature: router(temperature, "budget"),
    "row": lambda temperature: pruned(temperature, amount=0.5),
    "choice": lambda temperature: nn.SoftTopK(8, 2, schedule=temperature),
    "groups": lambda temperature: pruned(temperature, pattern="2:4"),
}
WRONG = [0, 0.0, -1.0, math.nan, math.inf]
MESSAGE = "temperature must be a finite number > 0 at every step of its schedule; got "


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("tensors", [False, True])
def test_a_wrong_temperature_is_refused_when_the_schedule_gives_it(name, wrong, tensors):
    def schedule(step):
        return torch.as_tensor(float(wrong)) if tensors else wrong

    module = MODULES[name](schedule)
    with pytest.raises(ValueError, match=f"^{MESSAGE}{float(wrong) if tensors else wrong}"):
        module(X)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("ends", [(1.0, 0.0), (0.0, 1.0), (1.0, -0.5)])
def test_a_schedule_that_ends_at_0_is_refused_at_once(name, ends):
    with pytest.raises(ValueError, match=rf"^{MESSAGE}schedules\.linear\({ends[0]}, {ends[1]}"):
        MODULES[name](schedules.linear(*ends, steps=5))


@pytest.mark.parametrize("name", MODULES)
def test_what_is_no_number_is_refused_by_name(name):
    module = MODULES[name](lambda step: "warm")
    with pytest.raises(TypeError, match=r"^temperature must be a finite number > 0 .*; got 'warm'"):
        module(X)


@pytest.mark.parametrize("name", MODULES)
def test_right_ones_pass(name):
    for schedule in (
        schedules.exponential(1.0, 0.1, steps=5),
        schedules.constant(0.5),
        lambda step: 1,
        lambda step: 1.0 / (1 + step),
        lambda step: torch.tensor(0.5),
    ):
        found = MODULES[name](schedule)(X)
        first = found if isinstance(found, torch.Tensor) else found[0]
        assert first.isfinite().all()


def test_a_compiled_module_asks_its_schedule_without_breaking_the_graph():
    for schedule in (schedules.exponential(1.0, 0.1, steps=5), lambda step: 0.5):
        module = MODULES["sae"](schedule)
        found = torch.compile(module, fullgraph=True, backend="eager")(X)
        assert torch.allclose(found.code, module(X).code, atol=1e-6)
