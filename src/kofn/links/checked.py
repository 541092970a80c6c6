"""Whether the formulas of a user's own link say the same. (Tests: test_links_scalar.py.)"""

from __future__ import annotations

from typing import Any

import numpy as np

from kofn.links.kind import Kind
from kofn.links.two_tails import apart

STEP = 2.0**-17
FEW = 3
"""Points at which a slope may jump."""


def check(link: str, kind: Kind, end: float | None, start: float) -> None:
    """Raise an error that names the formula, where one contradicts `tail`.

    Raises:
        TypeError: a formula gives other than it has to.
        ValueError: a formula contradicts another one.
    """
    low, high = (-6.0, 6.0) if end is None else (-0.25 * end, 1.25 * end)
    z = np.linspace(low, high, 160) + 0.0137 * (high - low) / 160
    with np.errstate(all="ignore"):
        _check(link, kind, z, start, end)


def _check(link: str, kind: Kind, z: Any, start: float, end: float | None) -> None:
    formulas = kind.formulas

    def of(name: str, at: Any, count: int = 1) -> Any:
        formula = formulas[name]
        given = apart(at) if name == "tail" and kind.octaves else (at, 1 - at)
        given = (at, formulas["integral"](at)[0], start) if name == "above" else given
        try:
            got = formula(*given[: formula.__code__.co_argcount])
            got = [np.broadcast_to(each, at.shape) for each in (got if count > 1 else [got])]
        except Exception as error:
            message = f"the formula {name} of {link} fails for NumPy arrays: {error!r}"
            raise TypeError(message) from error
        if len(got) != count:
            raise TypeError(f"the formula {name} of {link} gives {len(got)} numbers, not {count}")
        return got if count > 1 else got[0]

    def same(name: str, what: str, at: Any, got: Any, right: Any, within: Any) -> None:
        wrong = ~(np.abs(got - right) <= within)
        if np.count_nonzero(wrong) > FEW:
            i = int(np.argmax(wrong))
            raise ValueError(
                f"the formula {name} of {link} is wrong: it gives {got[i]:.6g} for {what} at "
                f"{at[i]:.6g}, where the other formulas give {right[i]:.6g}"
            )

    def cdf(at: Any) -> Any:
        t, upper, *_ = of("tail", at, 4)
        return np.where(upper, 1 - t, t)

    def change(values: Any) -> Any:
        """The slope of a function, and by how much it may be off."""
        slope = (values(z + STEP) - values(z - STEP)) / (2 * STEP)
        return slope, 1e-5 * (1 + np.abs(slope))

    t, upper, slope, bend = of("tail", z, 4)
    p = cdf(z)
    same("tail", "the smaller of F and 1 − F", z, t, np.minimum(p, 1 - p), 1e-12)
    same("tail", "the order of F", z[1:], np.minimum(np.diff(p), 0), 0 * z[1:], 1e-12)
    if not (p[0] < 0.45 and p[-1] > 0.55):
        raise ValueError(f"the formula tail of {link} does not rise from 0 to 1")
    same("tail", "F′", z, slope, *change(cdf))
    same("tail", "F″", z, bend, *change(lambda at: of("tail", at, 4)[2]))
    same("density", "F′", z, of("density", z), slope, 1e-9 + 1e-6 * slope)
    inside = (p > 1e-12) & (1 - p > 1e-12)
    z, p, t, upper, slope = (each[inside] for each in (z, p, t, upper, slope))
    same("logarithm", "log F", z, of("logarithm", z), np.log(p), 1e-6)
    steep, again = of("hazard", z, 2)
    same("hazard", "F′/F", z, steep, slope / p, 1e-6 * (1 + slope / p))
    same("hazard", "F′", z, again, slope, 1e-9 + 1e-6 * slope)
    for name, there in (("log_below", ~upper), ("log_above", upper)) if end is None else ():
        log_tail, steep = of(name, z[there], 2)
        rate = (slope / t)[there]
        same(name, "the logarithm", z[there], log_tail, np.log(t[there]), 1e-6)
        same(name, "its slope", z[there], steep, rate, 1e-6 * (1 + rate))
    if "quantile" in formulas:
        same("quantile", "F⁻¹", p, of("quantile", p), z, 1e-3 * (1 + np.abs(z)))
    if "noise" in formulas:
        same("noise", "F′/F", z, of("noise", z, 3)[2], slope / p, 1e-6 * (1 + slope / p))
    if "integral" not in formulas:
        return
    rest, far, less = of("integral", z, 3)
    whole = rest + np.where(far, z + start, 0)

    def integral(at: Any) -> Any:
        part, up, _ = of("integral", at, 3)
        return part + np.where(up, at + start, 0)

    same("integral", "G′", z, change(integral)[0], p, 1e-5)
    same("integral", "G − zF", z, less, whole - (z + start) * p, 1e-6)
    if "omega" in formulas:
        same("omega", "Ω", p, of("omega", p), (z + start) * p - whole, 1e-6)
    if "above" in formulas:
        same("above", "G − z", z[upper], of("above", z[upper]), (whole - z - start)[upper], 1e-6)
