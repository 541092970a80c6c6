"""Logarithms and thresholds of choices so hard that every slope underflows, against 40 digits."""

import functools

import mpmath
import numpy as np
import pytest
import torch

import kofn
import oracles
from support import ENDLESS, SYMMETRIC, Framework, full_but

ROWS = (
    ([1.0, -1.0], 1),
    ([1.0, 0.3, -0.7, -1.0], 2),
    ([2.0, 1.0, 0.0], 2),
    ([0.9, 0.9, 0.2, -0.4, -0.4], 2),
)
GAPS = (3.0, 60.0, 170.0, 200.0, 1e3, 3e4, 1e6)


@functools.cache
def exact(x, k, t, link):
    """θ, log p, ∂θ/∂x, ∂ log p/∂z and z: what every derivative is made of."""
    with mpmath.workdps(40):
        x, t, logs = [mpmath.mpf(float(v)) for v in x], mpmath.mpf(float(t)), oracles.LOGS[link]
        low, high = min(x) - 50 * t, max(x) + 50 * t
        for _ in range(170):
            middle = (low + high) / 2
            low, high = (
                (middle, high)
                if oracles.excess([(v - middle) / t for v in x], k, logs) > 0
                else (low, middle)
            )
        z = [(v - high) / t for v in x]
        log_p, log_f = ([f(v) for v in z] for f in (logs.cdf, logs.pdf))
        most = max(log_f)
        total = mpmath.fsum(mpmath.exp(v - most) for v in log_f)
        share = [mpmath.exp(v - most) / total for v in log_f]
        slope = [mpmath.exp(a - b) for a, b in zip(log_f, log_p, strict=True)]
        # In double precision the smallest of numbers are 0, as they are in an answer.
        return [np.array(v, float) for v in (high, log_p, share, slope, z)]


def cases(dtype):
    for row, k in ROWS:
        x = np.asarray(row, dtype)
        for gap in GAPS:
            # Distances between chosen and not in temperatures; exact in single precision.
            t = np.asarray((max(row) - min(row)) / gap, dtype)
            yield x, k, t


