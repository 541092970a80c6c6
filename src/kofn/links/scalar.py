"""Links of a user's own that are made of scalar formulas, as built-in ones are.

(Tests: test_links_scalar.py.)
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar

import numpy as np

from kofn.arrays.tracing import is_compiling
from kofn.links.bounded import Shifted
from kofn.links.checked import check
from kofn.links.defaults import completed
from kofn.links.kind import Kind
from kofn.links.link import Link, by_id, register
from kofn.links.targets import arguments_of, text_of
from kofn.links.two_tails import OfFormulas, TwoTails

TAKES = {
    **dict.fromkeys(("density", "integral", "log_below", "log_above", "logarithm", "hazard"), "z"),
    **dict(tail="z a b per_b", quantile="q rest", omega="q", noise="z", above="z part edge"),
}
"""The formulas, and the arguments that each may take."""

FIRST = 100
"""The number of the first link that is made; built-in ones have smaller numbers."""

OWN: dict[int, ScalarLink] = {}
"""By number, in the order in which they were made."""

_lock = threading.RLock()


class ScalarLink(OfFormulas):
    """A link that a class derived from this one defines by formulas of one number.

    The formulas are static methods, in the words of `kofn.links.vocabulary`, comparisons and
    arithmetic. `tail` is needed; others are made of it, or serve accuracy and speed. NumPy,
    PyTorch and JAX call the formulas as they are; compiled code is made of them, as of the built-in
    links, by Numba, where it is installed, for NumPy arrays and CPU tensors, and by Triton for a
    GPU. Call the class without arguments to make the link: it is the same object each time.

    Formulas, of z = (x − θ)/T:
        tail(z): (the smaller of F and 1 − F; whether F > ½; F′; F″).
        density(z): F′; at a kink the slope below it.
        quantile(q): F⁻¹(q). Searches need three digits of it. Default: bisection.
        integral(z): (G = ∫F, less z where z is far up; whether it is; G − zF), of a distribution of
            mean zero. Without it the link has weights, but no smoothed sum and no losses.
        omega(q): Ω(q) = ∫₀^q F⁻¹ inside of (0, 1), for losses of soft targets.
        logarithm(z), hazard(z): log F; (F′/F, F′).
        log_below(z), log_above(z): (log F, F′/F) below the median, (log(1 − F), F′/(1 − F)) above
            it, where the tail itself may be too small for a float.

    Raises:
        TypeError: a formula has another name or other arguments, or `tail` is missing.
        ValueError: formulas contradict one another, such as a density that is not the slope of F.

    Example:
        >>> import numpy as np
        >>> from kofn import links, soft_topk
        >>> from kofn.links.vocabulary import over, size, sqrt
        >>> class Student(links.ScalarLink):
        ...     smooth = True
        ...
        ...     @staticmethod
        ...     def tail(z):
        ...         square = 2 + z * z
        ...         root = sqrt(square)
        ...         t, slope = over(1, root * (root + size(z))), over(1, root * square)
        ...         return t, z > 0, slope, -3 * z * over(slope, square)
        >>> soft_topk(np.array([3.0, 1.0, 0.0, -1.0]), 2, link=Student()).round(3)
        array([0.931, 0.637, 0.306, 0.126])
    """

    smooth = False
    """Whether F′ is continuous and |F″| no more than F′, roughly: then θ takes fewer steps."""
    kinked: ClassVar[bool] = False
    """Whether F′ has kinks all the same, as the Laplace distribution's."""
    end: ClassVar[float | None] = None
    """Where F reaches 1, for a support with two ends; its formulas count z from the lower end."""
    start: ClassVar[float] = 0.0
    """Where the lower end is if the mean is zero."""
    order: Any = None
    """The power of z as which F leaves 0 at the lower end, more than 1."""

    kinds: tuple[Kind, ...] = ()
    number: int
    """As compiled code knows it."""
    _made: ClassVar[Link | None] = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = {name: f for name, f in vars(cls).items() if isinstance(f, staticmethod)}
        known = dict(cls.kinds[0].formulas) if cls.kinds else {}
        for name, each in own.items():
            known[name] = _checked(cls, name, each.__func__)
            delattr(cls, name)  # the method for arrays has that name
        if "tail" not in known:
            raise TypeError(f"{cls.__qualname__} has no static method `tail`; see ScalarLink")
        if (cls.end is None) != (cls.order is None):
            raise TypeError(f"{cls.__qualname__} has one of `end` and `order`; give both or none")
        cls.kinds, cls._made = (_kind(cls, completed(known)),), None
        cls._infinite_tails = cls.end is None
        for name in _BY_LOGARITHMS if cls.end is None else ():
            setattr(cls, name, vars(TwoTails)[name])
        check(cls.__qualname__, cls.kinds[0], cls.end, cls.start)

    def __new__(cls) -> Any:
        if not cls.kinds:
            raise TypeError("derive a class from ScalarLink, with the static method `tail`")
        with _lock:
            if cls._made is None:
                cls._made = _registered(super().__new__(cls))
            return cls._made

    def __init__(self) -> None:
        """Do nothing: the link is made once."""

    @property
    def edge(self) -> float:
        return self.start

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return type(self), ()


