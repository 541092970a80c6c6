"""The complex zeros of 1 + z + z²/2! + … + zⁿ/n!, which `taylor_softmax` uses."""

from __future__ import annotations

import cmath
import math

Zeros = tuple[tuple[float, float], ...]

MOST = 200
"""The zeros of a higher order alone take a second, more than a map of a long row."""

ROUNDS = 100
"""Rounds of Aberth's method, which converges cubically: some 6 are needed, 26 for the highest
order.
"""

_found: dict[int, Zeros] = {}


def zeros(order: int) -> Zeros:
    """Return (a, b) of each pair of zeros a ± ib, rounded once; computed on first use.

    Neighbouring zeros are far apart in the list, so that products of a few consecutive factors
    have about the size of a power of the whole product.
    """
    if order not in _found:
        upper = _upper_half(order)
        count = len(upper)
        step = next(s for s in range(max(1, round(0.618 * count)), 2 * count + 1)
                    if math.gcd(s, count) == 1)  # fmt: skip
        _found[order] = tuple(upper[i * step % count] for i in range(count))
    return _found[order]


def _upper_half(order: int) -> list[tuple[float, float]]:
    """Find all zeros together by Aberth's method, in fixed-point integers of 2^−bits.

    Near a zero the terms of the polynomial cancel by up to e^(0.6·order), too much for floats.
    """
    bits = 128 + 3 * order
    one = 1 << bits
    places = [_fixed(w * order, bits) for w in _on_szegos_curve(order)]
    for _ in range(ROUNDS):
        longest = 0.0
        near = [complex(a / one, b / one) for a, b in places]
        for i, (a, b) in enumerate(places):
            newton = _quotient(a, b, order, bits)
            others = [z for j, z in enumerate(near) if j != i] + [z.conjugate() for z in near]
            step = newton / (1 - newton * sum(1 / (near[i] - z) for z in others))
            down, across = _fixed(step, bits)
            places[i] = a - down, b - across
            near[i] = complex(places[i][0] / one, places[i][1] / one)
            longest = max(longest, abs(step))
        if longest <= 1e-25:
            break
    return [(a / one, b / one) for a, b in places]


def _on_szegos_curve(order: int) -> list[complex]:
    """Return the limit of the zeros divided by the order: |w·e^(1 − w)| = 1 (Szegő 1924)."""
    points = []
    for j in range(order // 2):
        angle, w = 2 * math.pi * (j + 0.5) / order, 0j
        for _ in range(50):
            w = cmath.exp(1j * angle + w - 1)
        points.append(1.02 * w)  # the zeros are outside
    return points


def _quotient(a: int, b: int, order: int, bits: int) -> complex:
    """Return f/f′ at (a + ib)/2^bits; f′ is the polynomial of one order less."""
    one = 1 << bits
    term, below, f = (one, 0), (0, 0), (one, 0)
    for j in range(1, order + 1):
        re, im = term
        term = ((re * a - im * b) >> bits) // j, ((re * b + im * a) >> bits) // j
        below, f = f, (f[0] + term[0], f[1] + term[1])
    size = below[0] ** 2 + below[1] ** 2
    real = ((f[0] * below[0] + f[1] * below[1]) << bits) // size
    imaginary = ((f[1] * below[0] - f[0] * below[1]) << bits) // size
    return complex(real / one, imaginary / one)


def _fixed(z: complex, bits: int) -> tuple[int, int]:
    """Return the real and imaginary parts in units of 2^−bits, exactly."""

    def whole(x: float) -> int:
        top, bottom = x.as_integer_ratio()
        return (top << bits) // bottom

    return whole(z.real), whole(z.imag)
