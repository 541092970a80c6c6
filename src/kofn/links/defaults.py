"""Formulas that are made of `tail` where a link of a user's own lacks them.

`at` is the link's tail as a function of z. (Tests: test_links_scalar.py.)
"""

from __future__ import annotations

from inspect import isfunction
from typing import Any

from kofn.links.kind import Formula
from kofn.links.targets import arguments_of, rebound
from kofn.links.vocabulary import Real, exp, like, log, log_rest, size, where

tail: Any = None
"""The link's."""


def _by_two(z: Real) -> Real:
    e, up = exp(-size(z)), z > 0
    return tail(where(up, 1, e), where(up, e, 1))


def _by_three(z: Real) -> Real:
    e, up = exp(-size(z)), z > 0
    return tail(where(up, 1, e), where(up, e, 1), like(z, 1))


at = _by_two


def density(z: Real) -> Real:
    _, _, slope, _ = at(z)
    return slope


def log_below(z: Real) -> Real:
    t, _, slope, _ = at(z)
    return log(t), slope / t


log_above = log_below


def logarithm(z: Real) -> Real:
    t, upper, _, _ = at(z)
    rest = where(upper, t, 0)
    return where(upper, log_rest(rest), log(t))


def hazard(z: Real) -> Real:
    t, upper, slope, _ = at(z)
    cdf = where(upper, 1 - t, t)
    some = cdf > 0
    return where(some, slope / where(some, cdf, 1), 0), slope


def cdf(z: Real) -> Real:
    t, upper, _, _ = at(z)
    return where(upper, 1 - t, t)


_NAMES = dict(globals())
_MADE = "density", "log_below", "log_above", "logarithm", "hazard", "cdf"


def completed(known: dict[str, Formula]) -> dict[str, Formula]:
    """Return formulas, and those that `tail` makes of the others."""
    own, takes = known["tail"], len(arguments_of(known["tail"]))
    names = _NAMES | {"tail": own}
    by = {2: _by_two, 3: _by_three}.get(takes)
    names["at"] = own if by is None else rebound(by, names)  # type: ignore[arg-type]
    every = {name: _NAMES[name] for name in _MADE}
    missing = {name: f for name, f in every.items() if isfunction(f) and name not in known}
    return known | {name: rebound(f, names) for name, f in missing.items()}
