"""Tsallis' and Rényi's entropies against their definitions in 60 digits, for every alpha."""

import importlib
import math

import jax
import mpmath
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kofn import entmax, metrics, softmax
from support import Framework, with_gradients

BOTH = (metrics.tsallis_entropy, metrics.renyi_entropy)
both = pytest.mark.parametrize("function", BOTH, ids=lambda f: f.__name__)
ALPHAS = (
    0.0,
    1e-3,
    0.5,
    1 - 1e-3,
    1 - 1e-9,
    1.0,
    1 + 2**-52,
    1 + 1e-7,
    1 + 1e-4,
    1.5,
    2.0,
    7.0,
    300.0,
)
RNG = np.random.default_rng(5)
ROWS = [
    [0.5, 0.25, 0.25, 0.0, 0.0, 0.0],
    [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [1 / 6] * 6,
    softmax(RNG.standard_normal(6)),
    softmax(30 * RNG.standard_normal(6)),
    [1 - 1e-7, 1e-7, 1e-30, 1e-37, 0.0, 0.0],
    [1.0, 0.75, 0.25, 0.5, 0.5, 0.0],  # in sum 3
    [0.0] * 6,
]
ROUNDING = {"float64": 1e-14, "float32": 2e-6}


def exact(name, p, alpha):
    """(the entropy, its slopes) by the definitions, in 60 digits."""
    with mpmath.workdps(60):
        p = [mpmath.mpf(float(v)) for v in p]
        one, a = mpmath.mpf(1), mpmath.mpf(float(alpha))
        some = [v for v in p if v > 0]
        total = mpmath.fsum(some)
        if total == 0:
            return 0.0, [0.0 if a <= 1 or name[0] == "r" else float(1 / (a - 1))] * len(p)
        if a == 1:
            shannon = -mpmath.fsum(v * mpmath.log(v) for v in some)
            slope = [-mpmath.log(v) - 1 if v else 0 for v in p]
            if name == "renyi_entropy":
                slope = [
                    s / total - shannon / total**2 if v else 0
                    for s, v in zip(slope, p, strict=True)
                ]
                shannon /= total
            return float(shannon), [float(s) for s in slope]
        powers = mpmath.fsum(v**a for v in some)
        inner = [a * v ** (a - 1) if v else mpmath.mpf(0) for v in p]
        if name == "tsallis_entropy":
            value, slope = (total - powers) / (a - 1), [(one - i) / (a - 1) for i in inner]
        else:
            value = mpmath.log(powers / total) / (1 - a)
            slope = [(i / powers - 1 / total) / (1 - a) for i in inner]
        slope = [s if v or a > 1 else 0 for s, v in zip(slope, p, strict=True)]
        return float(value), [float(s) for s in slope]


@pytest.fixture(params=["compiled", "array code"])
def by(request, monkeypatch):
    """Which code takes rows as short as these."""
    of_metrics = importlib.import_module("kofn.metrics.sums")
    if request.param == "compiled":
        monkeypatch.setattr(of_metrics, "LEAST", 0)
        monkeypatch.setattr(of_metrics, "SHORTEST", 0)
    return request.param


@both
@pytest.mark.parametrize("dtype", ROUNDING)
def test_values_meet_the_definitions(framework, function, dtype, by):
    if framework.name == "jax" and by == "compiled":
        pytest.skip("JAX has array code")
    rows = framework.array(ROWS, dtype)
    for alpha in ALPHAS:
        got = function(rows, alpha)
        assert framework.is_kind(got)
        assert framework.dtype(got) == dtype
        wanted = [exact(function.__name__, row, alpha)[0] for row in framework.numpy(rows)]
        np.testing.assert_allclose(framework.numpy(got), wanted, rtol=ROUNDING[dtype], atol=1e-300)


@both
@with_gradients
@pytest.mark.parametrize("dtype", ROUNDING)
def test_slopes_meet_the_definitions(function, name, dtype, by):
    if name == "jax" and by == "compiled":
        pytest.skip("JAX has array code")
    framework = Framework(name)
    rows = framework.array(ROWS[:-1], dtype)
    ones = framework.array(np.ones(len(ROWS) - 1), dtype)
    for alpha in ALPHAS if name == "torch" else (0.5, 1.0, 1 + 1e-7, 2.0):
        (got,) = framework.vjp(lambda p, a=alpha: function(p, a), (rows,), ones)
        wanted = [exact(function.__name__, row, alpha)[1] for row in framework.numpy(rows)]
        scale = np.abs(wanted).max(-1, keepdims=True)
        # Of ln p near p = 1 next to 1 − α·p^(α − 1) a rounding is left.
        assert np.abs((got - wanted) / scale).max() < 10 * ROUNDING[dtype]


@both
def test_at_1_both_are_shannons_and_they_pass_through_it(function):
    p = softmax(RNG.standard_normal((5, 40)))
    np.testing.assert_allclose(function(p, 1), metrics.entropy(p), rtol=1e-14)
    for step in (1e-15, 1e-12, 1e-8):
        for alpha in (1 - step, 1 + step):
            np.testing.assert_allclose(
                function(p, alpha), metrics.entropy(p), rtol=5 * step + 1e-14
            )
    assert np.all(np.diff([function(p, a) for a in ALPHAS], axis=0) < 1e-14)  # both fall


def test_the_ends():
    p = np.array([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0]])
    np.testing.assert_allclose(metrics.renyi_entropy(p, 0), np.log([3, 1]))
    np.testing.assert_array_equal(metrics.tsallis_entropy(p, 0), [2, 0])
    np.testing.assert_allclose(metrics.renyi_entropy(p, math.inf), [np.log(2), 0])
    np.testing.assert_allclose(metrics.renyi_entropy(p, 1e29), [np.log(2), 0])
    np.testing.assert_allclose(metrics.renyi_entropy(p, 2), np.log(metrics.effective_support(p)))
    np.testing.assert_allclose(metrics.tsallis_entropy(p, 2), 1 - (p**2).sum(-1))
    leaf = torch.tensor([0.5, 0.25, 0.25], requires_grad=True)
    metrics.renyi_entropy(leaf, math.inf).backward()
    assert leaf.grad.tolist() == [-2, 0, 0]


