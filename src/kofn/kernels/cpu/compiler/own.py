"""Compiled code for a link of a user's own: the functions of all links, with its formulas in place.

A pass, or the work of a thread, is a graph of functions. Those that read links' formulas, or the
tables of traits, are made again with tables that have one more link; all others stay. So the code
of built-in links is as it was, and a link of one's own has the same.
(Tests: test_kernels_own.py.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from types import CellType, FunctionType, ModuleType
from typing import Any

from numba import jit, njit

from kofn.kernels import contract
from kofn.kernels.contract import NEXT, SHARED, WAYS, Ways, ways_of
from kofn.kernels.cpu.compiler import asked
from kofn.kernels.cpu.compiler.digests import is_outside, names_in
from kofn.kernels.cpu.compiler.private import Dispatcher
from kofn.kernels.cpu.passes import noise_loops
from kofn.kernels.cpu.rows import answer_formulas, formulas, layout
from kofn.kernels.cpu.runtime import words
from kofn.links.scalar import OWN
from kofn.links.targets import SYNTAX, flaw_of

_lock = threading.RLock()
_MAKERS = formulas, answer_formulas, noise_loops
"""The files that fill `words.MADE`."""


def why_not(number: int) -> str | None:
    """Return why a link cannot be compiled; None if it can."""
    for name, formula in OWN[number].kinds[0].formulas.items():
        target = words.OF_ROWS if name in _OF_A_ROW else words.OF_ENTRIES
        flaw = flaw_of(formula, {*target.words, *SYNTAX})  # type: ignore[arg-type]
        if flaw is not None:
            return f"its formula {name} cannot be compiled, for {flaw}"
    return None


_OF_A_ROW = "quantile", "log_below", "log_above", "cdf"


@cache
def remade(number: int) -> Remade:
    """Return what makes functions for a link, or those that all links share."""
    if number == SHARED:
        return Remade([*_tables(WAYS), *asked.INSTEAD])
    link = OWN[number]
    (kind,) = link.kinds
    two_tails = link.end is None
    traits = contract.Traits(link.name, kind, two_tails, not two_tails, False)
    instead = _tables([ways_of(number)])
    instead.append((contract.EDGES, (*contract.EDGES, float(link.edge))))
    for function, (target, name, takes, others, z, named) in words.MADE:
        if name == "quantile" and name not in kind.formulas:
            others, named = "bisected(q)", {"bisected": _bisection(kind.formulas["cdf"])}
        # Nobody else's formula is called there, and each takes time to compile.
        kinds, first = ((traits,), NEXT) if others or name in kind.formulas else (contract.KINDS, 0)
        made = words.of_kinds(kinds, target, name, takes, others, z, named, first)
        instead.append((function, made))
    if two_tails and not kind.octaves:  # tails may be heavy: nothing is cut off before it must be
        instead += [(words.far, words.farthest), (words.reach, words.farthest)]
        made = dict(instead)
        instead.append((formulas.tail, formulas.nothing_beyond(made[formulas.tail])))
    return Remade(instead)


def _tables(links: Sequence[Ways]) -> list[tuple[Any, Any]]:
    """Return pairs: a table of traits of links, and the same table with these links added.

    Their numbers begin with NEXT.
    """
    more: list[tuple[tuple[int, ...], Callable[[Ways], bool]]] = [
        (contract.TWO_TAILS, lambda link: link.two_tails),
        (contract.BOUNDED, lambda link: not link.two_tails),
        (contract.OCTAVES, lambda link: link.octaves),
        (layout.KNOWS_OMEGA, lambda link: link.knows_omega),
    ]
    values: list[tuple[tuple[float, ...], Callable[[Ways], float]]] = [
        (contract.LAST_SINGLE, lambda link: contract.LAST_STEPS[link.steps[0]][0]),
        (contract.LAST_DOUBLE, lambda link: contract.LAST_STEPS[link.steps[0]][1]),
        (contract.LAST_CHECKED, lambda link: link.steps[2]),
        (contract.STEPS, lambda link: link.steps[1]),
    ]
    numbers = [*enumerate(links, NEXT)]
    return [(table, (*table, *(i for i, link in numbers if has(link)))) for table, has in more] + [
        (table, (*table, *map(value, links))) for table, value in values
    ]


def _bisection(formula: Any) -> Any:
    """Return F⁻¹ by bisection on F."""
    cdf = words.OF_ROWS(formula)

    def bisected(q: Any) -> Any:
        low, high = -1.0, 1.0
        while cdf(low) > q and low > -1e300:
            low *= 4
        while cdf(high) < q and high < 1e300:
            high *= 4
        for _ in range(60):
            middle = low + (high - low) / 2
            if cdf(middle) < q:
                low = middle
            else:
                high = middle
        return low + (high - low) / 2

    return njit(error_model="numpy")(bisected)


class Remade:
    """Makes functions again that read certain values, with others in their place."""

    def __init__(self, instead: list[tuple[Any, Any]]) -> None:
        self._kept = instead  # as long as the table below knows them by their ids
        self._made = {id(old): new for old, new in instead}

    def __call__(self, value: Any) -> Any:
        """Return the function with these values, and itself if it reads none of them."""
        with _lock:
            return self._of(value)

    def _of(self, value: Any) -> Any:
        if id(value) not in self._made:
            self._kept.append((value, None))
            self._made[id(value)] = value  # what it says to itself
            self._made[id(value)] = self._anew(value)
        return self._made[id(value)]

    def _anew(self, value: Any) -> Any:
        if isinstance(value, Dispatcher):
            function = self._of(value.py_func)
            return value if function is value.py_func else jit(**value.targetoptions)(function)
        if isinstance(value, FunctionType) and not is_outside(value):
            return self._function(value)
        if isinstance(value, tuple) and type(value) is tuple:
            parts = tuple(map(self._of, value))
            return value if all(map(_same, parts, value)) else parts
        return value

    def _function(self, function: FunctionType) -> FunctionType:
        names = names_in(function.__code__)
        here = {name: function.__globals__[name] for name in names if name in function.__globals__}
        read = {name: self._named(value, names) for name, value in here.items()}
        cells = function.__closure__ or ()
        held = [self._of(cell.cell_contents) for cell in cells]
        as_they_are = all(map(_same, held, (cell.cell_contents for cell in cells)))
        if as_they_are and all(read[name] is here[name] for name in here):
            return function
        made = FunctionType(
            function.__code__,
            function.__globals__ | read,
            function.__name__,
            function.__defaults__,
            tuple(map(CellType, held)),
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    def _named(self, value: Any, names: set[str]) -> Any:
        """Return the same of a value that a function names; of a module, with what it names."""
        if not isinstance(value, ModuleType) or is_outside(value):
            return self._of(value)
        has = {name: each for name, each in vars(value).items() if name in names}
        read = {name: self._of(each) for name, each in has.items()}
        if all(read[name] is has[name] for name in has):
            return value
        module = ModuleType(value.__name__)
        vars(module).update(vars(value) | read)
        return module


def _same(one: Any, other: Any) -> bool:
    return one is other
