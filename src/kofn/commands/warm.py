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
        from kofn.kernels.contract import KINDS
        from kofn.kernels.cpu import every
        from kofn.kernels.cpu.runtime import native, store
    except ImportError as error:
        raise InputError(f"there are no CPU kernels to compile: {error}") from None
    numbers: dict[str, list[int]] = {}
    for number, kind in enumerate(KINDS):
        numbers.setdefault(kind.link, []).append(number)
    kinds = [number for each in chosen("link", link, numbers) for number in each]
    codes = every.functions(kinds, chosen("dtype", dtype, DTYPES))
    began, new = time.monotonic(), 0
    native.tell = None
    with progress_bar(len(codes)) as tell:
        for code in codes:
            tell(code.name)
            new += native.keep(code)
    if not all(map(native.is_kept, codes)):
        raise InputError(f"cannot write to {store.folder()}; set KOFN_CACHE_DIR to another folder")
    seconds = time.monotonic() - began
    if as_json:
        done = {"folder": str(store.folder()), "functions": len(codes), "compiled": new}
        typer.echo(json_bytes({**done, "seconds": round(seconds, 1)}), nl=False)
        return
    where = f"in {store.folder()}"
    typer.echo(f"{len(codes)} functions {where}, {new} of them compiled now, {seconds:.0f} s")
