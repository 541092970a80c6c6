"""`kofn compare` and `kofn apply`. They check, delegate and print; PyTorch loads when they run."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kofn.commands import files
from kofn.commands.files import InputError
from kofn.commands.terminal import prepare_kernels, printed, progress_bar

if TYPE_CHECKING:
    import numpy as np

Source = Annotated[
    str,
    typer.Argument(
        metavar="SCORES", help="CSV or .npy file, one problem per row; - reads standard input."
    ),
]
K = Annotated[
    float, typer.Option("-k", help="How many to choose from each row; may be fractional.")
]
Temperature = Annotated[
    float | None, typer.Option(help="Temperature, in the units of the scores; 1 if absent.")
]
Support = Annotated[
    float | None,
    typer.Option(help="Set the temperature so that the weight spreads over this many entries."),
]
Gap = Annotated[
    float | None,
    typer.Option(
        help="Set the temperature so that weights differ from the hard top-k by this much in sum."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite earlier results.")]


def compare(
    scores: Source = "-",
    k: K = 1.0,
    temperature: Temperature = None,
    support: Support = None,
    gap: Gap = None,
    out: Annotated[Path, typer.Option(help="Directory to write the results to.")] = Path(
        "kofn-compare"
    ),
    force: Force = False,
) -> None:
    """Compare every map on your scores: weights and sparsity.

    Prints two tables and writes compare.json and compare.png.
    """
    from kofn.commands.compare import report, table
    from kofn.commands.compare.compare import compare as compared
    from kofn.commands.compare.maps import serving

    asked, value = _softness(temperature, support, gap)
    files.check_out(out, report.FILES, force)
    given = table.read(scores)
    rows = given.values.reshape(-1, given.values.shape[-1]).astype("float64")
    _check_k(k, rows.shape[-1], "to leave something to choose", strict=True)
    prepare_kernels()
    _check_softness(rows, k, asked, value)
    with progress_bar(2 * len(serving(k)) + 1) as tell:
        comparison = compared(rows, k, asked, value, tell)
        tell("picture")
        results = {
            "compare.json": report.as_json(comparison, given),
            "compare.png": report.as_png(comparison, given),
        }
    files.write(out, results, force)
    tables = report.weights_table(comparison, given), report.metrics_table(comparison)
    printed(*tables, files=[out / name for name in results])


def apply(
    scores: Source = "-",
    k: K = 1.0,
    map_: Annotated[
        str | None,
        typer.Option(
            "--map", help="Map to apply, by its name in `kofn compare`; logistic if absent."
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Alpha of --map entmax, at least 1; 1.5 if absent.")
    ] = None,
    temperature: Temperature = None,
    support: Support = None,
    gap: Gap = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="Give the hard top-k: weights of 0 and 1.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, .csv or .npy; without it the weights are printed."),
    ] = None,
    force: Force = False,
) -> None:
    """Turn scores into weights, row by row, in the format of the input.

    Prints the weights, .npy too where standard output is not a terminal.
    """
    from kofn.commands.compare import table

    asked, value = _softness(temperature, support, gap)
    if hard:
        _check_hard(map=map_, alpha=alpha, temperature=temperature, support=support, gap=gap)
    if out is not None:
        _check_file(out, force)
    given = table.read(scores)
    n = given.values.shape[-1]
    _check_k(k, n, "as many as there are scores at the most", strict=False)
    if hard:
        from kofn import hard_topk

        weights = hard_topk(given.values, k)
    else:
        prepare_kernels()
        weights = _applied(given.values, k, map_ or "logistic", alpha, asked, value)
    binary = given.binary if out is None or not out.suffix else out.suffix == ".npy"
    if not binary and weights.ndim > 2:
        raise InputError(f"weights of shape {weights.shape} are no table; --out FILE.npy")
    content = table.write_npy(weights) if binary else table.write_csv(weights, given)
    if out is not None:
        files.write(out.parent, {out.name: content}, force)
        return
    if binary and sys.stdout.isatty():
        raise InputError("weights as .npy are no text for a terminal; --out FILE or a pipe")
    typer.echo(content, nl=False)


def _applied(
    values: np.ndarray,
    k: float,
    name: str,
    alpha: float | None,
    asked: str,
    value: float,
) -> np.ndarray:
    from kofn.commands.compare.maps import named

    if alpha is not None and not 1 <= alpha < math.inf:
        raise InputError(f"--alpha must be a finite number ≥ 1; got {alpha:g}")
    chosen = named(name, k, alpha)
    rows = values.reshape(-1, values.shape[-1])
    _check_softness(rows, k, asked, value)
    given = asked == "temperature"
    t = value if given else chosen.temperature(rows.astype("float64"), k, asked, value)
    return chosen.weights(rows, k, t).reshape(values.shape)


def _check_hard(**soft: object) -> None:
    for name, value in soft.items():
        if value is not None:
            raise InputError(f"--hard needs no --{name}: its weights are 0 and 1; leave one out")


def _softness(
    temperature: float | None, support: float | None, gap: float | None
) -> tuple[str, float]:
    """Which of the three was given, and its value; temperature 1 if none was."""
    given = {"temperature": temperature, "support": support, "gap": gap}
    told = {name: value for name, value in given.items() if value is not None}
    if len(told) > 1:
        names = " and ".join(f"--{name}" for name in told)
        raise InputError(f"{names} each decide the temperature; give one of them")
    name, value = next(iter(told.items()), ("temperature", 1.0))
    if not 0 <= value < math.inf or (value == 0 and name != "gap"):
        allowed = "≥ 0" if name == "gap" else "> 0"
        raise InputError(f"--{name} must be a finite number {allowed}; got {value:g}")
    return name, value


def _check_softness(rows: np.ndarray, k: float, asked: str, value: float) -> None:
    """What kofn.temperature_for would refuse, in the words of the command."""
    from kofn import temperature_for

    if asked != "temperature":
        numbers: dict[str, float] = {asked: value}
        try:
            temperature_for(rows[:0], k, **numbers)  # type: ignore[arg-type]
        except ValueError as error:
            raise InputError(f"--{error}") from None


def _check_k(k: float, n: int, why: str, *, strict: bool) -> None:
    inside = 0 < k < n if strict else 0 <= k <= n
    if not inside:
        allowed = f"above 0 and below {n}, the number of scores," if strict else f"in [0, {n}],"
        raise InputError(f"-k must be {allowed} {why}; got {k:g}")


def _check_file(out: Path, force: bool) -> None:
    if os.path.isdir(out):  # which, unlike Path.is_dir, takes a name that is too long
        raise InputError(f"--out {out} is a directory; a file is needed, .csv or .npy")
    if out.suffix not in ("", ".csv", ".npy"):
        raise InputError(f"--out must end in .csv or .npy; got {out}")
    files.check_out(out.parent, [out.name], force)
