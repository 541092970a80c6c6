"""`kofn warm`: compile kernels before anyone waits for them."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kofn.commands.files import InputError
from kofn.commands.options import chosen
from kofn.commands.terminal import progress_bar

DTYPES = {"float32": 4, "float64": 8}


def warm(
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Link: logistic, laplace, normal, exponential (softmax), linear (sparsemax) or "
            "entmax. Repeat the option for several; all by default.",
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="float32 or float64; both by default."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was done as JSON instead of a line.")
    ] = False,
) -> None:
    """Compile the CPU kernels, so that no later call has to.

    The compiled code goes to KOFN_CACHE_DIR, or else to NUMBA_CACHE_DIR, or else to the folder of
    your system for such files. Functions that are there already are left alone. For container
    images and continuous integration: run it with the same KOFN_CACHE_DIR as later processes, on
    the same kind of processor.
    """
    from kofn.commands.results import json_bytes

    try:
        from kofn.kernels import ahead
    except ImportError as error:
        raise InputError(f"there are no CPU kernels to compile: {error}") from None
    links = chosen("link", link, {name: name for name in ahead.LINKS})
    functions = ahead.functions(links, chosen("dtype", dtype, DTYPES))
    began, new = time.monotonic(), 0
    with progress_bar(len(functions)) as tell:
        for each in functions:
            tell(each.name)
            new += ahead.compile_quietly(each)
    folder = ahead.folder()
    if not ahead.are_kept(functions):
        raise InputError(f"cannot write to {folder}; set KOFN_CACHE_DIR to another folder")
    seconds = time.monotonic() - began
    if as_json:
        done = {"folder": str(folder), "functions": len(functions), "compiled": new}
        typer.echo(json_bytes({**done, "seconds": round(seconds, 1)}), nl=False)
        return
    count = f"{len(functions)} functions in {folder}"
    typer.echo(f"{count}, {new} of them compiled now, {seconds:.0f} s")
