"""The start of the command `kofn`, which also runs where a package that it needs is missing."""

from __future__ import annotations

from kofn.commands import starting
from kofn.commands.needed import end_if_missing


def main() -> None:
    """Run the `kofn` command; the entry point of the package."""
    starting.begin()
    end_if_missing()
    from kofn.commands import app

    app.main()
