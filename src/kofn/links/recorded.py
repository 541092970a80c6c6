"""A link's formulas in a language of operators, such as ONNX's. (Tests: test_onnx.py.)"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cached_property
from typing import Any

from kofn.links.kind import Formula, Kind
from kofn.links.targets import Target, flaw_of, rebound
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

    def writes(name: str, turned: int = 1) -> Callable[..., Entry]:
        return lambda *given: Number(lambda: operator(name)(*values(given[::turned])))

    def values(given: tuple[Any, ...]) -> list[Any]:
        like = [each for each in given if isinstance(each, Entry)][-1].value  # no condition
        return [each.value if isinstance(each, Entry) else constant(like, each) for each in given]

    class Number(Entry):
        """With Python's operators."""

    for method, name in METHODS.items():
        setattr(Number, method, writes(name))
    for method, name in REFLECTED.items():
        setattr(Number, method, writes(name, -1))
    named: dict[str, Any] = {word: writes(name) for word, name in WORDS.items()}
    named["like"] = lambda z, value: Number(lambda: constant(z.value, value))
    named["rounding"] = lambda z: KINK * 2.0**-23
    made: dict[str, Any] = {
        "exp_in_reach": named["exp"],
        "log_chance": named["log"],
        "log_rest": lambda s: named["log"](1 - s),
        "log1p": lambda z: named["log"](1 + z),
        "expm1": lambda u: named["exp"](u) - 1,
        "expm2": lambda u: named["exp"](u) - 1 - u,
        **dict.fromkeys(("reach", "far", "farthest"), lambda z: FAR),
    }
    return Target(named | made | words, rebound), Number


def tail_in_words(kind: Kind, words: Container[str]) -> Formula:
    """Return the formula of a link's tail.

    Raises:
        ValueError: it has no translation into these words.
    """
    formula = kind.formulas.get("tail_of_size", kind.formulas["tail"])
    flaw = flaw_of(formula, words)  # type: ignore[arg-type]
    if flaw is not None:
        raise ValueError(f"the link has no ONNX translation, as for its formula tail, {flaw}")
    return formula


FAR = 1e30
"""In place of the infinities of array code, which a graph need not hold."""
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