_BY_LOGARITHMS = "log_pdf", "log_cdf", "log_sf", "cdf_slope", "sf_slope"


def _registered(link: ScalarLink) -> Link:
    """Give it an id and a number, which are the same for the same formulas."""
    of = type(link)
    if is_compiling():
        raise RuntimeError(
            f"{of.__qualname__}() was called for the first time inside a compiled function; call "
            "it once outside"
        )
    (kind,) = link.kinds
    link.name = f"your own, {of.__qualname__}"
    traits = kind[2:], of.end, of.start, of.order
    link.id = register(link, f"{link.name}, {text_of(kind.formulas, traits)}")
    same = (number for number, other in OWN.items() if other.id == link.id)
    link.number = next(same, FIRST + len(OWN))
    OWN[link.number] = link
    return Shifted(link.name, link) if of.start else link


def _checked(cls: type, name: str, formula: Any) -> FunctionType:
    if name not in TAKES:
        raise TypeError(f"{cls.__qualname__}.{name} is no formula; these are: {', '.join(TAKES)}")
    if not isinstance(formula, FunctionType) or not {*arguments_of(formula)} <= {
        *TAKES[name].split()
    }:
        raise TypeError(
            f"the formula {name} of {cls.__qualname__} must be a function of {TAKES[name]}; got "
            f"{formula!r}"
        )
    return formula


def _kind(cls: type[ScalarLink], formulas: dict[str, Any]) -> Kind:
    """Return what a search for θ needs to know of a class; built-in links say it in `kinds`."""
    if cls.end is not None:
        steps, checked = (3.0, 2.0**-4) if cls.order == 2 else (6.0, 0.0)
        return Kind(FIRST, formulas, steps=steps, checked=checked)
    order = (2 if cls.kinked else 3) if cls.smooth else 0
    checked = 2.0**-5 if order == 3 else 0.0
    in_octaves = "a" in arguments_of(formulas["tail"])
    return Kind(FIRST, formulas, in_octaves, order, 1.0, checked)


FAINT = 1e-9
"""Where a tail is no more, a link is 0 or 1 to a rounding of float32."""


def reach_of(link_id: str, least: float) -> float:
    """Return how many temperatures from θ the link of an id is 0 or 1, a power of 2: no less than
    that of the built-in links.
    """
    link = by_id(link_id, None)
    if not isinstance(link, ScalarLink):
        return least
    far = float(np.abs(link.quantile(np.array([FAINT, 1 - FAINT]))).max())
    return max(least, 2.0 ** math.ceil(math.log2(far)))
