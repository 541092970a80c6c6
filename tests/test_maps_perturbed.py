"""perturbed_argmax: against closed forms and other integrators, its derivatives, its edges."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch.autograd import gradcheck, gradgradcheck

import kofn
from kofn import Link, links, perturbed_argmax
from kofn.maps import argmax_nodes, argmax_quadrature
from support import GRADIENT, WEIGHTS, Framework

NOISES = ("normal", "uniform", "logistic", "laplace")
ACCURACY = {"float64": 1e-11, "float32": 1e-6}
SCIPY = {
    "normal": stats.norm,
    "uniform": stats.uniform,
    "logistic": stats.logistic,
    "laplace": stats.laplace,
}


def difference(noise: str, gap: float) -> float:
    """Pr(ε₁ − ε₂ < gap) for gap ≥ 0, in closed form."""
    if noise == "normal":
        return special.ndtr(gap / math.sqrt(2))
    if noise == "uniform":
        return 1 - max(0.0, 1 - gap) ** 2 / 2
    if noise == "laplace":
        return 1 - math.exp(-gap) * (2 + gap) / 4
    if gap < 1e-2:
        return 0.5 + gap / 6 - gap**3 / 180
    e = math.exp(-gap)
    return (1 - e * (1 + gap)) / (1 - e) ** 2


def integrated(x: np.ndarray, noise: str) -> np.ndarray:
    """∫ φ(m − x_i) Π_{j≠i} Φ(m − x_j) dm by scipy, with the kinks of the noise as breakpoints."""
    law, top = SCIPY[noise], x.max()

    def integrand(m: float) -> np.ndarray:
        log_cdf = law.logcdf(m - x)
        return law.pdf(m - x) * np.exp(log_cdf.sum() - log_cdf)

    low, high = top + law.ppf(1e-17), top + law.isf(1e-14 / len(x))
    kinks = {"uniform": (0, 1), "laplace": (0,)}.get(noise, ())
    # Below the 40 largest Π Φ is less than 2⁻⁴⁰ at a kink of Laplace's.
    near = np.sort(x)[-40:] if noise == "laplace" else x
    points = [p for k in kinks for p in near + k if low < p < high]
    with np.errstate(all="ignore"):
        # Off the end of a noise that is bounded by what rounding leaves.
        return integrate.quad_vec(
            integrand,
            low + 1e-15,
            high,
            epsabs=1e-12,
            points=[*np.linspace(low, high, 25)[1:-1], *points],
        )[0]


def entmax_pair(alpha: float, gap: float) -> tuple[float, float]:
    """Pr(ε₁ − ε₂ < gap) and its slope in the gap, for noise of entmax(alpha), by mpmath.

    Φ = ((α − 1)t)^order up to 1. In log t both integrands are smooth for any gap.
    """
    with mpmath.workdps(25):
        a, d = mpmath.mpf(alpha) - 1, mpmath.mpf(gap)
        order, end = 1 / a, 1 / a
        reach = min(mpmath.log(end - d), mpmath.log(end)) if gap < end else -mpmath.inf
        depth = [reach - step * alpha for step in (75, 40, 30, 20, 12, 6, 2, 0)]
        if reach == -mpmath.inf:
            return 1.0, 0.0
        depth = sorted({*depth, mpmath.log(d)} if d < end - d else depth)

        def both(power):  # ∫ φ(t)·(t + d)^power, in units of Φ's factor
            def f(s):
                t = mpmath.exp(s)
                return order * (a * t) ** order * (a * (t + d)) ** power

            return mpmath.quad(f, depth)

        rest = 1 - (a * (end - d)) ** order  # where t + d is beyond the end
        return float(both(order) + rest), float(both(order - 1))


STEEP = (1.2, 1.9, 2.2, 3.0, 4.0, 10.0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("alpha", STEEP)
def test_densities_that_are_infinite_at_their_end(alpha, dtype):
    """Near ties above all: at α = 3 and a gap of 1e-3 the probability was off by 5e-5."""
    noise = links.entmax(alpha)
    for gap in (1e-9, 1e-5, 1e-3, 0.05, 0.2, 0.7):
        gap = float(np.float32(gap / alpha))
        x = torch.tensor([gap, 0.0], dtype=getattr(torch, dtype), requires_grad=True)
        p = perturbed_argmax(x, noise=noise)
        (slope,) = torch.autograd.grad(p[0], x)
        exact, exact_slope = entmax_pair(alpha, gap)
        assert p[0].item() == pytest.approx(exact, abs=ACCURACY[dtype])
        assert slope.numpy() == pytest.approx(
            exact_slope * np.array([1, -1]), rel=GRADIENT[dtype], abs=1e-7
        )


def test_an_infinite_slope_is_infinite():
    for alpha, steep in ((2.9, False), (3.0, True), (10.0, True)):
        x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        p = perturbed_argmax(x, noise=links.entmax(alpha))
        assert torch.allclose(p, torch.full_like(p, 1 / 3), atol=1e-15)
        (slope,) = torch.autograd.grad(p[0], x, retain_graph=True)
        assert torch.isinf(slope).all() == steep
        (flat,) = torch.autograd.grad(p.sum() * 0.1, x)
        assert not flat.any()


@pytest.mark.parametrize("alpha", [1.7, 3.0])
def test_steep_noise_meets_differences_in_every_framework(framework, alpha):
    """In JAX alpha is an array elsewhere; here it says where the noise ends."""
    noise, x = links.entmax(alpha), np.array([0.31, 0.3, 0.24, 0.17, -0.4])
    got = framework.numpy(perturbed_argmax(framework.array(x), noise=noise))
    assert got == pytest.approx(perturbed_argmax(x, noise=noise), abs=1e-12)
    if framework.name == "numpy":
        return
    v = np.array([1.0, -0.3, 0.5, 0.2, 0.7])
    (slope,) = framework.vjp(
        lambda x: perturbed_argmax(x, noise=noise), (framework.array(x),), framework.array(v)
    )
    h = 1e-5
    differences = [
        (perturbed_argmax(x + h * e, noise=noise) - perturbed_argmax(x - h * e, noise=noise))
        @ v
        / (2 * h)
        for e in np.eye(5)
    ]
    assert slope == pytest.approx(np.array(differences), abs=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("noise", NOISES)
def test_of_two_it_is_the_distribution_of_a_difference(framework, noise, dtype):
    gaps = np.array([0, 1e-3, 0.1, 0.5, 0.99, 1.0, 2.5, 6.0, 15.0, 40.0]).astype("float32")
    x = np.stack([gaps * 0, gaps], -1) * 0.7 + 3
    p = framework.numpy(perturbed_argmax(framework.array(x, dtype), noise=noise, temperature=0.7))
    rounded = framework.numpy(framework.array(x, dtype)).astype(float)
    wanted = [difference(noise, (b - a) / 0.7) for a, b in rounded]
    assert p[:, 1] == pytest.approx(np.array(wanted), abs=ACCURACY[dtype])
    assert p.sum(-1) == pytest.approx(np.ones(len(gaps)), abs=WEIGHTS[dtype])


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("spread", [0.05, 1.0, 6.0])
def test_of_thirty_it_meets_another_integrator(noise, spread, rng):
    x = rng.standard_normal(30).astype("f4") * np.float32(spread)
    exact = integrated(x.astype(float), noise)
    assert perturbed_argmax(x.astype(float), noise=noise) == pytest.approx(exact, abs=1e-10)
    assert perturbed_argmax(x, noise=noise) == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(
    ("noise", "spread"),
    [("normal", 1.0), ("logistic", 1.0), ("laplace", 3.0), ("uniform", 1.0)]
    + [pytest.param(n, s, marks=pytest.mark.full) for n in NOISES for s in (0.02, 0.3, 20.0)],
)
def test_of_a_thousand_it_meets_another_integrator(noise, spread, rng):
    x = rng.standard_normal(1000).astype("f4") * np.float32(spread)
    exact = integrated(x.astype(float), noise)
    assert perturbed_argmax(x.astype(float), noise=noise) == pytest.approx(exact, abs=1e-10)
    assert perturbed_argmax(x, noise=noise) == pytest.approx(exact, abs=1e-6)


def test_one_ahead_of_a_crowd_is_two_maxima():
    """The largest of 3,000 at −4 is as likely as one at 0 to be the largest: two scales at once."""
    x = np.concatenate([[0.0], np.full(3000, -4.0)])
    for noise in NOISES:
        p = perturbed_argmax(x, noise=noise)
        law = SCIPY[noise]
        exact = integrate.quad(
            lambda m, law=law: law.pdf(m) * math.exp(3000 * law.logcdf(m + 4)),
            law.ppf(1e-16), law.isf(1e-14), epsabs=1e-13, limit=500,
        )[0]  # fmt: skip
        assert p[0] == pytest.approx(exact, abs=1e-10)


def test_gumbel_is_softmax_and_quadrature_agrees_for_a_gumbel_of_ones_own(rng):
    x = rng.standard_normal((3, 20)) * 2
    soft = kofn.softmax(x, temperature=0.8)
    assert np.array_equal(perturbed_argmax(x, noise="gumbel", temperature=0.8), soft)
    gumbel = Link(
        cdf=lambda z: np.exp(-np.exp(-z)),
        pdf=lambda z: np.exp(-z - np.exp(-z)),
        sf=lambda z: -np.expm1(-np.exp(-z)),
    )
    assert perturbed_argmax(x, noise=gumbel, temperature=0.8) == pytest.approx(soft, abs=1e-11)


def test_a_noise_with_kinks_of_ones_own():
    """A triangle on (−1, 1): bounded, with a corner in the middle."""
    triangle = Link(
        cdf=lambda z: np.where(
            z < 0, np.clip(1 + z, 0, 1) ** 2 / 2, 1 - np.clip(1 - z, 0, 1) ** 2 / 2
        ),
        pdf=lambda z: np.clip(1 - np.abs(z), 0, None),
    )
    x = np.array([0.3, 0.0, -0.2, -0.6])
    p = perturbed_argmax(x, noise=triangle, kinks=(-1.0, 0.0, 1.0))
    for i in range(4):
        others = np.delete(x, i)
        exact = integrate.quad(
            lambda m, i=i, o=others: float(triangle.pdf(m - x[i]) * np.prod(triangle.cdf(m - o))),
            -2, 2, points=np.unique(np.add.outer(x, [-1, 0, 1])), epsabs=1e-13, limit=200,
        )[0]  # fmt: skip
        assert p[i] == pytest.approx(exact, abs=1e-11)


def test_heavy_tails():
    cauchy = Link(
        cdf=lambda z: np.where(z < -1, np.arctan(-1 / z) / math.pi, 0.5 + np.arctan(z) / math.pi),
        pdf=lambda z: 1 / (math.pi * (1 + z * z)),
        sf=lambda z: np.where(z > 1, np.arctan(1 / z) / math.pi, 0.5 - np.arctan(z) / math.pi),
    )
    for gap in (0.3, 2.0, 20.0):  # the difference of two is twice one
        p = perturbed_argmax(np.array([gap, 0.0]), noise=cauchy)
        assert p[0] == pytest.approx(0.5 + math.atan(gap / 2) / math.pi, abs=1e-6)


@pytest.mark.parametrize(
    "noise", [*NOISES, "gumbel", links.exponential, links.entmax(1.5)], ids=str
)
def test_laws_of_a_perturbed_argmax(framework, noise, rng):
    x = rng.standard_normal((4, 9)) * 1.5
    x[1, 3] = x[1, 6]
    p = framework.numpy(perturbed_argmax(framework.array(x, "float32"), noise=noise))
    assert np.all((p >= 0) & (p <= 1))
    assert p.sum(-1) == pytest.approx(np.ones(4), abs=1e-6)
    assert p[1, 3] == p[1, 6]
    ordered = np.take_along_axis(p, np.argsort(x, axis=-1), -1)
    assert np.all(np.diff(ordered, axis=-1) >= -1e-7)
    hard = framework.numpy(
        perturbed_argmax(framework.array(x[2:], "float32"), noise=noise, temperature=1e-3)
    )
    assert hard == pytest.approx(kofn.hard_topk(x[2:], 1), abs=1e-6)


@pytest.mark.parametrize(
    "noise",
    ["normal", "uniform", links.entmax(3.0)]
    + [pytest.param(n, marks=pytest.mark.full) for n in ("logistic", "laplace", links.exponential)],
    ids=str,
)
def test_derivatives_are_exact_to_the_second(noise):
    x = torch.tensor(
        [[0.35, 0.8, -0.54, -1.3], [0.91, 0.45, -0.54, 0.58]],
        dtype=torch.float64,
        requires_grad=True,
    )
    t = torch.tensor([1.3, 0.8], dtype=torch.float64, requires_grad=True)

    def f(x, t):
        return perturbed_argmax(x, noise=noise, temperature=t)

    assert gradcheck(f, (x, t), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(f, (x, t), check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize(
    ("name", "noise", "dtype"),
    [("torch", n, d) for n in ("normal", "uniform") for d in ("float64", "float32")]
    + [("jax", "normal", "float32")]
    + [pytest.param("jax", n, "float64", marks=pytest.mark.full) for n in NOISES],
)
def test_gradients_meet_differences(name, noise, dtype, rng):
    framework = Framework(name)
    x, v = rng.standard_normal(40).astype("f4"), rng.standard_normal(40)
    (got,) = framework.vjp(
        lambda x: perturbed_argmax(x, noise=noise),
        (framework.array(x, dtype),),
        framework.array(v, dtype),
    )
    h, wide = 1e-5, x.astype(float)
    for i in range(0, 40, 7):
        step = h * np.eye(40)[i]
        up, down = (perturbed_argmax(wide + s * step, noise=noise) @ v for s in (1, -1))
        assert got[i] == pytest.approx((up - down) / (2 * h), abs=max(1e-8, GRADIENT[dtype]))


def test_a_third_derivative_is_not_quietly_wrong():
    x = torch.tensor([0.3, -0.2, 1.1], dtype=torch.float64)
    v = torch.tensor([1.0, 0.5, -0.3], dtype=torch.float64)

    def along(step):
        return (perturbed_argmax(x + step * v) * v).sum()

    third = torch.func.grad(torch.func.grad(torch.func.grad(along)))
    assert not torch.isfinite(third(torch.zeros((), dtype=torch.float64)))
    # Eager differentiation is of the quadrature's own Jacobian, and right to any order.
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value, orders = along(step), []
    for _ in range(3):
        (value,) = torch.autograd.grad(value, step, create_graph=True)
        orders.append(value.item())
    h = 0.02
    f = [along(torch.tensor(i * h)).item() for i in (-2, -1, 1, 2)]
    assert orders[2] == pytest.approx((f[3] - 2 * f[2] + 2 * f[1] - f[0]) / (2 * h**3), rel=1e-3)


def test_transforms(rng):
    x, v = (torch.tensor(rng.standard_normal((2, 5))) for _ in range(2))
    want = perturbed_argmax(x)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: (perturbed_argmax(x) * v).sum(), fullgraph=True, backend="aot_eager"
    )
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    got = torch.autograd.grad(compiled(leaf), leaf)[0]
    slope = torch.autograd.grad((perturbed_argmax(other) * v).sum(), other)[0]
    assert torch.allclose(got, slope, atol=1e-12)
    assert torch.allclose(torch.func.vmap(perturbed_argmax)(x), want, atol=1e-13)
    by_row = torch.func.vmap(torch.func.grad(lambda x, v: (perturbed_argmax(x) * v).sum()))(x, v)
    assert torch.allclose(by_row, slope, atol=1e-12)
    pushed = torch.func.jvp(perturbed_argmax, (x,), (v,))[1]
    assert torch.allclose(pushed, slope, atol=1e-12)  # the Jacobian is symmetric


@pytest.mark.parametrize(
    "noise",
    [
        "uniform",
        *(
            pytest.param(noise, marks=pytest.mark.full)
            for noise in ("laplace", links.entmax(1.5), links.entmax(1.01))
        ),
    ],
)
def test_transforms_where_the_noise_has_kinks(noise, rng):
    x, v = (torch.tensor(rng.standard_normal((2, 4))) / 3 for _ in range(2))

    def f(x, v):
        return (perturbed_argmax(x, noise=noise) * v).sum()

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf, v), leaf)
    assert torch.allclose(torch.func.vmap(torch.func.grad(f))(x, v), slope, atol=1e-11)
    if noise == "uniform":
        torch._dynamo.reset()
        traced = torch.compile(f, fullgraph=True, backend="eager")
        assert torch.allclose(traced(x, v), f(x, v), atol=1e-12)


@pytest.mark.full
def test_jax_transforms(rng):
    x, v = rng.standard_normal((2, 5)), rng.standard_normal((2, 5))
    leaf = torch.tensor(x, requires_grad=True)
    slope = torch.autograd.grad((perturbed_argmax(leaf) * torch.tensor(v)).sum(), leaf)[0]
    a, b = jnp.asarray(x), jnp.asarray(v)
    theirs = jax.jit(jax.vmap(jax.grad(lambda x, v: (perturbed_argmax(x) * v).sum())))(a, b)
    assert np.asarray(theirs) == pytest.approx(slope.numpy(), abs=1e-12)


def test_edges_of_a_perturbed_argmax(framework):
    inf, nan = math.inf, math.nan
    x = [[1, -inf, 0], [inf, 1, inf], [nan, 1, 0], [-inf] * 3, [0, -1e30, 1e30], [-inf, 5, -inf]]
    p = framework.numpy(perturbed_argmax(framework.array(x, "float32")))
    two = perturbed_argmax(np.array([1.0, 0.0]))
    assert p[0] == pytest.approx([two[0], 0, two[1]], abs=1e-6)
    assert np.array_equal(p[[1, 3, 4, 5]], [[0.5, 0, 0.5], [0, 0, 0], [0, 0, 1], [0, 1, 0]])
    assert np.all(np.isnan(p[2]))
    mask = framework.array([True, False, True], "bool")
    masked = perturbed_argmax(framework.array([1.0, nan, 0.0]), mask=mask)
    assert framework.numpy(masked) == pytest.approx([two[0], 0, two[1]], abs=1e-12)
    empty = perturbed_argmax(framework.array(np.zeros((0, 3))))
    assert empty.shape == (0, 3)
    assert perturbed_argmax(framework.array(np.zeros((2, 0)))).shape == (2, 0)
    column = perturbed_argmax(framework.array([[1.0], [0.0]]), dim=0)
    assert framework.numpy(column)[:, 0] == pytest.approx(two, abs=1e-12)


def test_gradients_at_the_edges_are_0_not_nan():
    inf = math.inf
    x = torch.tensor([[1.0, -inf, 0.0], [inf, 1.0, 0.0], [-inf] * 3, [7.0, -inf, -inf]])
    x.requires_grad_()
    (perturbed_argmax(x) * torch.tensor([1.0, 2.0, -1.0])).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[1:].any()
    assert x.grad[0, 0] > 0.1


def test_memory_stays_in_proportion_to_the_row():
    """Nothing of the size of nodes × entries: 48 nodes and 10⁵ entries would be 20 MB an array."""
    import tracemalloc

    x = np.random.default_rng(0).standard_normal(100_000).astype("f4")
    tracemalloc.start()
    perturbed_argmax(x, noise="logistic")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * x.nbytes


KERNELS = ("normal", "logistic", "laplace", "uniform", links.entmax(1.5))


@pytest.mark.parametrize("noise", KERNELS, ids=str)
def test_kernels_meet_array_code(framework, noise, monkeypatch, rng):
    """Also in rows so wide that Π Φ underflows where the search for nodes begins."""
    if framework.name == "jax":
        pytest.skip("JAX arrays have array code only")
    for n, spread in ((2, 1.0), (30, 0.05), (700, 1.0), (700, 30.0)):
        x, v = rng.standard_normal((5, n)) * spread, rng.standard_normal((5, n))
        x[0, -1], x[1, 0], x[2] = -math.inf, math.inf, -math.inf
        for dtype, close in (("float32", 1e-6), ("float64", 1e-12)):
            found = []
            for choice in ("on", "reference"):
                monkeypatch.setenv("KOFN_KERNELS", choice)
                array = framework.array(x.astype("f4"), dtype)
                answer = [framework.numpy(perturbed_argmax(array, noise=noise))]
                if framework.name == "torch":
                    answer += framework.vjp(
                        lambda x: perturbed_argmax(x, noise=noise),
                        (array,),
                        framework.array(v, dtype),
                    )
                found.append(answer)
            for one, other in zip(*found, strict=True):
                assert np.max(np.abs(one - other)) <= close * max(1, np.max(np.abs(other)))


@pytest.mark.usefixtures("kernels_on")
def test_kernels_serve_eager_calls_and_first_derivatives_alone(monkeypatch):
    def fail(*arguments):
        raise AssertionError("array code evaluates the noise")

    x = torch.randn(3, 20, requires_grad=True)
    with monkeypatch.context() as patch:
        for module in (argmax_nodes, argmax_quadrature):
            patch.setattr(module, "hazard", fail)
        patch.setattr(argmax_nodes, "log_cdf", fail)
        for noise in KERNELS:
            for leaf in (x, x.detach().double().requires_grad_()):
                perturbed_argmax(leaf, noise=noise).square().sum().backward()
                perturbed_argmax(leaf.detach().numpy(), noise=noise)
    x = x.detach().double().requires_grad_()
    assert gradgradcheck(perturbed_argmax, x, fast_mode=True)


def test_rows_of_noise_on_several_threads(monkeypatch, rng):
    x = rng.standard_normal((40, 300)).astype("f4")
    alone = [perturbed_argmax(row, noise="logistic") for row in x]
    monkeypatch.setenv("KOFN_NUM_THREADS", "3")
    assert np.array_equal(perturbed_argmax(x, noise="logistic"), alone)


def test_the_rules_are_gausss():
    for count in (6, 12):
        places, widths = (np.sort(part) for part in argmax_nodes._gauss(count))
        exact = np.polynomial.legendre.leggauss(count)
        assert 2 * places - 1 == pytest.approx(exact[0], abs=1e-15)
        assert 2 * widths == pytest.approx(np.sort(exact[1]), abs=1e-15)


def test_errors():
    x = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"noise must be one of 'normal', 'uniform'.*got 'cauchy'"):
        perturbed_argmax(x, noise="cauchy")
    with pytest.raises(TypeError, match="noise must be one of"):
        perturbed_argmax(x, noise=np.tanh)
    with pytest.raises(ValueError, match="kinks must be None for a built-in noise"):
        perturbed_argmax(x, kinks=(0.0,))
    with pytest.raises(TypeError, match="a number for alpha"):
        perturbed_argmax(x, noise=links.entmax(np.array([1.5, 1.2])))
