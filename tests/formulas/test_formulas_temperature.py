"""The gradient in T of array code, and of rows with costs, where scores differ by less than T."""

from functools import cache

import numpy as np
import pytest

import kofn
from kofn.formulas.pivot import pivot_of
from kofn.solver.reductions import DENSE
from support import BOUNDED, GRADIENT, LINKS, Framework, full_but

N, T = 1000, 5.0


def answers(link, like):
    """Functions of scores, T, random numbers and costs, per row."""

    def weights(x, t, v, costs):
        return kofn.soft_topk(x, 3, link=link, temperature=t) * v

    def logarithms(x, t, v, costs):
        return kofn.log_soft_topk(x, 3, link=link, temperature=t) * v

    def loss(x, t, v, costs):
        return kofn.fenchel_young_loss(
            x, like.array(np.arange(N) < 3, like.dtype(x)) + 0 * x, link=link, temperature=t
        )

    def soft_loss(x, t, v, costs):
        target = v * v * (3 / (v * v).sum(-1)[..., None])
        return kofn.fenchel_young_loss(x, target, link=link, temperature=t)

    def knapsack(x, t, v, costs):
        return kofn.soft_knapsack(x, costs, 3.0, link=link, temperature=t) * v

    found = weights, logarithms, loss, soft_loss, knapsack
    return {one.__name__: one for one in found}


def gradient(framework, answer, spread, dtype):
    rng = np.random.default_rng(5)
    x, v = (rng.standard_normal((4, N)).astype("f4") for _ in range(2))
    arrays = np.float32(spread) * x, np.full(4, T), v, rng.uniform(0.5, 1.5, (4, N)).astype("f4")
    x, t, v, costs = (framework.array(one, dtype) for one in arrays)
    total = framework.array(np.ones(()), dtype)
    return framework.vjp(lambda t: answer(x, t, v, costs).sum(), (t,), total)[0]


@cache
def exact(what, link, spread):
    """By array code in float64, of PyTorch for JAX too, which would compile it."""
    torchs = Framework("torch")
    return gradient(torchs, answers(link, torchs)[what], spread, "float64")


@pytest.mark.pairs
@pytest.mark.parametrize(
    ("framework", "spread"),
    [
        *(("torch", 1.0), ("torch", 1e-3), ("jax", 1e-3)),
        pytest.param("jax", 1.0, marks=pytest.mark.full),
    ],
    indirect=["framework"],
)
@pytest.mark.parametrize("code", ["on", "reference"])
@pytest.mark.parametrize("link", full_but(LINKS[:1]))
@pytest.mark.parametrize("what", list(answers(None, None)))
def test_what_rounding_leaves_of_a_sum_of_0_does_not_reach_it(
    framework, code, spread, link, what, monkeypatch
):
    """It is multiplied by the distance of what stands for θ, which here is the mean score."""
    if what == "logarithms" and link in BOUNDED:
        pytest.skip("log F is as steep as it likes next to the end of a support")
    monkeypatch.setenv("KOFN_KERNELS", code)
    answer = answers(link, framework)[what]
    found = gradient(framework, answer, spread, "float32")
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    wanted = exact(what, link, spread)
    assert np.linalg.norm(found - wanted) <= GRADIENT["float32"] / 4 * np.linalg.norm(wanted)


def test_where_no_score_decides_the_threshold_its_rounding_is_not_a_share_of_t():
    """θ lies in a gap between scores, as two numbers; the second over T is no derivative."""
    z, hi, lo, t = (np.asarray(a, "float32") for a in ([[9.0, -9.0]], [0.15], [4.9e-9], [1e-12]))
    linear = kofn.links.linear.inner
    pivot, shift = pivot_of(linear, z, np.ones((1, 2), bool), hi, lo, t, DENSE)
    assert (pivot, shift) == (hi, 0)
