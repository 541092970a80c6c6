"""The processor that code is compiled for: this machine's own, or the level that KOFN_CPU names.

Code for another vector width adds up in another order. So results that are to be compared bit by
bit, and tests that are to hold on every machine, need one level.
"""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from kofn.kernels.cpu.runtime.library import chosen_level

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

LEVELS = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
"""The features of a processor of a level, by LLVM's names; the x86-64 ABI defines the levels."""


@cache
def target() -> tuple[str, str]:
    """Return the name and the features of the processor to compile for, as LLVM calls them.

    The environment variable is read at the first use of compiled code in a process.

    Raises:
        ValueError: KOFN_CPU names no level, or one that this processor does not reach.
    """
    level = chosen_level(served())
    return (level, "") if level else (llvm.get_host_cpu_name(), _features())


def served() -> list[str]:
    """Return the levels that this processor has."""
    features = {each[1:] for each in _features().split(",") if each.startswith("+")}
    return [level for level, needs in LEVELS.items() if features.issuperset(needs)]


def older() -> list[str]:
    """Return the levels below this processor's own, which code for it does not test."""
    return served()[:-1]


def _features() -> str:
    try:
        return str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM cannot tell them on this system
        return ""
