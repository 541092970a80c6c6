"""`kofn explore`: write the explorer's page, and open it in a browser."""

from __future__ import annotations

import secrets
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from kofn.commands import files
from kofn.commands.explore.page import page
from kofn.commands.files import InputError

NAME = "kofn-explorer.html"


def explore(
    out: Annotated[
        Path | None,
        typer.Option(help="File to write the page to, .html, instead of opening it in a browser."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier file.")] = False,
) -> None:
    """Open a page to move scores, k, temperature and link by hand.

    It shows the weights, the threshold, gradients, and the Python code for them; in a second view,
    the weights and prices of a matrix whose rows and columns have sums. The page is one file and
    needs no network; its path is printed.
    """
    if out is not None:
        _check(out, force)
        files.write(out.parent, {out.name: page().encode()}, force, option=out)
        typer.echo(out)
        return
    # A directory of its own: the browser may read the file when this process has long ended.
    path = Path(tempfile.gettempdir()) / f"kofn-{secrets.token_hex(4)}" / NAME
    files.write(path.parent, {NAME: page().encode()}, force)
    typer.echo(path)
    if not _opened(path):
        typer.echo("kofn: no browser was found; open this file in one", err=True)


def _check(out: Path, force: bool) -> None:
    if out.is_dir():
        raise InputError(f"--out {out} is a directory; give an .html file")
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"--out must end in .html; got {out}")
    files.check_out(out.parent, [out.name], force)


def _opened(path: Path) -> bool:
    """Open a file in a browser with a window; one inside of the terminal cannot show it."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    if type(browser) is webbrowser.GenericBrowser:  # lynx and its like
        return False
    return browser.open(path.as_uri())
