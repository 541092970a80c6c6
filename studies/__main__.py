"""`python -m studies`: the list of studies."""

import sys

import typer

from kofn.commands import starting
from kofn.commands.terminal import status_of
from studies.table import STUDIES


def show() -> None:
    """Print the list."""
    if sys.argv[1:] not in ([], ["--help"]):
        line = "studies: name the study with a dot, as in python -m studies.router"
        typer.echo(line, err=True)
        raise typer.Exit(2)
    typer.echo("Small models, trained by several methods and compared:\n")
    for study in STUDIES.values():
        typer.echo(f"  python -m studies.{study.name:<11}{study.help.splitlines()[0]}")
    typer.echo("\n--quick takes about a minute; --help lists the options of a study.")


if __name__ == "__main__":
    starting.begin()
    sys.exit(status_of(show))
