"""The `kofn` command and its subcommands."""

from __future__ import annotations

from typing import Annotated

from kofn.commands.needed import missing

_missing = missing()
if _missing is not None:
    raise ImportError(f"kofn.commands.app: {_missing[1]}", name=_missing[0])

import typer  # noqa: E402

import kofn  # noqa: E402
from kofn.commands import moved, starting  # noqa: E402
from kofn.commands.apply.command import apply  # noqa: E402
from kofn.commands.bench.command import bench  # noqa: E402
from kofn.commands.compare.command import compare  # noqa: E402
from kofn.commands.examples import EXAMPLES, FIRST  # noqa: E402
from kofn.commands.explore.command import explore  # noqa: E402
from kofn.commands.select.command import select  # noqa: E402
from kofn.commands.terminal import Guarded  # noqa: E402
from kofn.commands.warm import warm  # noqa: E402

app = typer.Typer(
    cls=Guarded,
    help="Choose k of n entries by their scores, with exact gradients.",
    epilog=FIRST,
    no_args_is_help=True,
    rich_markup_mode=None,  # one-line errors, no boxes
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the `kofn` command, whose packages are there."""
    starting.begin()
    app(prog_name="kofn")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kofn {kofn.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Choose k of n entries by their scores, with exact gradients."""


for _command in (select, compare, apply, explore, warm, bench):
    hidden = _command is warm  # it has nothing to do any more
    app.command(epilog=EXAMPLES[_command.__name__], hidden=hidden)(_command)
app.command(hidden=True, add_help_option=False, context_settings=moved.ANY)(moved.train)
