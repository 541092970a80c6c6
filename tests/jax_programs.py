"""XLA's programs map pieces of memory, of which a process of Linux may have 65,530."""

import jax


def let_go_of_many() -> None:
    """Let go of compiled programs if they map many pieces: the process would be ended."""
    if _pieces() > 20_000:
        jax.clear_caches()


def _pieces() -> int:
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0
