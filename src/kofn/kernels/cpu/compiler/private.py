"""The names of Numba that are not public; no other file of kofn names one.

Numba compiles each function by itself, and has no public way to hand out its intermediate code with
the code of all it calls (translate.py); an intrinsic that puts a tuple together needs `cgutils`,
which Numba's own guide to extensions uses. Where a release lacks them or has others, native.py
warns once and the array code serves: `require_numba` translates a sample to see. Kernels that come
with kofn are translated already, so most users run none of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numba.core import cgutils as cgutils
from numba.core import codegen as codegen
from numba.core.compiler_lock import global_compiler_lock as global_compiler_lock
from numba.core.dispatcher import Dispatcher as Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.registry import cpu_target as cpu_target
from numba.core.typing.templates import Signature, builtin_registry

Intrinsic, TypedSignature = _Intrinsic, Signature


def overloads_of(function: Any) -> Iterator[tuple[Any, ...]]:
    """Yield what compiled code has in a function's place, and the options, unless Numba made it."""
    for known, kind in builtin_registry.globals:
        if known is function:
            for each in getattr(kind, "templates", ()):
                made = getattr(each, "_overload_func", None)
                if (
                    made is not None
                    and made.__globals__.get("__name__", "").partition(".")[0] != "numba"
                ):
                    yield made, sorted(each._jit_options.items()), each._strict
