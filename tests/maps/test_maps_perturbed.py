"""perturbed_argmax: against closed forms and other integrators, its derivatives, its edges."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

import kofn
from kofn import Link, links, perturbed_argmax
from kofn.maps.perturbed import NOISES
from support import GRADIENT, WEIGHTS

NAMES = *NOISES, "gumbel"
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
    [(n, 3.0 if n == "laplace" else 1.0) for n in NOISES]
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


@pytest.mark.parametrize("noise", [*NAMES, links.exponential, links.entmax(1.5)], ids=str)
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


def test_memory_stays_in_proportion_to_the_row():
    """Nothing of the size of nodes × entries: 48 nodes and 10⁵ entries would be 20 MB an array."""
    import tracemalloc

    x = np.random.default_rng(0).standard_normal(100_000).astype("f4")
    tracemalloc.start()
    perturbed_argmax(x, noise="logistic")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * x.nbytes


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
