"""One pass over a stretch of a row of k-subsets, on a GPU: the sums of quadrature.py.

A thread has coins of its own and all nodes of each, so that a coin's sum over nodes stays with its
thread; only the product over coins is folded, once. That product is complex and float64, four
multiplications a coin and node, because at n = 10⁶ float32 has lost it; the rest is float32.
Coins are kept as signed tails u, +p where p ≤ ½ and −q elsewhere, as in cpu/subsets/sums.py, which
has the same passes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from kofn.kernels import contract
from kofn.kernels.gpu.rows.formulas import DELETED, INF
from kofn.kernels.gpu.rows.words import LOG2_E, inverse

LOG_COUNT = tl.constexpr(contract.LOG_COUNT)
TAILS = tl.constexpr(contract.TAILS)
MARGINALS = tl.constexpr(contract.MARGINALS)
COVARIANCE = tl.constexpr(contract.COVARIANCE)

NODES = tl.constexpr(16)  # in float32 no row has more that count than 14, most have 7
GROUP = tl.constexpr(8)  # whose products a thread keeps in registers
PI = tl.constexpr(math.pi)
# Of sin x/x and cos x as polynomials of x², to 1e-17 for |x| ≤ π/2: Triton's own, in float64,
# keep a stack for the arguments of any size that these never have.
TERMS = tl.constexpr(12)
SIN = tl.constexpr(tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(12)))
COS = tl.constexpr(tuple((-1) ** i / math.factorial(2 * i) for i in range(12)))


class Stretch(NamedTuple):
    """The coins of a row that a pass goes over, at z = y − (hi + lo)."""

    y: Any  # the address of the row's first logit
    first: Any  # the first coin
    last: Any  # the one after the last
    hi: Any
    lo: Any


class Nodes(NamedTuple):
    """The numbers of each node: sin ω, 1 − cos ω, and a complex one, its weight or spectrum."""

    sin: Any
    versine: Any
    real: Any
    imag: Any


class Totals(NamedTuple):
    """The covariance's sums over all coins, with the mean of v."""

    mean: Any
    sum: Any  # Σδ(v − mean)
    real: Any  # Σ a(v − mean) per node
    imag: Any


@triton.jit
def _polynomial(x, COEFFICIENTS: tl.constexpr):
    total = tl.zeros_like(x) + COEFFICIENTS[TERMS - 1]
    for i in tl.static_range(2, TERMS + 1):
        total = total * x + COEFFICIENTS[TERMS - i]
    return total


@triton.jit
def _half_turn(q):
    """sin and cos of πq for |q| ≤ ½, and so, doubled, of a whole turn's share q."""
    x = q * PI
    return x * _polynomial(x * x, SIN), _polynomial(x * x, COS)


@triton.jit
def _turn(q):
    """cos and sin of 2πq for |q| ≤ ½."""
    sine, cosine = _half_turn(q)
    return 1.0 - sine * sine * 2.0, sine * cosine * 2.0


@triton.jit
def load(row, at, last, other, LANES: tl.constexpr):
    columns = at + tl.arange(0, LANES)
    return tl.load(row + columns, mask=columns < last, other=other)


@triton.jit
def _coins(stretch, at, LANES: tl.constexpr):
    """Return (u of LANES coins, whether z > 0, y); u is 0 where |z| = ∞."""
    y = load(stretch.y, at, stretch.last, -INF, LANES)
    z = (y - stretch.hi) - stretch.lo
    e = tl.exp2(tl.abs(z) * -LOG2_E)
    t = e * inverse(1.0 + e)
    return tl.where(z > 0.0, -t, t), z > 0.0, y


@triton.jit
def _moments(u):
    """Return (pq, q − p)."""
    t = tl.abs(u)
    r = 1.0 - t * 2.0
    return t * (1.0 - t), tl.where(u < 0.0, -r, r)


