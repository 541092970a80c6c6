"""The table of links: each row consistent with itself, and with what it is said to be."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy import integrate

import oracles
from kofn import Link, links, soft_topk, soft_topk_sum
from kofn.links import table
from support import CAUCHY, INNER, LINKS, TWO_TAILS, full_but

Z = np.linspace(-6, 6, 241) + 0.0123  # away from the kinks
ALPHAS = (1.0, 1.02, 1.1, 1.3, 1.5, 2.0, 2.7)
TABLE = [*(table.TABLE[name] for name in LINKS), *map(links.entmax, ALPHAS)]
each = pytest.mark.parametrize("link", TABLE, ids=[*LINKS, *(f"entmax({a})" for a in ALPHAS)])


def test_the_table_has_its_links_by_name():
    assert tuple(table.TABLE) == LINKS
    assert {*links.__all__} == {"Link", "ScalarLink", *LINKS}
    assert table.TABLE["entmax"].alpha == 1.5
    for name in LINKS:
        assert table.resolve(name) is table.TABLE[name]


@pytest.mark.parametrize("name", LINKS)
def test_cdf_and_pdf_meet_the_formulas(name):
    assert table.TABLE[name].cdf(Z) == pytest.approx(oracles.CDF[name](Z).astype(float), abs=1e-15)
    assert table.TABLE[name].pdf(Z) == pytest.approx(oracles.PDF[name](Z).astype(float), abs=1e-14)


@each
def test_every_function_of_a_link_agrees_with_its_cdf(link, framework):
    z = framework.array(Z)
    read = framework.numpy
    cdf, pdf = read(link.cdf(z)), read(link.pdf(z))
    h = 1e-5
    slope = read(link.cdf(z + h) - link.cdf(z - h)) / (2 * h)
    with np.errstate(divide="ignore"):
        assert slope == pytest.approx(pdf, abs=2e-6)
        assert read(link.sf(z)) == pytest.approx(1 - cdf, abs=1e-15)
        assert read(link.log_pdf(z)) == pytest.approx(np.log(pdf), abs=1e-9)
    growth = read(link.integral(z + h) - link.integral(z - h)) / (2 * h)
    assert growth == pytest.approx(cdf, abs=1e-8)
    excess = read(link.integral(z)) - Z
    assert read(link.upper_integral(z)) == pytest.approx(excess, abs=1e-13)
    inside = (cdf > 0) & (cdf < 1) & (np.abs(Z) < 5)
    back = read(link.quantile(framework.array(cdf[inside])))
    assert back == pytest.approx(Z[inside], abs=1e-8)


@each
def test_what_the_solver_works_with_is_the_link_counted_from_its_edge(link, framework):
    inner, edge, z = link.inner, link.inner.edge, framework.array(Z)
    read = framework.numpy
    for name in ("cdf", "sf", "pdf", "log_pdf", "integral", "upper_integral"):
        with np.errstate(divide="ignore"):
            ours, inside = getattr(link, name)(z), getattr(inner, name)(z - edge)
        assert read(inside) == pytest.approx(read(ours), abs=1e-13), name
    q = framework.array(np.linspace(0.01, 0.99, 99))
    assert read(inner.quantile(q) + edge) == pytest.approx(read(link.quantile(q)), abs=1e-13)
    assert read(inner.omega(q)) == pytest.approx(read(link.omega(q)), abs=1e-13)


@each
def test_the_zero_mean_convention(link):
    """∫₀¹ F⁻¹ = 0, so that Ω vanishes at both ends, and G − z → 0."""
    mean = integrate.quad(lambda q: float(link.quantile(np.asarray(q))), 0, 1, limit=200)[0]
    assert mean == pytest.approx(0, abs=1e-7)
    ends = link.omega(np.array([0.0, 1.0]))
    assert ends == pytest.approx([0, 0], abs=1e-15)
    assert float(link.integral(np.asarray(-40.0))) == pytest.approx(0, abs=1e-12)
    assert float(link.integral(np.asarray(40.0))) == pytest.approx(40, abs=1e-12)


@each
def test_omega_is_the_integral_of_the_quantile(link):
    q = np.linspace(0.01, 0.99, 99)
    h = 1e-6
    slope = (link.omega(q + h) - link.omega(q - h)) / (2 * h)
    assert slope == pytest.approx(link.quantile(q), abs=1e-6)
    derived = q * link.quantile(q) - link.integral(link.quantile(q))
    assert link.omega(q) == pytest.approx(derived, abs=1e-12)
    assert np.all(np.isnan(link.omega(np.array([-0.1, 1.1, math.nan]))))


@pytest.mark.parametrize("name", TWO_TAILS)
def test_tails_keep_their_digits_in_float32(name):
    """log F, log sf and F at −z where 1 − F would have none."""
    import mpmath

    link = table.TABLE[name]
    for value in (-3.0, -8.0, -12.5):
        with mpmath.workdps(30):
            exact, above = (
                float(log(mpmath.mpf(z)))
                for log, z in ((oracles.LOGS[name].cdf, value), (oracles.LOGS[name].sf, -value))
            )
        for array in (
            np.float32(value) * np.ones(1, np.float32),
            torch.tensor([value]),
            jnp.asarray([value], jnp.float32),
        ):
            assert float(link.cdf(array)[0]) == pytest.approx(math.exp(exact), rel=2e-5)
            assert float(link.sf(-array)[0]) == pytest.approx(math.exp(above), rel=2e-5)
            assert float(link.log_cdf(array)[0]) == pytest.approx(exact, rel=1e-5)
            assert float(link.log_sf(-array)[0]) == pytest.approx(above, rel=1e-5)


def test_a_kink_takes_one_side_in_pdf_and_automatic_derivative():
    kinks = {name: table.kinks_of(table.TABLE[name]) for name in LINKS}
    assert sum(map(len, kinks.values())) >= 6
    for name, places in kinks.items():
        for place, value in places:
            z = torch.tensor([place], dtype=torch.float64, requires_grad=True)
            link = INNER[name]
            assert link.cdf(z.detach()).item() == pytest.approx(value, abs=1e-15)
            assert torch.autograd.grad(link.cdf(z), z)[0] == link.pdf(z.detach())
            import jax

            slope = jax.grad(lambda z, link=link: link.cdf(z))(jnp.asarray(place))
            assert float(slope) == float(link.pdf(jnp.asarray(place)))


def user_logistic(**more):
    return Link(lambda z: 1 / (1 + np.exp(-z)), lambda z: 1 / (2 + np.exp(z) + np.exp(-z)), **more)


@pytest.mark.parametrize("name", full_but(TWO_TAILS[-1:], TWO_TAILS))
def test_higher_derivatives_of_logarithms_on_jax_are_those_of_float64(name):
    link = INNER[name]
    points = np.array([-60.5, -30.5, -12.5, -9.7, -3.3, -0.4, 0.7, 4.2])
    on_jax, z = link.log_cdf, torch.tensor(points, requires_grad=True)
    exact = link.log_cdf(z)
    for most in (1e-5, 5e-5, 5e-4):
        on_jax = jax.vmap(jax.grad(on_jax))
        (exact,) = torch.autograd.grad(exact.sum(), z, create_graph=True)
        found = on_jax(jnp.asarray(points, "float32"))
        assert found == pytest.approx(exact.detach().numpy(), rel=1e-5, abs=most)

        def on_jax(z, slope=on_jax):
            return slope(z[None])[0]


def test_what_a_users_link_leaves_out_is_derived(rng):
    x = rng.standard_normal((3, 12)) * 3
    whole = user_logistic(
        sf=lambda z: 1 / (1 + np.exp(z)),
        quantile=lambda q: np.log(q / (1 - q)),
        integral=lambda z: np.logaddexp(0, z),
    )
    for link in (user_logistic(), whole):
        assert soft_topk(x, 4, link=link) == pytest.approx(soft_topk(x, 4), abs=1e-12)
    assert soft_topk_sum(x, 4, link=whole) == pytest.approx(soft_topk_sum(x, 4), abs=1e-12)
    no_quantile = user_logistic(integral=lambda z: np.logaddexp(0, z))
    q = np.linspace(0.05, 0.95, 19)
    assert no_quantile.omega(q) == pytest.approx(links.logistic.omega(q), abs=1e-9)
    assert no_quantile.quantile(q) == pytest.approx(links.logistic.quantile(q), abs=1e-9)


def test_a_users_link_with_sf_and_quantile_is_balanced_on_a_plateau():
    from kofn import soft_topk_threshold

    whole = user_logistic(
        sf=lambda z: 1 / (1 + np.exp(z)), quantile=lambda q: np.log(q) - np.log1p(-q)
    )
    x = np.array([10, 9.5, 9.2, -9, -10, -9.5, -9.9])
    got = soft_topk_threshold(x, 3, link=whole, temperature=0.3)
    assert got == pytest.approx(0.081942, abs=1e-6)
    bounded = Link(  # a bounded one has no logarithm to balance
        lambda z: np.clip(z + 0.5, 0, 1),
        lambda z: (np.abs(z) < 0.5) * 1.0,
        sf=lambda z: np.clip(0.5 - z, 0, 1),
        quantile=lambda q: q - 0.5,
    )
    assert soft_topk(x, 3, link=bounded).tolist() == [1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "integral",
    [
        lambda z: np.logaddexp(0, z) + 0.1,  # G(−∞) ≠ 0
        lambda z: np.logaddexp(0, z - 0.01),  # G(z) − z does not go to 0: the mean is not 0
    ],
)
def test_an_integral_that_is_not_of_mean_zero_is_refused_with_the_reason(integral):
    with pytest.raises(ValueError, match="mean zero"):
        soft_topk_sum(np.zeros(4), 2, link=user_logistic(integral=integral))


def test_a_built_in_link_without_an_integral_has_weights_alone(monkeypatch):
    """Compiled code serves its weights, so sums and losses have to refuse it before."""
    (kind,) = links.logistic.kinds
    left = {name: f for name, f in kind.formulas.items() if name not in ("integral", "omega")}
    monkeypatch.setattr(type(links.logistic), "kinds", (kind._replace(formulas=left),))
    monkeypatch.delattr(type(links.logistic), "integral")
    x = np.array([3.0, 1.0, 0.0])
    assert soft_topk(x, 1.5, link="logistic").sum() == pytest.approx(1.5)
    with pytest.raises(ValueError, match="logistic> was made without `integral`"):
        soft_topk_sum(x, 1.5, link="logistic")


def test_a_link_is_made_of_functions():
    with pytest.raises(TypeError, match="cdf must be a function"):
        Link(0.5, lambda z: z)
    with pytest.raises(TypeError, match="pdf must be a function"):
        Link(lambda z: z, None)
    with pytest.raises(TypeError, match="sf must be a function"):
        Link(lambda z: z, lambda z: z, sf=1.0)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_cauchy_in_five_lines(name):
    from support import Framework

    framework = Framework(name)
    x = [3.0, 1.0, 0.0, -1.0]
    expected = oracles.soft_topk(
        np.array(x), 2, 1.0, lambda z: np.arctan(z) / oracles.LD(np.pi) + 0.5
    )
    p = framework.numpy(soft_topk(framework.array(x), 2, link=CAUCHY[name]))
    assert p == pytest.approx(expected.astype(float), abs=1e-12)


def test_links_say_who_they_are():
    assert repr(links.logistic) == "<kofn link: logistic>"
    assert repr(links.linear) == "<kofn link: linear>"
    assert repr(table.TABLE["entmax"]) == "<kofn link: entmax(1.5)>"
    assert repr(links.entmax(1.3)) == "<kofn link: entmax(1.3)>"
    assert repr(links.entmax(np.array([1.3, 2.0]))) == "<kofn link: entmax(array)>"
    own = CAUCHY["numpy"]
    assert repr(own) == "<kofn link: your own, with cdf cauchy.<locals>.<lambda>>"
    own = CAUCHY["numpy"]
    assert repr(own) == "<kofn link: your own, with cdf cauchy.<locals>.<lambda>>"
