"""The start of the command `kofn`, which also runs where a package that it needs is missing."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = ("typer", "rich", "torch", "sklearn", "pandas", "matplotlib")


def advice() -> tuple[str, str] | None:
    """Return the first package that is missing and what to do about it, or None."""
    for name in NEEDED:
        # Found, not imported: PyTorch alone takes seconds, and `kofn --help` needs none of them.
        if importlib.util.find_spec(name) is None:
            return name, f'the command needs {name}; install it with: pip install "kofn[cli]"'
    return None


def main() -> None:
    """Run the `kofn` command; the entry point of the package."""
    missing = advice()
    if missing is not None:
        # A command that cannot run says why in one line; a traceback would hide it.
        print(f"kofn: {missing[1]}", file=sys.stderr)
        raise SystemExit(2)
    from kofn.commands import app

    app.main()
