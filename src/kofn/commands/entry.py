"""The start of the command `kofn`, which also runs where a package that it needs is missing."""

from __future__ import annotations

import sys

from kofn.commands.needed import missing


def main() -> None:
    """Run the `kofn` command; the entry point of the package."""
    found = missing()
    if found is not None:
        # A command that cannot run says why in one line; a traceback would hide it.
        print(f"kofn: {found[1]}", file=sys.stderr)
        raise SystemExit(2)
    from kofn.commands import app

    app.main()
