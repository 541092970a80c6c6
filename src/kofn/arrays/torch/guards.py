"""The checks of torch.compile before each call of a compiled function that concern kofn.

It would check every function and table of kofn that it has read, some two hundred of them. Next to
rows that fill the cache, most of these checks are cache misses: 0.1 ms in all, half of the time of
a softmax of 512 rows of 1,024. They are dropped, as the compiler does for Python's own modules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from kofn.arrays.torch.private import guards_being_made
from kofn.arrays.torch.state import constant_result

# In the names that the compiler reads from a module of kofn.
_OURS = "__import_" + __package__.removesuffix("arrays.torch").replace(".", "_dot_")
_STATE = ".forward_ad"  # a name that may change, although it is read from one


@constant_result
def forget() -> bool:
    """Drop the checks of kofn's own modules from the function that torch.compile is tracing.

    Where PyTorch does not show them, they stay.
    """
    guards = guards_being_made()
    with contextlib.suppress(AttributeError, TypeError):
        for guard in [guard for guard in guards if _is_of_kofn(guard)]:
            guards.inner.discard(guard)
            guards.source_to_guards.pop(guard.originating_source, None)
        if "add" not in vars(guards):  # what follows the operator is traced yet
            guards.add = _adding_others(guards.add)
    return True


def _adding_others(add: Callable[..., None]) -> Callable[..., None]:
    def add_others(guard: Any, **options: Any) -> None:
        if not _is_of_kofn(guard):
            add(guard, **options)

    return add_others


def _is_of_kofn(guard: Any) -> bool:
    """Return whether a check is of nothing but what modules of kofn contain."""
    compared = getattr(guard.create_fn, "keywords", {}).values()
    sources = [guard.originating_source, *(each for each in compared if hasattr(each, "name"))]
    return all(_OURS in _root(each) and _STATE not in each.name for each in sources)


def _root(source: Any) -> str:
    while hasattr(source, "base"):
        source = source.base
    return str(source.name)
