"""The table of built-in links, and their lookup by name."""

from __future__ import annotations

from kofn.arrays.checks import check_number
from kofn.arrays.kinds import Array, framework
from kofn.links.bounded import NEAR_1, Bounded, Power, Ramp
from kofn.links.capped import _Exponential
from kofn.links.link import BuiltIn, Link
from kofn.links.symmetric import _Laplace, _Logistic, _Normal

__all__ = ["entmax", "exponential", "laplace", "linear", "logistic", "normal"]


logistic = _Logistic("logistic", infinite_tails=True, smooth=True)
laplace = _Laplace("laplace", infinite_tails=True, smooth=True)
normal = _Normal("normal", infinite_tails=True, smooth=True)
exponential = _Exponential("exponential", infinite_tails=False)
linear = Bounded("linear", Ramp("inner linear"))
_entmax = Bounded("entmax", Power("inner entmax", 1.5))

TABLE = {link.name: link for link in (logistic, laplace, normal, exponential, linear, _entmax)}
"""The links that have a name; "entmax" means entmax(1.5)."""


def entmax(alpha: float | Array = 1.5) -> Link:
    """Return the link whose map for k = 1 is α-entmax; α = 1 is `exponential`, α = 2 `linear`.

    Args:
        alpha: a number ≥ 1, or an array that broadcasts to the batch shape of the scores (one α
            per row); it may carry a gradient.

    Raises:
        ValueError: a number below 1, infinite or NaN.

    Source: Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (2019).

    Example:
        >>> import numpy as np
        >>> from kofn import links, soft_topk
        >>> soft_topk(np.array([1.0, 0.5, 0.2, -1.0]), 2, link=links.entmax(1.3)).round(3)
        array([0.987, 0.573, 0.394, 0.046])
    """
    if framework(alpha) is None:
        alpha = check_number("alpha", alpha, low=1.0, allowed="a finite number ≥ 1")
        # torch.compile may have a symbol for a float, but α decides which code is called. To
        # write it down, the compiler takes the number and checks it in later calls.
        alpha = float.fromhex(alpha.hex())
    return _entmax.with_alpha(alpha)


OTHERS = {
    **dict.fromkeys(("sigmoid", "expit"), "logistic"),
    **dict.fromkeys(("gaussian", "probit", "erf"), "normal"),
    **dict.fromkeys(("sparsemax", "relu", "hardsigmoid"), "linear"),
    "softmax": "exponential",
    "entmax15": "entmax",
}
"""What others call the links, or the maps that they are at k = 1."""


def resolve(link: str | Link) -> Link:
    """Return the link given by name or as an object."""
    if isinstance(link, Link):
        return link
    if isinstance(link, str) and link in TABLE:
        return TABLE[link]
    names = ", ".join(repr(name) for name in TABLE)
    error = ValueError if isinstance(link, str) else TypeError
    name = link if isinstance(link, str) else getattr(link, "__name__", "")
    own = name if name in TABLE else OTHERS.get(name.lower())
    hint = (
        ""
        if own is None
        else f"; you may mean {own!r}" + " or links.entmax(alpha)" * (own == "entmax")
    )
    raise error(f"link must be a kofn.Link or one of {names}; got {link!r}{hint}")


def kinks_of(link: Link) -> tuple[tuple[float, float], ...] | None:
    """Return (z, F(z)) at the kinks and jumps of a built-in link's density, its ends included.

    z is the inner link's, and α is a number. The result is None for a user's link.
    """
    inner = link.inner
    if not isinstance(inner, BuiltIn):
        return None
    if inner is laplace:
        return ((0.0, 0.5),)
    if inner is exponential:
        return ((1.0, 1.0),)
    if isinstance(inner, Ramp):
        return ((0.0, 0.0), (1.0, 1.0))
    if isinstance(
        inner, Power
    ):  # in Python, because compilers that trace this do not support NumPy
        upper = 1 / inner.alpha if inner.alpha < NEAR_1 else 1 / (inner.alpha - 1)
        lower = ((upper - 1 / (inner.alpha - 1), 0.0),) if inner.alpha > 1 else ()
        return (*lower, (upper, 1.0))
    return ()
