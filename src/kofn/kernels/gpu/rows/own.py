"""Links of a user's own: what kernels ask of one goes with its number.

(Tests: test_kernels_gpu_own.py.)
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Any

from kofn.kernels import contract
from kofn.kernels.gpu.rows import words
from kofn.links.scalar import FIRST, OWN, ScalarLink
from kofn.links.targets import flaw_of

NEEDED = (
    *("tail", "density", "quantile", "log_below", "log_above"),
    *("integral", "above", "logarithm", "hazard"),
)
"""The formulas that are compiled here."""


class Own(int):
    """The number of a link. It tells formulas from others: compiled code is kept on disk by it."""

    traits: contract.Traits
    edge: float
    last: float
    """The longest last step."""

    def __new__(cls, link: ScalarLink) -> Own:
        (kind,) = link.kinds
        made_of = (getattr(word, "cache_key", "") for word in words.OF_OWN.words.values())
        digest = sha256("".join((link.id, *made_of)).encode()).digest()
        own = super().__new__(cls, FIRST + int.from_bytes(digest[:6]))
        two_tails = link.end is None
        own.traits = contract.Traits(link.name, kind, two_tails, not two_tails, False)
        own.edge, own.last, own._made = float(link.edge), contract.LAST_STEPS[kind.order][0], {}
        return own

    def formula(self, name: str) -> Any:
        """Return the function of these arguments that kernels call."""
        if name not in self._made:
            self._made[name] = words.of_link(self.traits, name)
        return self._made[name]


@cache
def own_of(number: int) -> Own:
    return Own(OWN[number])


def kind_of_rows(link: Any) -> int | None:
    """Return the number of a link in kernels."""
    own = isinstance(link, ScalarLink)
    return own_of(link.number) if own else contract.kind_of_rows(link)


def why_not(number: int) -> str | None:
    """Return why a link cannot be compiled; None if it can."""
    for name in NEEDED:
        formula = OWN[number].kinds[0].formulas.get(name)
        flaw = None if formula is None else flaw_of(formula, words.OF_OWN.words)  # type: ignore[arg-type]
        if flaw is not None:
            return f"its formula {name} cannot be compiled, for {flaw}"
    return None
