"""What compiled code knows of a link: its number, what a search needs, and its formulas."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isfunction
from typing import Any, NamedTuple

Formula = Callable[..., Any]


class Kind(NamedTuple):
    """An inner link (with z measured from its edge) as compiled code has it."""

    number: int
    """Its number in every backend: the next that is free. No other kind ever gets it."""
    formulas: dict[str, Formula]
    """By name, in the words of `vocabulary.py`; `built_in/logistic.py` says what each returns."""
    octaves: bool = False
    """`prepare` keeps 2^octaves of an entry, which a step of θ multiplies; else z itself."""
    order: int = 0
    """The order of Halley's step next to θ: 3 where F′ is continuous and |F″| is no more than F′,
    roughly; 2 where F′ has kinks; 0 where no step may be the last without another evaluation.
    """
    steps: float = 1.0
    """The number of last steps that lead beyond the end of a support, from close by."""
    checked: float = 0.0
    """In float32, the step that may be the last where Σp is held to k afterwards: its cube is lost
    where many scores share the sum, which is usual, or no score enters or leaves the support.
    """
    exponential_tails: bool = False
    """Whether both tails are one number times e^−|z| far out: on plateaus, a GPU then needs no
    logarithms of them.
    """

    lattice: tuple[float, float, float, int, int, int] | None = None
    """Of a noise whose log Φ and φ/Φ are smooth: the step of a lattice between whose points, eight
    at a time, they are interpolated to 1e-7 of themselves; how far below 0 there is a Φ; how far
    from the largest a score counts; and for how many equal scores every eighth, fourth and second
    point do as nodes: the error of the trapezoidal rule is at most 1e-8 then.
    """

    def called(self, name: str, *given: Any) -> Any:
        """Return what a formula gives for so many of these arguments as it takes."""
        formula = self.formulas[name]
        return formula(*given[: formula.__code__.co_argcount])


def formulas(module: str, special: str = "") -> dict[str, Formula]:
    """Return the public functions of a link's file up to here, by name.

    Those whose names begin with `special` take the place of the ones that do not.
    """
    every = vars(sys.modules[module]).items()
    own = {name: f for name, f in every if isfunction(f) and f.__module__ == module}
    public: dict[str, Formula] = {name: f for name, f in own.items() if name[0] != "_"}
    return public | {
        name.removeprefix(special): f for name, f in public.items() if name.startswith(special)
    }