def test_powers_that_underflow_leave_renyis_entropy():
    p = np.full(1000, 1e-3, "f4")
    assert metrics.renyi_entropy(p, 50) == pytest.approx(np.log(1000), rel=1e-6)
    tiny = np.full(3, 1e-300)
    assert metrics.renyi_entropy(tiny, 3) == pytest.approx(300 * np.log(10), rel=1e-14)


def test_entmax_maximises_tsallis_over_alpha():
    x = RNG.standard_normal(5)
    for alpha in (1.0, 1.3, 1.5, 2.0):

        def objective(p, a=alpha):
            return (p * x).sum(-1) + metrics.tsallis_entropy(p, a) / a

        others = softmax(RNG.standard_normal((2000, 5)) * 2)
        near = 0.999 * entmax(x, alpha) + 0.001 * others
        for rivals in (others, near):
            assert (objective(rivals) <= objective(entmax(x, alpha)) + 1e-15).all()


@both
def test_masks_dims_half_precision_and_nan(framework, function):
    rows = np.array(
        [[0.5, 9.0, 0.3, 0.2, 0.0], [0.5, np.nan, 0.3, 0.2, 0.0], [np.nan] * 5, [-0.5] * 5]
    )
    mask = np.ones((4, 5), bool)
    mask[:2, 1] = False
    for alpha in (0, 0.5, 1, 2, 3.5):
        got = function(framework.array(rows.T), alpha, dim=0, mask=framework.array(mask.T, "bool"))
        wanted = exact(function.__name__, [0.5, 0.3, 0.2, 0], alpha)[0]
        np.testing.assert_allclose(
            framework.numpy(got), [wanted, wanted, np.nan, np.nan], rtol=1e-14
        )
        half = function(framework.array(ROWS[0], "float16"), alpha)
        assert framework.dtype(half) == "float32"
        wanted = exact(function.__name__, ROWS[0], alpha)[0]
        np.testing.assert_allclose(framework.numpy(half), wanted, rtol=1e-6)
        nothing = framework.numpy(function(framework.array(np.zeros((2, 0))), alpha))
        np.testing.assert_array_equal(nothing, [0, 0])
    if function is metrics.renyi_entropy:
        got = framework.numpy(function(framework.array(rows), math.inf))
        np.testing.assert_allclose(got, [-np.log(9), np.nan, np.nan, np.nan])


@both
def test_second_derivatives_and_no_gradient_to_what_is_masked(function):
    p = torch.tensor(softmax(RNG.standard_normal((2, 4))), requires_grad=True)
    for alpha in (0.5, 1.0, 1.001, 3.0):
        assert gradcheck(lambda p, a=alpha: function(p, a), p)
        assert gradgradcheck(lambda p, a=alpha: function(p, a), p, fast_mode=True)
    mask = torch.tensor([True, True, False, True])
    (slope,) = torch.autograd.grad(function(p, 2.0, mask=mask).sum(), p)
    assert not slope[:, 2].any()


def test_they_compile_and_map():
    p = softmax(RNG.standard_normal((3, 4)))
    for function in BOTH:
        got = jax.jit(lambda p, f=function: f(p, 1.5))(jax.numpy.asarray(p))
        np.testing.assert_allclose(got, function(p, 1.5), rtol=1e-14)
        mapped = torch.func.vmap(lambda p, f=function: f(p, 1.5))(torch.tensor(p))
        np.testing.assert_allclose(mapped, function(p, 1.5), rtol=1e-14)


@both
@pytest.mark.parametrize("alpha", [-0.1, math.nan, -math.inf])
def test_an_alpha_below_0_is_refused(function, alpha):
    with pytest.raises(ValueError, match=r"alpha must be a .*number ≥ 0.*; got"):
        function(np.ones(3) / 3, alpha)
    with pytest.raises(TypeError, match=r"alpha must be a .*number ≥ 0.*; got"):
        function(np.ones(3) / 3, np.ones(2))


def test_tsallis_is_0_at_infinity_and_not_asked_for_it():
    with pytest.raises(ValueError, match="alpha must be a finite number ≥ 0; got inf"):
        metrics.tsallis_entropy(np.ones(3) / 3, math.inf)
