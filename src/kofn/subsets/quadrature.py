"""Poisson–binomial probabilities by quadrature of the characteristic function, in O(n).

Coin i falls heads with probability p_i = σ(z_i). The number N of heads has the characteristic
function Π_i t_i(ω), t_i = q_i + p_i e^{iω}, and Pr(N = k) is its Fourier coefficient: a mean over
L nodes ω = 2πh/L. Given N = k, the coins are the k-subset distribution with logits z. Entries
with z = −inf are excluded.

Everything is written around p, so that terms are small and float32 keeps its digits:

    w = pq,   r = q − p,   D = |t|² = 1 − 2w(1 − cos ω)
    log t = ½ log D + i(pω + φ)                φ, the phase beyond its mean, is of third order
    ∂ log t/∂z − iwω, and so Pr(heads given N = k) − p, from a = w(−r(1 − cos ω) + i sin ω)/D

Real arithmetic throughout; p and q by the smaller of them, the tail. docs/subsets.md derives it.
Plain differentiable code: these lines have derivatives of any order. The grid of nodes
is a constant of it, since any grid that is fine enough gives the same sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.flow import accumulated, stacked
from kofn.arrays.kinds import (
    Array,
    cast,
    dtype_name,
    full_like,
    is_jax,
    is_jit_tracing,
    namespace,
    special,
)
from kofn.arrays.operations import arange


class Coins(NamedTuple):
    """Coins: arrays per entry; zeros for excluded entries."""

    tail: Array  # min(p, q)
    sign: Array  # +1 where that is p, −1 where it is q
    w: Array  # pq
    r: Array  # q − p


class Node(NamedTuple):
    """Nodes: arrays per node and row, (nodes, …, 1); superfluous nodes of a row have weight 0."""

    angle: Array
    sin: Array
    versine: Array  # 1 − cos
    weight: Array


class Spectrum(NamedTuple):
    """weight·Π t·e^{−iωk}/Pr(N = k) per node; the real parts sum to 1."""

    sin: Array
    versine: Array
    real: Array
    imag: Array


def coins(z: Array) -> Coins:
    xp = namespace(z)
    play, upper = z != -math.inf, z > 0
    # Not |z|, whose derivative at a tie would be 0.
    low = xp.where(play, xp.where(upper, -z, z), 0.0)
    tail = xp.where(play, special(z).expit(low), 0.0)
    sign = xp.where(upper, full_like(z, (), -1.0), 1.0)
    return Coins(tail, sign, tail * (1 - tail), sign * (1 - 2 * tail))


def log_count(z: Array, k: Array) -> Array:
    """Return log Pr(N = k) per row; its gradient is Pr(heads given N = k) − p."""
    node, size, angle = _product(z, coins(z), k)
    xp = namespace(z)
    return xp.log(xp.sum(node.weight * size * xp.cos(angle), axis=0))[..., 0]


def tails(z: Array, k: Array) -> Array:
    """Return Pr(heads given N = k) where p ≤ ½, else Pr(tails …): mostly the smaller of the two."""
    coin = coins(z)
    spectrum = _spectrum(z, coin, k)
    return shifted(coin, _shift(coin, spectrum))


def shifted(coin: Coins, shift: Array) -> Array:
    """Return `tails` of coins, from (π − p)/w."""
    answer = coin.tail * (1 + coin.sign * (1 - coin.tail) * shift)
    # Rounding may leave [0, 1] by its own size. The derivative stays.
    value = stop_gradient(answer)
    return answer + (namespace(value).clip(value, 0.0, 1.0) - value)


def covariance(z: Array, k: Array, v: Array) -> Array:
    """Return H v for the covariance H of the k-subset, which is the Jacobian of its marginals.

    H_ij = E[a_i a_j] − δ_i δ_j off the diagonal, where δ = π − p = E[a] and E is the mean over
    nodes; π_i(1 − π_i) on it.
    """
    xp = namespace(z)
    coin = coins(z)
    spectrum = _spectrum(z, coin, k)
    play = z != -math.inf
    v = xp.where(play, v, 0.0)
    # H does not see a constant; without it nothing large cancels.
    total = _row_sum(coin.w)
    mean = _row_sum(coin.w * v) / xp.where(total > 0, total, 1.0)
    v = xp.where(play, v - mean, 0.0)

    def pairs(item: Spectrum) -> Array:
        real, imag = _slope(coin, item)
        # Σ over the others, so that nothing is taken off again but rounding.
        others_real, others_imag = _row_sum(v * real) - v * real, _row_sum(v * imag) - v * imag
        return item.real * (real * others_real - imag * others_imag) - item.imag * (
            real * others_imag + imag * others_real
        )

    rho = _shift(coin, spectrum)
    tail = coin.tail * (1 + coin.sign * (1 - coin.tail) * rho)
    delta = coin.w * rho
    others = _row_sum(delta * v) - delta * v
    return accumulated(z, pairs, spectrum) - delta * others + tail * (1 - tail) * v


def _row_sum(values: Array) -> Array:
    return namespace(values).sum(values, axis=-1)[..., None]


def _slope(coin: Coins, node: Spectrum) -> tuple[Array, Array]:
    """Return a = ∂ log t/∂z without the mean iwω."""
    over = coin.w / (1 - 2 * coin.w * node.versine)
    return -over * coin.r * node.versine, over * node.sin


def _shift(coin: Coins, spectrum: Spectrum) -> Array:
    """Return (π − p)/w."""

    def shift(item: Spectrum) -> Array:
        above, below = shift_of(coin, item)
        return -above / below

    return accumulated(coin.w, shift, spectrum)


def shift_of(coin: Coins, node: Spectrum) -> tuple[Array, Array]:
    """Return what one node takes from (π − p)/w, as a quotient."""
    above = coin.r * (node.versine * node.real) + node.sin * node.imag
    return above, 1 - 2 * coin.w * node.versine


def _spectrum(z: Array, coin: Coins, k: Array) -> Spectrum:
    xp = namespace(z)
    node, size, angle = _product(z, coin, k)
    real = node.weight * size * xp.cos(angle)
    imag = node.weight * size * xp.sin(angle)
    count = xp.sum(real, axis=0)
    return Spectrum(node.sin, node.versine, real / count, imag / count)


def _product(z: Array, coin: Coins, k: Array) -> tuple[Node, Array, Array]:
    """Return |Π t| and the phase of Π t·e^{−iωk} at each node."""
    xp = namespace(z)
    surplus = cast(xp.sum(z > 0, axis=-1), z.dtype) - k
    excess = surplus[..., None] + _row_sum(coin.sign * coin.tail)  # Σp − k
    node = _grid(z, stop_gradient(coin.w))

    def logs(item: Node) -> tuple[Array, Array]:
        size, phase = logs_of(coin, item)
        return _row_sum(size) / 2, _row_sum(phase)

    size, phase = stacked(z, logs, node)
    return node, xp.exp(size), phase + node.angle * excess


def logs_of(coin: Coins, node: Node) -> tuple[Array, Array]:
    """Return log |t|² of each coin at a node, and its phase beyond the mean, φ."""
    xp = namespace(coin.w)
    size = xp.log1p(-2 * coin.w * node.versine)
    phase = xp.atan(coin.tail * node.sin / (1 - coin.tail * node.versine))
    return size, coin.sign * (phase - coin.tail * node.angle)


def _grid(z: Array, w: Array) -> Node:
    return nodes(z, _row_sum(w), z.shape[-1])


def nodes(z: Array, variance: Array, n: int) -> Node:
    """Return the nodes that the standard deviation √V of N requires, without negligible ones.

    `variance` is V per row, (…, 1), and n how many coins a row has.

    L nodes mistake N = k ± L for k: L²/2V ≥ 36 (18 in float32) puts that below rounding, and so
    many that N cannot reach k ± L are always enough. A node's |Π t| is at most e^{−V(1 − cos ω)}.
    L is odd: at ω = π a coin with p = ½ has t = 0.
    """
    xp = namespace(z)
    double = dtype_name(z) == "float64"
    wide, least, negligible, most = (8.5, 14.0, 40.0, 27) if double else (6.0, 10.0, 17.0, 15)
    wanted = 2 * xp.ceil((wide * xp.sqrt(variance) + (least - 1)) / 2) + 1
    number, count = wanted, most
    # A recording, or a symbolic n of JAX's.
    for_any_n = is_jit_tracing() or (is_jax(z) and not isinstance(n, int))
    if not for_any_n:
        exact = n + 1 + n % 2
        number = xp.where(wanted > exact, full_like(z, (), float(exact)), wanted)
        count = min(most, exact // 2 + 1)
    h = arange(z, count).reshape((count,) + (1,) * z.ndim)
    angle = 2 * math.pi * h / number
    versine = 2 * xp.sin(angle / 2) ** 2
    counts = (2 * h < number) & (variance * versine <= negligible)
    weight = xp.where(h == 0, full_like(z, (), 1.0), 2.0) / number
    # Beyond, at π, D may be 0.
    angle = xp.where(counts, angle, 0.0)
    zero = xp.zeros_like(weight)
    return Node(
        angle,
        xp.sin(angle),
        xp.where(counts, versine, 0.0),
        xp.where(counts, weight, zero),
    )
