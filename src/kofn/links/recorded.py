"""A link's formulas in a language of operators, such as ONNX's. (Tests: test_onnx.py.)"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from kofn.links.targets import Target, rebound
from kofn.links.vocabulary import KINK

Operator = Callable[[str], Callable[..., Any]]
Constant = Callable[[Any, float], Any]
"""(like what, which number) -> that number."""


class Entry:
    """A number that is written down if something asks for it: formulas have slopes, too."""

    def __init__(self, write: Callable[[], Any]) -> None:
        self._write = write

    @cached_property
    def value(self) -> Any:
        return self._write()


def target(operator: Operator, constant: Constant, **words: Any) -> tuple[Target, type[Entry]]:
    """Return what makes formulas of entries, and the class of these; more `words` may be given."""

    def made(name: str, turned: int = 1) -> Callable[..., Entry]:
        return lambda *given: Number(lambda: operator(name)(*values(given[::turned])))

    def values(given: tuple[Any, ...]) -> list[Any]:
        like = [each for each in given if isinstance(each, Entry)][-1].value  # no condition
        return [each.value if isinstance(each, Entry) else constant(like, each) for each in given]

    class Number(Entry):
        """With Python's operators."""

    for method, name in METHODS.items():
        setattr(Number, method, made(name))
    for method, name in REFLECTED.items():
        setattr(Number, method, made(name, -1))
    named: dict[str, Any] = {word: made(name) for word, name in WORDS.items()}
    named["like"] = lambda z, value: Number(lambda: constant(z.value, value))
    named["rounding"] = lambda z: KINK * 2.0**-23
    return Target(named | words, rebound), Number


METHODS = {
    **dict(__add__="Add", __sub__="Sub", __mul__="Mul", __truediv__="Div", __neg__="Neg"),
    **dict(__lt__="Less", __gt__="Greater", __le__="LessOrEqual", __ge__="GreaterOrEqual"),
    "__and__": "And",
}
REFLECTED = dict(__radd__="Add", __rsub__="Sub", __rmul__="Mul", __rtruediv__="Div")
WORDS = {
    **dict(exp="Exp", log="Log", sqrt="Sqrt", size="Abs", least="Min", greatest="Max"),
    **dict(over="Div", divided="Div", power="Pow", where="Where"),
}