@triton.jit
def tally(stretch, v_row, WEIGHTED: tl.constexpr, LANES: tl.constexpr):
    """Σpq, #(z > 0), #(+inf), and Σpq·v where WEIGHTED."""
    variance = tl.zeros((LANES,), tl.float32)
    above, top, weighted = variance, variance, variance
    for at in range(stretch.first, stretch.last, LANES):
        u, upper, y = _coins(stretch, at, LANES)
        w, _ = _moments(u)
        variance += w
        above += tl.where(upper, 1.0, 0.0)
        top += tl.where(y == INF, 1.0, 0.0)
        if WEIGHTED:
            v = load(v_row, at, stretch.last, 0.0, LANES)
            # An entry out of play may carry anything, NaN included.
            weighted += tl.where(w > 0.0, w * v, 0.0)
    return (
        tl.sum(variance.to(tl.float64)),
        tl.sum(above.to(tl.float64)),
        tl.sum(top.to(tl.float64)),
        tl.sum(weighted.to(tl.float64)),
    )


@triton.jit
def grid(variance, above, k, n, node):
    """`Nodes` with weight·e^{iω(above − k)}; all 0 for a node that does not count.

    There are as many as in subsets/quadrature.py. The phase is the product of e^{iω} per coin
    above ½, which `multiply` leaves out, over e^{iωk}.
    """
    number = tl.ceil((tl.sqrt(variance) * 6.0 + 9.0) * 0.5) * 2.0 + 1.0
    number = tl.minimum(number, (n + 1 + n % 2).to(tl.float64))
    h, per_number = node.to(tl.float64), 1.0 / number
    # Numbers beyond the last node are not used; this bounds their size.
    sine, cosine = _half_turn(tl.minimum(h * per_number, 0.5))
    versine = sine * sine * 2.0
    counts = (h * 2.0 < number) & (versine * variance <= 17.0)
    phase = above - k.to(tl.float64)
    phase = (phase - tl.floor(phase * per_number) * number) * per_number * h
    real, imag = _turn(phase - tl.floor(phase + 0.5))
    weight = tl.where(counts, tl.where(h == 0.0, 1.0, 2.0), 0.0) * per_number
    sin, versine = tl.where(counts, sine * cosine * 2.0, 0.0), tl.where(counts, versine, 0.0)
    return Nodes(sin, versine, real * weight, imag * weight)


@triton.jit
def _times(a_real, a_imag, b_real, b_imag):
    return a_real * b_real - a_imag * b_imag, a_real * b_imag + a_imag * b_real


@triton.jit
def product(real, imag):
    """Multiply the numbers of each node."""
    return tl.reduce((real, imag), 1, _times)


@triton.jit
def multiply(stretch, sin, versine, LANES: tl.constexpr):
    """Per node Π t = 1 − |u|(1 − cos ω) + iu sin ω over coins; above ½ it lacks e^{iω}."""
    imag = tl.zeros((sin.shape[0], LANES), tl.float64)
    real = imag + 1.0
    for at in range(stretch.first, stretch.last, LANES):
        u, _, _ = _coins(stretch, at, LANES)
        u = u.to(tl.float64)
        a = 1.0 - versine[:, None] * tl.abs(u)[None, :]
        b = sin[:, None] * u[None, :]
        real, imag = _times(real, imag, a, b)
    return product(real, imag)


@triton.jit
def spectrum(real, imag, nodes):
    """Return (`Nodes` with weight·Π t·e^{−iωk}/Pr(N = k) in float32, Pr(N = k))."""
    real, imag = _times(real, imag, nodes.real, nodes.imag)
    total = tl.sum(real)
    real, imag = (real / total).to(tl.float32), (imag / total).to(tl.float32)
    return Nodes(nodes.sin.to(tl.float32), nodes.versine.to(tl.float32), real, imag), total


@triton.jit
def _shift(w, r, nodes):
    """Return (π − p)/w."""
    over = inverse(1.0 - nodes.versine[:, None] * (w + w)[None, :])
    above = (nodes.versine * nodes.real)[:, None] * r[None, :] + (nodes.sin * nodes.imag)[:, None]
    return -tl.sum(above * over, axis=0)


