"""The packages that the command needs."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = ("typer", "rich", "sklearn", "pandas", "matplotlib")


def missing() -> tuple[str, str] | None:
    """Return the first package that is missing and what to do about it, or None."""
    for name in NEEDED:
        # Found, not imported: some take seconds, and `kofn --help` needs none of them.
        if importlib.util.find_spec(name) is None:
            return name, f'the command needs {name}; install it with: pip install "kofn[cli]"'
    return None


def end_if_missing() -> None:
    """End this process with one line where a package is missing: a traceback would hide it."""
    package = missing()
    if package is not None:
        print(f"kofn: {package[1]}", file=sys.stderr)
        raise SystemExit(2)


def require_torch(command: str) -> None:
    """Raise an error where PyTorch is missing, which not all subcommands need.

    Raises:
        InputError: it is missing.
    """
    from kofn.commands.files import InputError

    if importlib.util.find_spec("torch") is None:
        raise InputError(
            f'kofn {command} needs PyTorch; install it with: pip install "kofn[cli,torch]"'
        )
