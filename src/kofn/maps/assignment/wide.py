"""Rows of scores that lie further apart than kernels take, brought together.

A kernel gives up on rows that span 10⁶ temperatures, and the array code takes a hundred times as
long. In the search for prices they are common: temperatures are low, prices far apart. A score that
is `REACH` temperatures beyond the last one chosen, or below the first one that is not, has the
weight of one that is just there, 1 or 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kofn import links
from kofn.adapters import route
from kofn.arrays.kinds import Array
from kofn.arrays.typing import Namespace
from kofn.rows.given import given_again

REACH = 1e4
"""Temperatures; no link of the table has weights other than 0 and 1 so far from its threshold."""
WIDE = 1e5
"""Temperatures that rows may span as they are."""


class Near(NamedTuple):
    """Rows with the weights of y at temperature t."""

    y: Array  # (…, m, n)
    t: Array  # (…, 1)
    origin: Array  # (…, m); θ of these rows stands for origin + θ·unit, a threshold of y
    unit: Array  # (…, 1)


def near(xp: Namespace[Any], when: Any, y: Array, k: Array, t: Array, spread: Array) -> Near:
    """Return the rows of matrices, in temperatures where `spread` is wider than kernels take.

    `xp` and `when` are the namespace of the arrays and their `only_if`, or None: rows stay as they
    are. Links of the caller's own may have longer tails, and JAX has no kernel to leave.
    """
    t = t[..., None]
    plain = Near(y, t, xp.zeros_like(k), xp.ones_like(t))
    if when is None:
        return plain
    far = (spread > WIDE * t[..., 0])[..., None]

    def brought() -> Near:
        top, live = route.hard(given_again(y, k, t, links.logistic), k) > 0, y > -math.inf
        high = xp.min(xp.where(top, y, math.inf), axis=-1)
        low = xp.max(xp.where(top, -math.inf, y), axis=-1)
        high = xp.where(high < math.inf, high, low)
        low = xp.where(low > -math.inf, low, high)
        gap = xp.clip((high - low) / t, 0.0, 2 * REACH)[..., None]
        above = gap + xp.clip((y - high[..., None]) / t[..., None], 0.0, REACH)
        below = xp.clip((y - low[..., None]) / t[..., None], -REACH, 0.0)
        together = xp.where(live, xp.where(top, above, below), -math.inf)
        together = xp.where(far[..., None], together, y)
        one = xp.where(far, 1.0, t)
        return Near(together, one, xp.where(far, low, 0.0), xp.where(far, t, 1.0))

    return when(far, brought, plain)
