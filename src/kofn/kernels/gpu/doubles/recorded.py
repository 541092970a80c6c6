"""Array code about a number per matrix, and per column, as functions of Triton's.

The code runs once with numbers that write down what is done with them. (Tests:
tests/kernels/gpu/interpreted/prices.py.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np
import triton
import triton.language as tl

from kofn.links.targets import written

Rule = Callable[..., tuple[Any, Any]]
"""(namespace, numbers of matrices that are kept, what was seen of them, numbers of columns) -> the
numbers of matrices and of columns that follow, all in NamedTuples."""


class Line:
    """A value of a matrix, or of each of its columns, and what it is computed by."""

    dtype = np.float64

    def __init__(self, text: str, given: tuple[Any, ...] = (), ndim: int = 0) -> None:
        self.text, self.given = text, given
        self.ndim: int = max([ndim, *(each.ndim for each in given if isinstance(each, Line))])

    def __getitem__(self, _: Any) -> Line:
        """A matrix's number for its columns: array code writes [..., None]."""
        return Line("{}[:, None]", (self,), 1) if self.ndim == 0 else self

    def __neg__(self) -> Line:
        return Line("-{}", (self,))

    def __invert__(self) -> Line:
        return Line("~{}", (self,))

    def __pow__(self, exponent: int) -> Line:
        return Line(" * ".join(["{0}"] * exponent), (self,))

    def __mod__(self, by: float) -> Line:
        return Line("{0} - {1} * tl.floor({0} / {1})", (self, by))


def _operator(text: str) -> Any:
    return lambda *given: Line(text, given)


for name, sign in dict(add="+", sub="-", mul="*", truediv="/", and_="&", or_="|").items():
    name = name.rstrip("_")
    setattr(Line, f"__{name}__", _operator(f"{{0}} {sign} {{1}}"))
    setattr(Line, f"__r{name}__", _operator(f"{{1}} {sign} {{0}}"))
for name, sign in dict(lt="<", le="<=", gt=">", ge=">=", eq="==").items():
    setattr(Line, f"__{name}__", _operator(f"{{0}} {sign} {{1}}"))
Line.__hash__ = object.__hash__  # type: ignore[method-assign]  # lost with ==


class Namespace:
    """The functions of arrays that the code may call. A NaN stays, as in arrays."""

    finfo = staticmethod(np.finfo)
    where = staticmethod(_operator("tl.where({0}, {1}, {2})"))
    abs = staticmethod(_operator("tl.abs({0})"))
    sqrt = staticmethod(_operator("tl.sqrt({0})"))
    isnan = staticmethod(_operator("{0} != {0}"))
    clip = staticmethod(_operator("tl.where({0} < {1}, {1}, tl.where({0} > {2}, {2}, {0}))"))
    maximum = staticmethod(_operator("tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})"))

    @staticmethod
    def zeros_like(like: Line) -> Line:
        return Line(_written(0.0), (), like.ndim)


class Rules(int):
    """The number of what was recorded, which tells it from others on a disk, with its functions."""

    _made: dict[str, Any]

    def formula(self, name: str) -> Any:
        """Return `decide` or `follow`, which kernels call."""
        return self._made[name]


@cache
def rules_of(rule: Rule, numbers: Any, seen: Any, columns: Any, flags: tuple[str, ...]) -> Rules:
    """Return the rule of these NamedTuples; the numbers named `flags` are True where not 0."""
    given = numbers(*(_given(i, name in flags) for i, name in enumerate(numbers._fields)))
    looked = seen(*(Line(name, ndim=0) for name in seen._fields))
    each = columns(*(Line(name, ndim=1) for name in columns._fields))
    after, answers = rule(Namespace, given, looked, each)
    made = _Text()
    stored = [
        f"    tl.store(to + {i} * count, {made.name(one)}"
        f"{'.to(tl.float64)' * (name in flags)}, mask=here)"
        for i, (name, one) in enumerate(zip(numbers._fields, after, strict=True))
    ]
    found = ", ".join(made.name(one, 1) for one in answers)
    taken = made.taken()
    decide = [
        f"def decide(at, to, count, here, {', '.join(seen._fields)}):",
        *made.lines[0],
        *stored,
        f"    return {', '.join(taken)},",
    ]
    follow = [
        f"def follow(taken, {', '.join(columns._fields)}):",
        *(f"    {name} = taken[{i}]" for i, name in enumerate(taken)),
        *made.lines[1],
        f"    return {found},",
    ]
    texts = {"decide": "\n".join(decide) + "\n", "follow": "\n".join(follow) + "\n"}
    digest = sha256("".join(texts.values()).encode()).digest()
    rules = Rules(int.from_bytes(digest[:6]))
    names = {"tl": tl, "__name__": __name__}
    rules._made = {
        name: triton.jit(written(text, name, dict(names))) for name, text in texts.items()
    }
    return rules


def _written(value: float) -> str:
    """Return a number in Triton's language, where one as it stands may have float32's digits."""
    text = f'float("{value}")' if math.isinf(value) else repr(value)
    return f"tl.full((), {text}, tl.float64)"


def _given(place: int, is_flag: bool) -> Line:
    loaded = f"tl.load(at + {place} * count, mask=here, other=0.0)"
    return Line(f"{loaded} != 0.0" if is_flag else loaded, ndim=0)


class _Text:
    """Lines of Triton's language, each value once: those of matrices, and those of columns."""

    def __init__(self) -> None:
        self.lines: tuple[list[str], list[str]] = [], []
        self._names: dict[Any, str] = {}
        self._first: set[str] = set()  # the names of values of matrices
        self._second: dict[str, None] = {}  # of these, what columns take

    def name(self, value: Any, ndim: int = 0) -> str:
        """Return the name of a value, written down before; of a column where `ndim` is 1."""
        if not isinstance(value, Line):
            return self._line(_written(float(value)), ndim, [])
        if value not in self._names:
            names = [self.name(each, value.ndim) for each in value.given]
            text = value.text.format(*names)
            if value.text.isidentifier():
                self._names[value] = text  # an argument
            else:
                self._names[value] = self._line(text, value.ndim, names)
        return self._names[value]

    def taken(self) -> list[str]:
        """Return the names of values of matrices that columns take."""
        return list(self._second)

    def _line(self, text: str, ndim: int, names: list[str]) -> str:
        if ndim == 1:
            self._second |= dict.fromkeys(each for each in names if each in self._first)
        key = text, ndim
        if key not in self._names:
            name = self._names[key] = f"{'nc'[ndim]}{len(self._names)}"
            self.lines[ndim].append(f"    {name} = {text}")
            if ndim == 0:
                self._first.add(name)
        return self._names[key]