@triton.jit
def write(WHAT: tl.constexpr, stretch, out_row, nodes, LANES: tl.constexpr):
    """Tails given N = k, or marginals."""
    for at in range(stretch.first, stretch.last, LANES):
        u, upper, _ = _coins(stretch, at, LANES)
        w, r = _moments(u)
        rho = _shift(w, r, nodes)
        t = tl.abs(u)
        # Rounding may leave [0, 1] by its own size.
        answer = tl.minimum(tl.maximum(t + u * (1.0 - t) * rho, 0.0), 1.0)
        if WHAT == MARGINALS:
            answer = tl.where(upper, 1.0 - answer, answer)
        columns = at + tl.arange(0, LANES)
        tl.store(out_row + columns, answer, mask=columns < stretch.last)


@triton.jit
def close(WHAT: tl.constexpr, stretch, out_row, theta, k, top, LANES: tl.constexpr):
    """A row without a choice to make, or with a NaN, as conditional_bernoulli.py answers it."""
    of_top = tl.where((theta < 0.0) | (top <= k), 1.0, tl.where(theta != theta, theta, k / top))
    others = tl.where(theta != theta, theta, tl.where(theta > 0.0, 0.0, 1.0))
    for at in range(stretch.first, stretch.last, LANES):
        y = load(stretch.y, at, stretch.last, -INF, LANES)
        answer = tl.zeros((LANES,), tl.float32)
        if WHAT == MARGINALS:
            answer += tl.where(y <= DELETED, 0.0, tl.where(y == INF, of_top, others))
        columns = at + tl.arange(0, LANES)
        tl.store(out_row + columns, answer, mask=columns < stretch.last)


@triton.jit
def _slope(w, r, nodes):
    """a = ∂ log t/∂z without the mean iwω."""
    over = w[None, :] * inverse(1.0 - nodes.versine[:, None] * (w + w)[None, :])
    return over * r[None, :] * -nodes.versine[:, None], over * nodes.sin[:, None]


@triton.jit
def _centred(stretch, v_row, at, mean, LANES: tl.constexpr):
    """Return (u, pq, q − p, v − mean); H does not see a constant, and without it nothing large
    cancels.
    """
    u, _, _ = _coins(stretch, at, LANES)
    w, r = _moments(u)
    # Where w is 0 there may be any v, NaN included.
    return u, w, r, tl.where(w > 0.0, load(v_row, at, stretch.last, 0.0, LANES) - mean, 0.0)


@triton.jit
def others(stretch, v_row, mean, nodes, LANES: tl.constexpr):
    """Return (Σδ(v − mean), and per node Σ a(v − mean)) of all coins; a coin's own is taken off
    later.
    """
    total = tl.zeros((LANES,), tl.float32)
    first_sums = tl.zeros((NODES, LANES), tl.float32)
    second_sums = first_sums
    for at in range(stretch.first, stretch.last, LANES):
        _, w, r, g = _centred(stretch, v_row, at, mean, LANES)
        total += w * _shift(w, r, nodes) * g
        x, y = _slope(w, r, nodes)
        first_sums += x * g[None, :]
        second_sums += y * g[None, :]
    return (
        tl.sum(total.to(tl.float64)),
        tl.sum(first_sums.to(tl.float64), axis=1),
        tl.sum(second_sums.to(tl.float64), axis=1),
    )


@triton.jit
def write_covariance(stretch, v_row, out_row, totals, nodes, LANES: tl.constexpr):
    """H(v − mean): over pairs by nodes, Re[c·a(Σag − ag)] − δ(Σδg − δg); π(1 − π)g besides."""
    for at in range(stretch.first, stretch.last, LANES):
        u, w, r, g = _centred(stretch, v_row, at, totals.mean, LANES)
        rho = _shift(w, r, nodes)
        x, y = _slope(w, r, nodes)
        p, q = totals.real[:, None] - x * g[None, :], totals.imag[:, None] - y * g[None, :]
        real, imag = _times(x, y, p, q)
        pairs = nodes.real[:, None] * real - nodes.imag[:, None] * imag
        delta, t = w * rho, tl.abs(u)
        tail = t + u * (1.0 - t) * rho
        own = tail * (1.0 - tail) * g
        answer = tl.sum(pairs, axis=0) - delta * (totals.sum - delta * g) + own
        columns = at + tl.arange(0, LANES)
        tl.store(out_row + columns, answer, mask=columns < stretch.last)
