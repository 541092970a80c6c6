"""The closest points of sets by root finding in float64, and how near an answer has to be."""

import numpy as np
from scipy.optimize import brentq


def oracle_box_section(x, lower, upper, w, c):
    """clip(x − θw, lower, upper), θ by root finding in float64."""

    def point(theta):
        return np.clip(x - theta * w, lower, upper)

    def excess(theta):
        return float(np.sum(w * point(theta)) - c)

    reach = 1.0
    while excess(-reach) < 0 or excess(reach) > 0:
        reach *= 2
    return point(brentq(excess, -reach, reach, xtol=1e-300, rtol=1e-15))


def oracle_simplex(x, scale, most=1e9):
    return oracle_box_section(x, 0.0, most, np.ones_like(x), scale)


def close(found, wanted, size=1.0, dtype="float64"):
    rounding = {"float64": 1e-13, "float32": 3e-6, "bfloat16": 2e-2, "float16": 2e-3}[dtype]
    assert np.allclose(np.asarray(found, np.float64), wanted, rtol=rounding, atol=rounding * size)
