"""A weight of exactly 0 is a constant: whatever an entropy has there as a slope does no harm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import kofn
from calls import CALLS, array_of, surroundings
from kofn import classic, links
from kofn.links import table
from pairs import pairwise
from support import LINKS, Framework, with_gradients

INF = np.inf
SIDES = [
    call
    for call in CALLS
    if call.learned and "mask" in call.arguments and ".distributed." not in call.name
]
"""The calls with a mask and a gradient."""


def entropy(name, p):
    return (torch.special.entr(p) if name == "torch" else jax.scipy.special.entr(p)).sum()


def gradient_of_entropy(name, function, x):
    if name == "torch":
        leaf = torch.tensor(x, requires_grad=True)
        return torch.autograd.grad(entropy(name, function(leaf)), leaf)[0].numpy()
    return np.asarray(jax.grad(lambda x: entropy(name, function(x)))(jnp.asarray(x)))


@with_gradients
@pytest.mark.parametrize("out", [False, -INF, np.finfo(float).min])
def test_the_entropy_of_taylor_softmax_has_the_slope_of_the_rest(name, out):
    x = np.array([2.0, 1.0, 0.5 if out is False else out])
    mask = array_of(name, np.array([True, True, out is not False]))
    found = gradient_of_entropy(name, lambda x: kofn.taylor_softmax(x, mask=mask), x)
    assert found == pytest.approx([-0.09241962, 0.12322617, 0], abs=1e-7)
    found = gradient_of_entropy(name, lambda x: classic.weighted_soft_topk(x, 1, mask=mask), x)
    assert found == pytest.approx([-0.19661193, 0.19661193, 0], abs=1e-7)


def pulled(name, call, given, cotangents):
    """The gradients of an answer's first array for several cotangents, and the answer."""
    learned = [each for each in call.learned if isinstance(call.arguments[each], np.ndarray)]
    if name == "torch":
        leaves = [given[each].clone().requires_grad_() for each in learned]
        answer = call(name, **{**given, **dict(zip(learned, leaves, strict=True))})[0]
        yield answer.detach().numpy()
        for cotangent in cotangents(answer.detach().numpy()):
            found = torch.autograd.grad(
                *(answer, leaves, torch.tensor(cotangent)), retain_graph=True, allow_unused=True
            )
            yield [None if each is None else each.numpy() for each in found]
        return

    def function(*leaves):
        return call(name, **{**given, **dict(zip(learned, leaves, strict=True))})[0]

    answer, pull = jax.vjp(function, *[given[each] for each in learned])
    yield np.asarray(answer)
    for cotangent in cotangents(np.asarray(answer)):
        yield [np.asarray(each) for each in pull(jnp.asarray(cotangent))]


@pytest.mark.parametrize("name", ["torch", pytest.param("jax", marks=pytest.mark.full)])
@pytest.mark.parametrize("call", SIDES, ids=lambda call: call.name)
def test_what_is_masked_may_carry_any_cotangent(name, call, rng):
    """In every function with a mask whose answer has a number per entry."""
    if name not in call.frameworks:
        pytest.skip("not of this framework")
    mask = call.arguments["mask"]

    def cotangents(answer):
        if answer.shape != mask.shape or np.any(answer[~mask]):
            return  # not a weight
        plain = np.where(mask, rng.standard_normal(answer.shape), 0.0)
        yield from (plain, np.where(mask, plain, INF), np.where(mask, plain, np.nan))

    with surroundings(call):
        _, *found = pulled(name, call, call.made(name), cotangents)
    for each in found[1:]:
        for one, other in zip(found[0], each, strict=True):
            assert one is None or np.all(np.isfinite(one))
            assert np.array_equal(one, other) if one is not None else other is None


ROWS = {
    "out of the support": [3.0, 2.5, 1.7, -9.0],
    "at its end": [1.0, 0.0, 0.5, -1.0],
    "ties": [1.0, 1.0, 0.0, 0.0],
    "underflow": [1e9, 3.0, 2.5, -1e9],
}
FUNCTIONS = {
    "soft_topk": lambda of, x, t, k, link: kofn.soft_topk(x, k, link=link, temperature=t),
    "soft_knapsack": lambda of, x, t, k, link: kofn.soft_knapsack(
        x, of(np.ones(4)), k, link=link, temperature=t
    ),
    "segment_soft_topk": lambda of, x, t, k, link: kofn.segment_soft_topk(
        x, k[None], ptr=of(np.array([0, 4])), link=link, temperature=t
    ),
    "perturbed_argmax": lambda of, x, t, k, link: kofn.perturbed_argmax(
        x, noise=link, temperature=t
    ),
    "softmax": lambda of, x, t, k, link: kofn.softmax(x, temperature=t),
    "sparse_softmax": lambda of, x, t, k, link: kofn.sparse_softmax(x, k=2, temperature=t),
}
STEEP = links.entmax(3.0)  # whose slope is infinite next to a weight of 0


@pairwise(
    way=[("torch", False), ("torch", True), pytest.param(("jax", False), marks=pytest.mark.full)],
    function=FUNCTIONS,
    link=[*(table.TABLE[each] for each in LINKS), STEEP],
)
def test_a_weight_of_0_may_carry_any_cotangent(way, function, link, rng):
    """As kernels have it; `again` where autograd differentiates the way back, in array code."""
    name, again = way
    call, of = FUNCTIONS[function], lambda value: array_of(name, value)
    for x in ROWS.values():
        arguments = [of(np.array(each)) for each in (x, 1.0, 1.5)]
        answer = np.asarray(call(of, *arguments, link))
        plain = np.where(answer == 0, 0.0, rng.standard_normal(4))
        found = []
        for fill in (0.0, INF):
            cotangent = of(np.where(answer == 0, fill, plain))
            whole = lambda *given: call(of, *given, link)  # noqa: E731
            if again:
                leaves = [each.clone().requires_grad_() for each in arguments]
                options = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
                slopes = torch.autograd.grad(whole(*leaves), leaves, cotangent, **options)
                found.append([each.detach().numpy() for each in slopes])
            else:
                found.append(Framework(name).vjp(whole, tuple(arguments), cotangent))
        for one, other in zip(*found, strict=True):
            assert np.allclose(one, other, atol=1e-12, equal_nan=True), (x, answer)
