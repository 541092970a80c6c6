"""Derivatives at kinks, of every public function in every argument: see kinks.py.

Ties, whole k, whole margins, closed rows, scores at the end of a support, quantiles at whole
places, masks: a derivative lies between the differences on both sides of the kink, or is the limit
of derivatives next to it, or is documented.
"""

import inspect

import numpy as np
import pytest
import torch

import kofn
from calls import CALLS as EVERY
from calls import Call, surroundings
from kinks import InJax, kinks, wrong_at
from support import BOUNDED, LINKS

NO_SLOPE = {
    # Their derivative is not that of their value, which is what they are for.
    "[hard]": "a hard choice has the gradient of the soft one",
    "kofn.estimators.": "gradients of expectations, from samples",
    "kofn.nn.": "modules, made of functions that stand here",
    "kofn.integrations.": "modules, made of functions that stand here",
    "kofn.distributed.": "one process has the answers of the functions that stand here",
    "conditioned": "noise is drawn given the sample",
    ".perturb": "noisy logits less a constant of the row, their greatest, which has no derivative",
    "RelaxedOneHot.to_torch": "torch refuses values next to the simplex",
}
CALLS = [
    call
    for call in EVERY
    if call.learned
    and "torch" in call.frameworks
    and not any(part in call.name for part in NO_SLOPE)
]


def links_of(call: Call) -> tuple:
    """The links that a call may be made with, or its own."""
    try:
        taken = inspect.signature(call.function).parameters
    except ValueError:
        return (None,)
    return LINKS if "link" in taken and "link" not in call.arguments else (None,)


IN_TURN = {call.name: links_of(call)[i % len(links_of(call))] for i, call in enumerate(CALLS)}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_derivative_at_a_kink_is_that_of_a_side(call):
    """Each function at some of its kinks, with one link in turn, along one direction."""
    wrong, first = [], CALLS.index(call)
    with surroundings(call):
        for place, changed in list(kinks(call))[first % 3 :: 3]:
            wrong += wrong_at(call, place, changed, every=False, link=IN_TURN[call.name])
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize(
    ("call", "link"),
    [
        pytest.param(call, link, id=f"{call.name}-{link}")
        for call in CALLS
        for link in links_of(call)
    ],
)
def test_with_every_link_along_every_direction(call, link):
    wrong = []
    with surroundings(call):
        for place, changed in kinks(call):
            wrong += wrong_at(call, place, changed, link=link)
    assert not wrong, "\n".join(wrong)


# Where PyTorch's values are JAX's, whose random numbers are others.
OF_JAX = [call for call in CALLS if "jax" in call.frameworks and not call.random]
SOME_OF_JAX = ("kofn.soft_topk", "kofn.sparsemax", "kofn.quantile")


@pytest.mark.parametrize(
    "call",
    [
        each if each.name in SOME_OF_JAX else pytest.param(each, marks=pytest.mark.full)
        for each in OF_JAX
    ],
    ids=lambda call: call.name,
)
def test_derivatives_of_jax_at_kinks_are_those_of_a_side(call):
    """With a bounded link, where there is one; the ordinary run takes a few functions."""
    links = [link for link in links_of(call) if link in BOUNDED] or [IN_TURN[call.name]]
    wrong = []
    with surroundings(call):
        for place, changed in kinks(call):
            wrong += wrong_at(call, place, changed, link=links[0], of=InJax)
    assert not wrong, "\n".join(wrong)


def test_a_wrong_derivative_is_seen():
    """Three faults of a ramp: no slope, one of the wrong sign, twice that of a side."""

    def ramp(slope):
        class Ramp(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                context.save_for_backward(x)
                return x.clamp(0, 1)

            @staticmethod
            def backward(context, cotangent):
                (x,) = context.saved_tensors
                return cotangent * slope * ((x >= 0) & (x <= 1))

        return Ramp.apply

    x = np.array([[0.0, 1.0, 0.5, 1.7]])
    for slope in (1.0, 0.0, -1.0, 2.0):
        call = Call("a ramp", lambda x, slope=slope: ramp(slope)(x), {"x": x}, ("x",))
        assert bool(wrong_at(call, "kinks", {})) == (slope != 1)


@pytest.mark.parametrize("link", BOUNDED)
def test_a_derivative_that_becomes_0_at_ties_is_seen(link):
    def still(scores, k, link):
        return kofn.soft_topk(scores.detach() + 0 * scores, k, link=link)

    given = {"scores": np.zeros((1, 5)), "k": 2}
    call = Call("kofn.soft_topk[still]", still, given, ("scores",))
    assert wrong_at(call, "ties", {}, link=link)
