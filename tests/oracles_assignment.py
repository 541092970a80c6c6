"""Soft assignment by other means: plain float64 NumPy, one matrix at a time.

`sinkhorn` is the usual scaling of a kernel, without a bound on entries. `projected` minimises the
convex function of α and β by L-BFGS of SciPy, with tails of the links as simple as can be.
`linear_program` is the hard optimum by SciPy's linprog. `matrix` and `margins` are what tests of
several files draw and measure.
"""

import numpy as np
from scipy import optimize, sparse, special

CDF = {
    "logistic": special.expit,
    "normal": special.ndtr,
    "laplace": lambda z: np.where(z < 0, np.exp(np.minimum(z, 0)) / 2, 1 - np.exp(-abs(z)) / 2),
    "exponential": lambda z: np.exp(np.minimum(z - 1, 0)),
    "linear": lambda z: np.clip(z + 0.5, 0, 1),
    "entmax": lambda z: np.clip((z + 4 / 3) / 2, 0, 1) ** 2,
}
INTEGRAL = {
    "logistic": lambda z: np.logaddexp(0, z),
    "normal": lambda z: z * special.ndtr(z) + np.exp(-z * z / 2) / np.sqrt(2 * np.pi),
    "laplace": lambda z: np.maximum(z, 0) + np.exp(-abs(z)) / 2,
    "exponential": lambda z: np.where(z < 1, np.exp(np.minimum(z - 1, 0)), z),
    "linear": lambda z: np.clip(z + 0.5, 0, 1) ** 2 / 2 + np.maximum(z - 0.5, 0),
    "entmax": lambda z: 2 / 3 * np.clip((z + 4 / 3) / 2, 0, 1) ** 3 + np.maximum(z - 2 / 3, 0),
}


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
    w = CDF[link](z)
    value = k @ alpha + c @ beta + t * INTEGRAL[link](z).sum()
    return value, np.concatenate([k - w.sum(1), c - w.sum(0)])


def minimised(x, k, c, t, link):
    """(weights, α, β, value) by SciPy, good to about six digits; in the gauge Σβ = 0."""
    options = dict(maxiter=20_000, maxfun=40_000, ftol=1e-16, gtol=1e-10, maxcor=50)
    start = np.zeros(sum(x.shape))
    found = optimize.minimize(
        dual, start, (x, k, c, t, link), jac=True, method="L-BFGS-B", options=options
    )
    alpha, beta = found.x[: len(k)], found.x[len(k) :]
    weights = CDF[link]((x - alpha[:, None] - beta) / t)
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
