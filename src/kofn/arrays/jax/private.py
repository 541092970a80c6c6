"""The names of JAX that are not public; no other file of kofn names one.

A primitive has its own rules for derivatives, vmap and lowering, and JAX's guide to primitives
takes them from here. The public ways do not do: jax.custom_jvp and custom_vjp exclude each other's
mode or nest no further, and jax.ffi.ffi_call is one call for all platforms, before it is known
whether a program is exported or sharded. There is nothing to do without them: functions of JAX
arrays then raise ImportError, and functions of other arrays do not notice.
"""

from __future__ import annotations

from jax.interpreters import ad as ad
from jax.interpreters import batching as batching
from jax.interpreters import mlir as mlir
