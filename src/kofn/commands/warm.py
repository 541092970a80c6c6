"""`kofn warm`, which has nothing to do any more."""

from __future__ import annotations

from typing import Annotated

import typer

NOTICE = (
    "kofn warm: nothing to do, kofn comes with compiled kernels; this command goes with the next "
    "minor release"
)


def warm(
    link: Annotated[list[str] | None, typer.Option(metavar="NAME", hidden=True)] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAME", hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a line.")] = False,
) -> None:
    """Do nothing: kernels come compiled. This command goes with the next minor release.

    Its options are accepted, and do nothing.
    """
    from kofn.commands.results import json_bytes

    typer.echo(NOTICE, err=True)
    if as_json:
        typer.echo(json_bytes({"functions": 0, "compiled": 0, "seconds": 0.0}), nl=False)
