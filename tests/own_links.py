"""Links of a user's own, of scalar formulas, as users write them; some are built-in ones again."""

import numpy as np

from kofn import links
from kofn.links.built_in import entmax, logistic
from kofn.links.vocabulary import exp, expm1, greatest, least, log, over, size, sqrt, where


class Student(links.ScalarLink):
    """Student's t with two degrees of freedom: tails as heavy as 1/z²."""

    smooth = True

    @staticmethod
    def tail(z):
        square = 2 + z * z
        root = sqrt(square)
        slope = over(1, root * square)
        return over(1, root * (root + size(z))), z > 0, slope, -3 * z * over(slope, square)

    @staticmethod
    def integral(z):
        root = sqrt(2 + z * z)
        rest = over(1, root + size(z))
        return rest, z > 0, over(1, root)

    @staticmethod
    def omega(q):
        return -sqrt(2 * q * (1 - q))


log_below, square_integral, entmax_omega = (
    logistic.log_below,
    entmax.square_integral,
    entmax.omega,
)
EULER = 0.5772156649015329


class Gumbel(links.ScalarLink):
    """exp(−e^−y) of mean zero, by its tail alone, which falls differently on both sides."""

    smooth = True

    @staticmethod
    def tail(z):
        y = z + EULER
        e = exp(-size(y))
        w = where(y > 0, e, over(1, greatest(e, 1e-30)))
        p = exp(-w)
        near = -least(w, 0.7)
        return where(p > 0.5, -expm1(near), p), p > 0.5, w * p, w * p * (w - 1)


def weight_left(z):
    """−log F of Gumbel's distribution, up to e^80."""
    up = least(-z - EULER, 80)
    e = exp(-size(up))
    return where(up > 0, over(1, where(up > 0, e, 1)), e)


class GumbelFarOut(Gumbel):
    """The same with logarithms of its tails, of which the lower one falls as e^−e^−z."""

    @staticmethod
    def logarithm(z):
        return -weight_left(z)

    @staticmethod
    def hazard(z):
        w = weight_left(z)
        return w, w * exp(-w)

    @staticmethod
    def log_below(z):
        w = weight_left(z)
        return -w, w

    @staticmethod
    def log_above(z):
        w = least(weight_left(z), 0.7)
        few = w < 1e-3
        some = where(few, 1e-3, w)
        bent = where(few, -w / 2, log(-expm1(-some) / some))
        return bent - z - EULER, where(few, 1 - w / 2, some / expm1(some))


class Again(links.ScalarLink):
    """The logistic link again."""

    smooth = True
    tail = staticmethod(logistic.tail)
    density = staticmethod(logistic.density)
    integral = staticmethod(logistic.integral)
    quantile = staticmethod(logistic.quantile)
    log_below = staticmethod(logistic.log_below)
    omega = staticmethod(logistic.omega)
    logarithm = staticmethod(logistic.logarithm)
    hazard = staticmethod(logistic.hazard)

    @staticmethod
    def log_above(z):
        return log_below(-z)


class Square(links.ScalarLink):
    """The link of α-entmax at α = 1.5 again."""

    start, end, order = -4 / 3, 2.0, 2
    tail = staticmethod(entmax.square_tail)
    density = staticmethod(entmax.square_density)
    logarithm = staticmethod(entmax.square_logarithm)
    hazard = staticmethod(entmax.square_hazard)
    above = staticmethod(entmax.square_above)

    @staticmethod
    def integral(z):
        return square_integral(z, 0.5)

    @staticmethod
    def quantile(q):
        return q**0.5 / 0.5

    @staticmethod
    def omega(q):
        return entmax_omega(q, 0.5)


def heavy(name):
    """A new class of the name, whose tails fall as 1/z."""

    def tail(z):
        t = over(0.5, 1 + size(z))
        return t, z > 0, 2 * t * t, where(z > 0, -8 * t * t * t, 8 * t * t * t)

    return type(name, (links.ScalarLink,), {"tail": staticmethod(tail)})


OUTSIDE = np.arctan


class Cauchy(links.ScalarLink):
    """Of a formula outside of the vocabulary. It is said once, so one test of a process uses it."""

    @staticmethod
    def tail(z):
        slope = 1 / (np.pi * (1 + z * z))
        return OUTSIDE(1 / abs(z)) / np.pi, z > 0, slope, -2 * z * slope / (1 + z * z)
