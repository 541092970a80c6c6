"""Every function of every link of the table is that of its distribution, by mpmath alone."""

import mpmath
import numpy as np
import pytest

from kofn import links
from kofn.links import table
from oracles import links as oracles_links
from oracles.links import at
from support import LINKS

EVERY = [*LINKS, "entmax(1.3)"]
oracles_links.F["entmax(1.3)"] = oracles_links.entmax(1.3)
oracles_links.BREAKS["entmax(1.3)"] = [oracles_links.mpf(10) / 13 - oracles_links.mpf(10) / 3]
oracles_links.BREAKS["entmax(1.3)"] += [oracles_links.mpf(10) / 13]


def points(name):
    """Some z, in the support and beyond, away from breaks."""
    breaks = [float(a) for a in oracles_links.BREAKS.get(name, [])]
    z = np.linspace(-5.9, 5.9, 13)
    if len(breaks) == 2:
        low, high = breaks
        z = np.concatenate([z, low + (high - low) * np.linspace(0.05, 0.95, 7)])
    return np.array([a for a in z if all(abs(a - b) > 1e-3 for b in breaks)])


def near(found, right, within=1e-12):
    np.testing.assert_allclose(found, right.astype(float), rtol=within, atol=within / 100)


@pytest.fixture(params=EVERY)
def link(request):
    name = request.param
    return name, links.entmax(1.3) if name == "entmax(1.3)" else table.TABLE[name]


def test_every_link_has_its_distribution(link):
    name, found = link
    z, f = points(name), oracles_links.F[name]
    near(found.cdf(z), at(f, z))
    near(found.sf(z), at(lambda a: 1 - f(a), z))
    near(found.pdf(z), at(oracles_links.pdf(name), z))


def test_every_link_has_its_logarithms(link):
    name, found = link
    z = points(name)
    log_cdf, _, log_pdf = oracles_links.logs(name)
    with np.errstate(divide="ignore"):
        near(found.log_cdf(z), at(log_cdf, z))
        near(found.log_pdf(z), at(log_pdf, z))


def test_every_link_has_its_integrals_and_its_regulariser(link):
    name, found = link
    z, f = points(name)[::2], oracles_links.F[name]
    area = at(oracles_links.integral(name), z)
    near(found.integral(z), area, 1e-11)
    np.testing.assert_allclose(found.upper_integral(z), (area - z).astype(float), atol=1e-12)
    q = at(f, z)
    inside = (q > 1e-6) & (q < 1 - 1e-6)
    near(found.omega(q[inside].astype(float)), (z * q - area)[inside], 1e-10)
    np.testing.assert_allclose(found.quantile(q[inside].astype(float)), z[inside], atol=1e-9)


def test_a_tail_that_floats_do_not_have_is_0_in_an_oracle():
    assert at(lambda z: mpmath.exp(-mpmath.exp(-z)), np.array([-20.0])) == 0
