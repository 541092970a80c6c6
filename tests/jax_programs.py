"""JAX's programs in tests: sooner lowered, and let go of before they are too many.

XLA's programs map pieces of memory, of which a process of Linux may have 65,530.
"""

import functools
import gc
import os

import jax
from jax._src.interpreters import mlir

# JAX makes an MLIR context for each program, a quarter of what a small one takes. `make test-all`,
# which says XLA_FLAGS= for this, compiles as users do.
if os.environ.get("XLA_FLAGS") and hasattr(mlir, "make_ir_context"):
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)


def let_go() -> None:
    """Let go of compiled programs, and of what refers to them in circles."""
    jax.clear_caches()
    getattr(mlir.make_ir_context, "cache_clear", lambda: None)()
    gc.collect()


def let_go_of_many() -> None:
    """Let go of compiled programs if they map many pieces: the process would be ended.

    It takes milliseconds to count them, so that is done when JAX has timed its work many times
    since: it does so some five times for a program.
    """
    if len(_timed) > 1000:
        _timed.clear()
        if _pieces() > 20_000:
            let_go()


_timed: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: _timed.append(event))


def _pieces() -> int:
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0
