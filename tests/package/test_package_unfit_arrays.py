"""Arrays that kofn does not take end in an error of its own, which names the argument."""

import re

import jax.numpy as jnp
import pytest
import torch
from torch.masked import masked_tensor

import kofn
from calls import CALLS, surroundings

SERVED = list(CALLS)
OWN = {
    *("kofn.Categorical.conditioned", "kofn.Bernoulli.choose", "kofn.Bernoulli.relax"),
    *("kofn.Bernoulli.conditioned", "kofn.Categorical.perturb_given"),
    *("kofn.Bernoulli.perturb_given", "kofn.Normal.to_torch", "kofn.RelaxedOneHot.to_torch"),
}
"""Methods that take what another method of the same distribution gave."""


NAMED = r" (must|takes plain|defines|is a) "


def nested(x):
    return torch.nested.nested_tensor(list(x) if x.ndim > 1 else [x], dtype=x.dtype)


def masked(x):
    return masked_tensor(x.clone(), torch.ones_like(x, dtype=torch.bool))


def refused(call, framework, unfit):
    given = call.made(framework, "float32")[call.first]
    with (
        surroundings(call),
        pytest.raises((TypeError, ValueError), match=NAMED),
    ):
        call(framework, "float32", **{call.first: unfit(given)})


@pytest.mark.filterwarnings("ignore")  # PyTorch says that these are prototypes
@pytest.mark.parametrize("unfit", [nested, masked])
@pytest.mark.parametrize(
    "call", [call for call in SERVED if "torch" in call.frameworks], ids=lambda call: call.name
)
def test_tensors_that_are_no_array_of_numbers(call, unfit):
    if call.public not in OWN:
        refused(call, "torch", unfit)


@pytest.mark.parametrize(
    "call",
    [
        call
        for call in SERVED
        if "jax" in call.frameworks
        and call.kind_of(call.first) == "f"
        and "surrogate" not in call.name
    ],
    ids=lambda call: call.name,
)
def test_integers_that_jax_cannot_sort(call):
    if call.public not in OWN:
        refused(call, "jax", lambda x: x.astype("int4"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "name"),
    [
        pytest.param(call, name, id=f"{call.name}-{name}")
        for call in SERVED
        if "torch" in call.frameworks
        for name in call.arrays
        if name != call.first
    ],
)
def test_arguments_beside_the_first(call, name):
    given = call.made("torch", "float32")[name]
    kinds = [masked] + [lambda x: x.to(torch.float8_e4m3fn)] * given.is_floating_point()
    for kind in kinds:
        with surroundings(call), pytest.raises((TypeError, ValueError), match=NAMED) as error:
            call("torch", "float32", **{name: kind(given)})
        said = str(error.value)  # of another distribution, its own argument
        assert re.match(rf"(\w+\.)?{name} |kofn\.", said) or name == "other", said


@pytest.mark.filterwarnings("ignore")
def test_the_error_says_what_to_pass():
    x = torch.ones(2, 3)
    for function in (lambda y: kofn.topk(y, 1), lambda y: kofn.soft_topk(y, 1)):
        with pytest.raises(TypeError, match=r"(x|scores) must be a dense tensor; got a nested one"):
            function(nested(x))
    with pytest.raises(TypeError, match="mask must be a dense tensor; got a nested one"):
        kofn.soft_topk(x, 1, mask=nested(x > 0))
    with pytest.raises(TypeError, match=r"x must have .* of 8 to 64 bits; .*x\.astype\(\"int8\"\)"):
        kofn.topk(jnp.ones(3, "int4"), 1)
    with pytest.raises(
        TypeError, match=r"x must have .* an integer type of .*x\.to\(torch\.int8\)"
    ):
        kofn.topk(torch.empty(3, dtype=torch.uint4), 1)
