"""The names of Numba that are not public; no other file of kofn names one.

Numba compiles each function by itself, and has no public way to hand out its intermediate code with
the code of all it calls (translate.py); an intrinsic that puts a tuple together needs `cgutils`,
which Numba's own guide to extensions uses. Where a release lacks them or has others, native.py
warns once and the array code serves: `require_numba` translates a sample to see. Kernels that come
with kofn are translated already, so most users run none of this.
"""

from __future__ import annotations

from numba.core import cgutils as cgutils
from numba.core import codegen as codegen
from numba.core.compiler_lock import global_compiler_lock as global_compiler_lock
from numba.core.registry import cpu_target as cpu_target
