"""The special functions of NumPy arrays against mpmath, far out in their tails, too."""

import math

import mpmath as mp
import numpy as np
import pytest

from kofn.arrays import numpy_special

ULPS = 6
"""Of float64."""


def normal_quantile(q):
    """Newton's steps from ours, in 40 digits."""
    z = mp.mpf(float(numpy_special.ndtri(float(q))))
    for _ in range(4):
        z -= (mp.erfc(-z / mp.sqrt(2)) / 2 - q) / mp.npdf(z)
    return z


def arguments(name):
    rng = np.random.default_rng(0)
    near_0 = rng.choice([-1, 1], 60) * 10.0 ** rng.uniform(-300, 0, 60)
    if name == "gammaln":
        return np.concatenate([np.arange(1.0, 40), [1e3, 1e6]])
    if name == "ndtri":
        tail = 10.0 ** rng.uniform(-300, -1, 100)
        near_1 = 1 - 10.0 ** rng.uniform(-15, -1, 60)
        return np.concatenate([rng.uniform(size=200), tail, near_1, 0.5 + near_0[near_0 < 0.5]])
    far = 26 if name == "erfc" else 700
    return np.concatenate([rng.uniform(-far, far, 200), rng.normal(size=200), near_0])


ORACLES = {
    "expit": lambda x: 1 / (1 + mp.exp(-x)),
    "erfc": mp.erfc,
    "ndtri": normal_quantile,
    "gammaln": mp.loggamma,
}


@pytest.mark.parametrize("name", ORACLES)
def test_to_a_few_units_in_the_last_place(name):
    x = arguments(name)
    with mp.workdps(40):
        wanted = [ORACLES[name](mp.mpf(float(each))) for each in x]
        found = getattr(numpy_special, name)(x)
        off = [abs(mp.mpf(float(a)) - b) for a, b in zip(found, wanted, strict=True)]
        allowed = [ULPS * abs(b) * mp.mpf(2) ** -53 for b in wanted]
    assert all(a <= b for a, b in zip(off, allowed, strict=True))


def test_ends():
    ends = np.array([np.inf, -np.inf, np.nan, 1e300, -1e300])
    assert np.array_equal(numpy_special.expit(ends), [1, 0, np.nan, 1, 0], equal_nan=True)
    assert np.array_equal(numpy_special.erfc(ends), [0, 2, np.nan, 0, 2], equal_nan=True)
    q = np.array([0.0, 1.0, 0.5, -0.1, 1.1, np.nan])
    wanted = [-np.inf, np.inf, 0, np.nan, np.nan, np.nan]
    assert np.array_equal(numpy_special.ndtri(q), wanted, equal_nan=True)
    assert math.isclose(numpy_special.ndtri(5e-324), -38.46740561714434)


def test_shapes_and_types_stay():
    for dtype in (np.float16, np.float32, np.float64):
        x = np.linspace(0.1, 0.9, 3 * 10_000).astype(dtype).reshape(3, 10_000)
        for name in ORACLES:
            function = getattr(numpy_special, name)
            found = function(x)
            assert found.shape == x.shape
            assert found.dtype == dtype
            assert function(x[2, 9_999]) == found[2, 9_999]
            assert np.array_equal(function(x[:, ::7]), found[:, ::7])


def coefficients(function, count):
    """Those of Chebyshev polynomials, from the values at 60 of their nodes."""
    nodes = [mp.cos(mp.pi * (2 * j + 1) / 120) for j in range(60)]
    values = [function(x) for x in nodes]

    def of(i):
        terms = (v * mp.cos(mp.pi * i * (2 * j + 1) / 120) for j, v in enumerate(values))
        return sum(terms) * (2 if i else 1) / 60

    return [float(of(i)) for i in range(count)]


def tail(t):
    x = 3 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def center(t):
    x = mp.sqrt((t + 1) / 2)
    return mp.erf(x) / x


@pytest.mark.parametrize(
    ("table", "function"), [("_TAIL", tail), ("_CENTER", center)], ids=["tail", "center"]
)
def test_tables(table, function):
    table = getattr(numpy_special, table)
    with mp.workdps(50):
        wanted = coefficients(function, len(table))
    assert np.allclose(table, wanted, rtol=0, atol=1e-17)
