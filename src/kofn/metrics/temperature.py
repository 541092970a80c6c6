"""`kofn.temperature_for`: the temperature at which a choice has a given softness."""

from __future__ import annotations

import math
from typing import Any, Never

from kofn.arrays.autodiff import stop_gradient
from kofn.arrays.checks import check_flag, check_number, check_per_row, check_real, check_same_kind
from kofn.arrays.kinds import (
    Array,
    cast,
    compute_dtype,
    framework,
    is_jit_tracing,
    most_precise_dtype,
)
from kofn.arrays.names import unknown_keyword
from kofn.arrays.tracing import is_compiling
from kofn.arrays.typing import ArrayT, LinkName
from kofn.links import Link, table
from kofn.metrics.temperature_search import SOLVERS, mean_of, playing
from kofn.rows.compiled import evaluate
from kofn.rows.given import Given, given, without_deleted


def temperature_for(
    scores: ArrayT,
    k: float | Array,
    *,
    link: LinkName | Link = "logistic",
    support: float | Array | None = None,
    gap: float | Array | None = None,
    per_row: bool = False,
    dim: int = -1,
    mask: Array | None = None,
    **others: Never,
) -> ArrayT:
    """Return the largest T at which soft_topk(scores, k, temperature=T) is no softer than wanted.

    Give the softness as `support` or `gap`. `support` is metrics.effective_support, the effective
    number of entries: 1.5·k is soft, 1.05·k nearly hard. `gap` is metrics.hard_gap in "l1", twice
    the weight outside the k largest. Both increase with T for every link, so T is unique, and
    bisection finds it. For the softmax family, use k = 1 and link="exponential", "linear" or
    "entmax".

    Args:
        scores, k, link, dim, mask: as for `soft_topk`.
        support: in [k, n], or `gap`: from 0 to equal weights' 2k(1 − k/n) for a whole k.
            A number, or an array that broadcasts to the batch shape. gap=0 gives the largest T at
            which the choice is hard up to rounding: for a bounded link, its support then just fits
            between the k-th largest score and the next.
        per_row: return one T per row. Otherwise one T for all rows, at which the mean over the
            rows has the given value; rows without available entries do not count.

    Returns:
        T, in the units of the scores: the batch shape with `per_row`, else a single number as an
        array without dimensions; float32 for half-precision scores. No gradient. The bisection
        ends at a relative width of 1e-12 in float64 (1e-6 in JAX's default float32).

        T is > 0 and valid for soft_topk, except that a NaN or an invalid k in a row makes its T
        NaN, and also a common T. If no temperature gives the wanted value, T is at one end of its
        range. Ties at the boundary stay soft at any temperature: T is then 1e-18 times the smallest
        distance to the largest score. If the value is more than equal weights have, T is 1e6
        times the largest distance. A row on which the temperature has no effect (equal scores, all
        or none chosen, no available entries) gets its largest distance, or 1.

    Raises:
        TypeError, ValueError: as for `soft_topk`; both or none of `support` and `gap`; a number
            that no temperature could give.

    Source: van der Maaten & Hinton, "Visualizing Data using t-SNE" (2008), choose the width of
    each row in this way, by its perplexity.

    Example:
        >>> import numpy as np
        >>> from kofn import metrics, soft_topk, temperature_for
        >>> scores = np.array([[2.0, 1.0, 0.5, -1.0], [20.0, 10.0, 5.0, -10.0]])
        >>> temperature_for(scores, 2, support=2.5, per_row=True).round(3)
        array([0.249, 2.492])
        >>> temperature_for(scores, 2, gap=0.1, per_row=True).round(3)
        array([0.085, 0.849])
        >>> temperature_for(scores[0], 2, link="linear", gap=0.0).round(6)
        np.float64(0.5)
    """
    if others:
        raise unknown_keyword(temperature_for, others)
    if (support is None) == (gap is None):
        both = "both" if support is not None else "neither"
        raise TypeError(f"give either support= or gap=, the softness of the choice; got {both}")
    check_flag("per_row", per_row)
    link = table.resolve(link).map_alpha(stop_gradient)
    name, wanted = ("gap", gap) if support is None else ("support", support)
    checked = _checked(scores, k, link, dim, mask)
    with checked.form.quiet():
        target = _target(name, wanted, k, checked)
        target = target if per_row else mean_of(target, playing(checked))
        return cast(_solved(name, per_row, checked, target), compute_dtype(scores))


def _solved(name: str, per_row: bool, given: Given, target: Array) -> Any:
    if given.form.kind == "torch" and (is_compiling() or is_jit_tracing()):
        from kofn.metrics.torch_temperature import temperature as operator

        x, k, _, link = given[:4]
        number, alpha = link.static_and_array_alpha()
        return operator(x, k, target, alpha, link.id, number, name, per_row)
    return evaluate(SOLVERS[name, per_row], given._replace(form=None), target)


def _checked(scores: Array, k: Any, link: Link, dim: int, mask: Any) -> Given:
    """Return the arguments as rows, in the most precise dtype, without gradients."""
    given(scores, k, link, 1.0, dim, mask)
    precise = most_precise_dtype(scores)
    k = k if framework(k) is None else stop_gradient(k)
    scores = cast(without_deleted(stop_gradient(scores)), precise)
    return given(scores, k, link, 1.0, dim, mask)


def _target(name: str, wanted: Any, k: Any, given: Given) -> Array:
    """Return the wanted value per row; check a number against the range for a number k."""
    batch, n, xp = tuple(given.k.shape), given.n, given.form.xp
    if framework(wanted) is not None:
        check_same_kind(name, wanted, given.scores)
        check_real(name, wanted)
        wanted = check_per_row(name, wanted, batch, given.form.dim)
        return xp.broadcast_to(cast(stop_gradient(wanted), given.k.dtype), batch)
    known = framework(k) is None
    low, high = 0.0, math.inf
    if known and name == "support":
        low, high = float(k), n
    elif known and n:
        high = 2 * max(math.floor(k) * (1 - k / n), k * (1 - math.ceil(k) / n))

    def allowed() -> str:
        if not known or not n:
            return f"a finite number ≥ {'k' if name == 'support' else 0}"
        if name == "support":
            return f"a number in [k, n] (here [{k:g}, {n}])"
        return f"a number in [0, {high:g}] (at most the gap of equal weights)"

    number = check_number(name, wanted, low=low, allowed=allowed)
    if number > high * (1 + 1e-12):
        raise ValueError(f"{name} must be {allowed()}; got {wanted!r}")
    return xp.zeros_like(given.k) + number
