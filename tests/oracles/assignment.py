"""Soft assignment by other means: plain float64 NumPy, one matrix at a time.

`sinkhorn` is the usual scaling of a kernel, without a bound on entries. `projected` minimises the
convex function of α and β by L-BFGS of SciPy, with tails of the links as simple as can be.
`linear_program` is the hard optimum by SciPy's linprog. `matrix` and `margins` are what tests of
several files draw and measure.
"""

import numpy as np
from scipy import optimize, sparse, special

import oracles


def cdf(z, link):
    with np.errstate(over="ignore"):
        return oracles.CDF[link](z.astype(oracles.LD))


def integral(z, link):
    """∫F, from that of F⁻¹."""
    p = cdf(z, link)
    return z * p - oracles.OMEGA[link](p, z)


def matrix(m, n, seed=0):
    return np.random.default_rng(seed).standard_normal((m, n))


def margins(w, k, c):
    """The greatest error of a sum of a row or column, relative to what it should be."""
    w, k, c = np.asarray(w, np.float64), np.asarray(k), np.asarray(c)
    assert np.all((w >= 0) & (w <= 1))
    return max((abs(w.sum(-1) - k) / k).max(), (abs(w.sum(-2) - c) / c).max())


def dual(prices, x, k, c, t, link):
    """The convex function of (α, β), which is least at the prices, and its slopes."""
    alpha, beta = prices[: len(k)], prices[len(k) :]
    z = (x - alpha[:, None] - beta) / t
    w = cdf(z, link).astype(float)
    value = k @ alpha + c @ beta + t * float(integral(z, link).sum())
    return value, np.concatenate([k - w.sum(1), c - w.sum(0)])


def minimised(x, k, c, t, link):
    """(weights, α, β, value) by SciPy, good to about six digits; in the gauge Σβ = 0."""
    options = dict(maxiter=20_000, maxfun=40_000, ftol=1e-16, gtol=1e-10, maxcor=50)
    start = np.zeros(sum(x.shape))
    found = optimize.minimize(
        dual, start, (x, k, c, t, link), jac=True, method="L-BFGS-B", options=options
    )
    alpha, beta = found.x[: len(k)], found.x[len(k) :]
    weights = cdf((x - alpha[:, None] - beta) / t, link).astype(float)
    return weights, alpha + beta.mean(), beta - beta.mean(), found.fun


def sinkhorn(x, k, c, t, rounds=500):
    """The entropic plan of entries without a bound: POT's and OTT's usual iteration."""
    f, g = np.zeros(len(k)), np.zeros(len(c))
    for _ in range(rounds):
        f = t * (np.log(k) - special.logsumexp((x + g) / t, axis=1))
        g = t * (np.log(c) - special.logsumexp((x + f[:, None]) / t, axis=0))
    return np.exp((x + f[:, None] + g) / t)


def linear_program(x, k, c):
    """The weights in [0, 1] with these margins that have the greatest Σ w·x, and its prices."""
    m, n = x.shape
    rows = sparse.kron(sparse.eye(m), np.ones((1, n)))
    columns = sparse.kron(np.ones((1, m)), sparse.eye(n))
    equal, sums = sparse.vstack([rows, columns]).tocsr(), np.concatenate([k, c])
    found = optimize.linprog(-x.ravel(), A_eq=equal, b_eq=sums, bounds=(0, 1), method="highs")
    assert found.status == 0, found.message
    return found.x.reshape(m, n), -found.fun