def check(framework, dtype, link, learned):
    rounding = {"float32": 6e-8, "float64": 1e-16}[dtype]
    for x, k, t in cases(dtype):
        theta, log_p, share, slope, z = exact(tuple(x.tolist()), k, float(t), link)
        v = np.random.default_rng(len(x)).standard_normal(len(x))
        arguments = framework.array(x, dtype), framework.array(t, dtype)
        if learned:
            arguments = (*arguments, framework.array(float(k), dtype))

        def log_of(x, t, k=k):
            return kofn.log_soft_topk(x, k, link=link, temperature=t)

        def theta_of(x, t, k=k):
            return kofn.soft_topk_threshold(x, k, link=link, temperature=t)

        # One rounding of z moves a tail by |z| of them, and a Gaussian one by z².
        power = 2 if link == "normal" else 1
        noise = 20 * rounding * (1 + np.abs(z).max())
        note = (framework.name, dtype, link, x, k, float(t))
        got = framework.numpy(log_of(*arguments))
        assert np.abs(got - log_p).max() <= noise * np.abs(z).max() ** (power - 1), (note, got)
        found = framework.numpy(theta_of(*arguments))
        assert abs(found - theta) <= 20 * rounding * (1 + np.abs(x).max()) + noise * t * rounding

        weighted = v * slope
        in_z = weighted - share * weighted.sum()
        in_x, in_t, *_ = framework.vjp(log_of, arguments, framework.array(v, dtype))
        allowed = (1e-5 + noise) * np.linalg.norm(weighted)
        assert np.linalg.norm(in_x * t - in_z) <= allowed, (note, in_x, in_z / t)
        # Scores and θ move together, and log p does not.
        assert abs(in_x.sum() * t) <= allowed * 1e-1 + 1e-5 * np.linalg.norm(weighted), note
        size = (np.abs(in_z) * np.abs(z)).sum() + (np.abs(weighted) * np.abs(z)).sum()
        assert abs(in_t * t + (in_z * z).sum()) <= (1e-5 + noise) * size, (note, in_t)
        in_x, in_t, *_ = framework.vjp(theta_of, arguments, framework.array(1.0, dtype))
        assert np.abs(in_x - share).max() <= 1e-5 + noise, (note, in_x, share)


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("name", "link", "dtype", "learned"),
    [
        ("torch", "logistic", "float32", False),
        ("torch", "exponential", "float32", True),
        *(
            full(name, link, dtype, learned)
            for name in ("torch", "jax")
            for link in ENDLESS
            for dtype in ("float32", "float64")
            for learned in (False, True)
        ),
    ],
)
def test_it_meets_the_oracle_however_hard_the_choice(name, link, dtype, learned):
    """With a learned k eager PyTorch takes the reference, else its closed form."""
    check(Framework(name), dtype, link, learned)


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("link", full_but(("normal",), SYMMETRIC))
def test_what_k_moves_is_what_is_next_to_the_threshold(link, dtype, backend):
    """Half of it on each side, where e^{−z²/2} has no digit left that would tell."""
    for row, k, moved in ((ROWS[0][0], 1, (1, 1)), (ROWS[3][0], 2, (0.5, 0.5, 1, 0, 0))):
        for gap in (1e7, 1e10, 1e14):
            x = torch.tensor(row, dtype=dtype)

            def weights(k, x=x, gap=gap):
                return kofn.soft_topk(x, k, link=link, temperature=2 / gap)

            learned = torch.tensor(float(k), dtype=dtype, requires_grad=True)
            v = torch.tensor(np.random.default_rng(0).standard_normal(len(row)), dtype=dtype)
            if backend == "fused":
                (in_k,) = torch.autograd.grad(weights(learned), learned, v)
            else:
                (in_k,) = torch.func.vjp(weights, learned.detach())[1](v)
            wanted = (torch.tensor(moved) / 2 * v).sum().item()
            assert in_k.item() == pytest.approx(wanted, rel=1e-6, abs=1e-6), (row, gap)


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_beside_a_mask_far_below_the_least_of_the_chosen_moves(dtype, backend):
    """By the exponential link it is less than 1 by what the mask's entry has, and has the slope."""
    rows = (
        ([1.3, 0.2, -1e9], 2, 1.0, [0, 1, 0]),
        ([0.7, 0.7, -1e9, -1e9 - 64], 2, 1.0, [0.5, 0.5, 0, 0]),
        ([1.3, 0.2, 0.1, -65504.0], 3, 0.001, [0, 0, 1, 0]),
        ([1e30, 1e30, 0.0, -1e30], 2, 1.0, [0.5, 0.5, 0, 0]),
        ([np.inf, 0.2, 0.2, -1e9], 3, 1.0, [0, 0.5, 0.5, 0]),
    )
    for row, k, t, moved in rows:
        x, moved = torch.tensor(row, dtype=dtype), torch.tensor(moved, dtype=dtype)
        v = torch.tensor(np.random.default_rng(0).standard_normal(len(row)), dtype=dtype)

        def weights(x, k, t=t):
            return kofn.soft_topk(x, k, link="exponential", temperature=t)

        leaves = x, torch.tensor(float(k), dtype=dtype)
        if backend == "fused":
            leaves = [leaf.requires_grad_() for leaf in leaves]
            in_x, in_k = torch.autograd.grad(weights(*leaves), leaves, v)
        else:
            in_x, in_k = torch.func.vjp(weights, *leaves)[1](v)
        assert in_k.item() == pytest.approx((moved * v).sum().item(), rel=1e-6)
        slopes = (moved > 0) * (v - (moved * v).sum()) / t
        assert torch.allclose(in_x, slopes, rtol=1e-5, atol=1e-6 / t), (row, in_x, slopes)


COMPILED = {
    "weights": kofn.soft_topk,
    "logarithms": kofn.log_soft_topk,
    "threshold": kofn.soft_topk_threshold,
}
MASKED = torch.finfo().min
NEARLY_HARD = (
    ([5.0, -1e9, -1e9 - 64, -np.inf, -np.inf], 1.5, 1.0),
    ([100.0, -100.0, -np.inf, -np.inf, -np.inf], 1.0, 1.0),
    ([200.0, 100.0, 0.0, -np.inf, -np.inf], 2.0, 1.0),
    ([1.3, -1e30, -1.1, 0.2, 0.3], 2.0, 1.0),
    ([1.3, 0.7, -1.1, 0.2, 0.3], 2.0, 0.01),
    ([1.3, 0.7, -1.1, MASKED, 0.3], 2.0, 0.01),
    ([1.3, 0.7, MASKED, MASKED, MASKED], 2.0, 0.01),
    ([np.inf, 0.7, -1.1, 0.2, 0.3], 2.0, 0.01),
)


@pytest.mark.full
@pytest.mark.parametrize("link", ["logistic", "exponential"])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_code_has_the_eager_answers_and_gradients(name, link):
    def function(x, k, t):
        return COMPILED[name](x, k, link=link, temperature=t)

    def of(function):
        leaves = [torch.tensor(a, requires_grad=True) for a in zip(*NEARLY_HARD, strict=True)]
        answer = function(*leaves)
        kept = torch.where(answer.isfinite(), answer, 0.0)
        v = torch.tensor(np.random.default_rng(0).standard_normal(kept.shape), dtype=kept.dtype)
        return answer.detach(), *torch.autograd.grad(kept, leaves, v)

    compiled = torch.compile(function, fullgraph=True, dynamic=False, options={"cpp.simdlen": 1})
    value, *slopes = of(function)
    ours, *others = of(compiled)
    assert torch.allclose(ours, value, rtol=2e-6, atol=2e-6)
    for ours, expected in zip(others, slopes, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-4), (ours, expected)
