"""The distribution function of each link in mpmath; all else follows by `diff` and `quad`.

A new link has one line here. Nothing here knows kofn.
"""

from collections.abc import Callable

import mpmath
import numpy as np
from mpmath import exp, mpf

DIGITS = 60
EQUAL = mpf(10) ** -30
FAINT = mpf(10) ** -4900
"""NumPy warns of less, which 80-bit floats do not have; a tail may fall as e^−e^−z."""

Function = Callable[[mpmath.mpf], mpmath.mpf]


def entmax(alpha: float) -> Function:
    a = mpf(str(alpha))
    return lambda z: min(max(1 + (a - 1) * (z - 1 / a), mpf(0)), mpf(1)) ** (1 / (a - 1))


F: dict[str, Function] = {
    "logistic": lambda z: 1 / (1 + exp(-z)),
    "laplace": lambda z: exp(z) / 2 if z < 0 else 1 - exp(-z) / 2,
    "normal": lambda z: mpmath.erfc(-z / mpmath.sqrt(2)) / 2,
    "exponential": lambda z: exp(min(z - 1, mpf(0))),
    "linear": lambda z: min(max(z + mpf(1) / 2, mpf(0)), mpf(1)),
    "entmax": entmax(1.5),
}

BREAKS = {
    "laplace": [mpf(0)],
    "exponential": [mpf(1)],
    "linear": [mpf(-1) / 2, mpf(1) / 2],
    "entmax": [mpf(-4) / 3, mpf(2) / 3],
}
"""Where F is not smooth, for those that have such places."""


def pdf(name: str) -> Function:
    """F′, away from breaks."""
    return lambda z: mpmath.diff(F[name], z)


def integral(name: str) -> Function:
    """G(z) = ∫F up to z, of a distribution of mean zero."""

    def area(z: mpmath.mpf) -> mpmath.mpf:
        every = [mpf(-200), mpf(-50), mpf(-20), mpf(-5), *BREAKS.get(name, []), mpf(3)]
        return mpmath.quad(F[name], [-mpmath.inf, *sorted(a for a in every if a < z), z])

    return area


def omega(name: str) -> Function:
    """Ω(F(z)) = zF − G, by z."""
    return lambda z: z * F[name](z) - integral(name)(z)


def logs(name: str) -> tuple[Function, Function, Function]:
    """log F, log(1 − F) and log F′, with the digits that a tail takes: more change nothing."""

    def of(what: Function) -> Function:
        def log(z: mpmath.mpf) -> mpmath.mpf:
            before = mpf(0)
            for digits in (DIGITS, 2 * DIGITS, 8 * DIGITS, 64 * DIGITS):
                with mpmath.workdps(digits):
                    found = what(z)
                    if found > mpf(10) ** (40 - digits) or abs(found - before) < before * EQUAL:
                        return mpmath.log(found)
                    before = found
            return -mpmath.inf

        return log

    return of(F[name]), of(lambda z: 1 - F[name](z)), of(pdf(name))


def is_endless(name: str) -> bool:
    """Whether F is nowhere 0."""
    return F[name](mpf(-10)) > 0


def has_two_tails(name: str) -> bool:
    return is_endless(name) and F[name](mpf(10)) < 1


def at(function: Function, z: np.ndarray) -> np.ndarray:
    """A function of arrays, in 80-bit floats."""
    flat = np.asarray(z).ravel()
    with mpmath.workdps(DIGITS):
        exact = (function(mpf(str(a))) for a in flat)
        found = [np.longdouble(mpmath.nstr(a, 25) if abs(a) > FAINT else 0) for a in exact]
    return np.array(found, np.longdouble).reshape(np.shape(z))
