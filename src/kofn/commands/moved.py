"""`kofn train`, whose studies have left the package: it names the commands that took its place."""

from __future__ import annotations

import typer

from kofn.commands.files import InputError

STUDIES = ("vae", "router", "attention", "sae", "prune")
ANY = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings of a command that takes whatever the old one took, --help too."""


def train(context: typer.Context) -> None:
    """Name the new command of a study."""
    name = next((each for each in context.args if each in STUDIES), None)
    new = f"python -m studies.{name}" if name else "python -m studies, which lists them"
    raise InputError(
        "the studies are no longer a part of the command; run them in a checkout of kofn's "
        f"repository: {new}"
    )
