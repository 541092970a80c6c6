"""`kofn compare` and `kofn apply`: they check options, call the library and print."""

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
        metavar="SCORES",
        help="CSV or .npy file with rows of scores; - reads standard input.",
    ),
]
K = Annotated[
    float, typer.Option("-k", help="Number of entries to choose from each row; may be fractional.")
]
Temperature = Annotated[
    float | None, typer.Option(help="Temperature, in the units of the scores; 1 by default.")
]
Support = Annotated[
    float | None,
    typer.Option(
        help="Find the temperature that spreads the weights over this many entries on average."
    ),
]
Gap = Annotated[
    float | None,
    typer.Option(
        help="Find the temperature at which the absolute differences between the weights and the "
        "hard top-k sum to this number on average."
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
    """Compare soft_topk, softmax, sparsemax and others on your scores.

    Prints their weights, sparsity and slopes, and writes compare.json and compare.png.
    """
    from kofn.commands.compare import report, table
    from kofn.commands.compare.compare import compare as compared
    from kofn.commands.compare.maps import serving

    asked, value = _softness(temperature, support, gap)
    files.check_out(out, report.FILES, force)
    given = table.read(scores)
    rows = given.values.reshape(-1, given.values.shape[-1]).astype("float64")
    _check_k(k, rows.shape[-1], "so that there is a choice to make", strict=True)
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
            "--map",
            help="Function to apply: a link of soft_topk (logistic, laplace, normal, exponential, "
            "linear, entmax), softmax, sparsemax, taylor_softmax, sparse_softmax, "
            "perturbed_argmax or KSubset; logistic by default.",
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Alpha of --map entmax, at least 1; 1.5 by default.")
    ] = None,
    temperature: Temperature = None,
    support: Support = None,
    gap: Gap = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="Return the hard top-k: weights of 0 and 1.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Output file, .csv or .npy; without it, the weights are printed."),
    ] = None,
    force: Force = False,
) -> None:
    """Turn each row of scores into weights that sum to k.

    Prints the weights in the format of the input. An .npy input gives .npy output, which needs
    --out or a pipe.
    """
    from kofn.commands.compare import table

    asked, value = _softness(temperature, support, gap)
    if hard:
        _check_hard(map=map_, alpha=alpha, temperature=temperature, support=support, gap=gap)
    if out is not None:
        _check_file(out, force)
    given = table.read(scores)
    n = given.values.shape[-1]
    _check_k(k, n, "at most the number of scores per row", strict=False)
    if hard:
        from kofn import hard_topk

        weights = hard_topk(given.values, k)
    else:
        prepare_kernels()
        weights = _applied(given.values, k, map_ or "logistic", alpha, asked, value)
    binary = given.binary if out is None or not out.suffix else out.suffix == ".npy"
    if not binary and weights.ndim > 2:
        raise InputError(
            f"weights of shape {weights.shape} do not fit in a table; use --out FILE.npy"
        )
    content = table.write_npy(weights) if binary else table.write_csv(weights, given)
    if out is not None:
        files.write(out.parent, {out.name: content}, force)
        return
    if binary and sys.stdout.isatty():
        raise InputError(".npy output cannot be shown on a terminal; use --out FILE or a pipe")
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
            raise InputError(
                f"--hard gives weights of 0 and 1; it cannot be combined with --{name}"
            )


def _softness(
    temperature: float | None, support: float | None, gap: float | None
) -> tuple[str, float]:
    """Return the name and value of the option that was given; temperature 1 if none was."""
    given = {"temperature": temperature, "support": support, "gap": gap}
    told = {name: value for name, value in given.items() if value is not None}
    if len(told) > 1:
        names = " and ".join(f"--{name}" for name in told)
        raise InputError(f"{names} each set the temperature; give only one of them")
    name, value = next(iter(told.items()), ("temperature", 1.0))
    if not 0 <= value < math.inf or (value == 0 and name != "gap"):
        allowed = "≥ 0" if name == "gap" else "> 0"
        raise InputError(f"--{name} must be a finite number {allowed}; got {value:g}")
    return name, value


def _check_softness(rows: np.ndarray, k: float, asked: str, value: float) -> None:
    """Raise InputError for values that kofn.temperature_for refuses, naming the option."""
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
    if os.path.isdir(out):  # unlike Path.is_dir, it accepts a name that is too long
        raise InputError(f"--out {out} is a directory; give a .csv or .npy file")
    if out.suffix not in ("", ".csv", ".npy"):
        raise InputError(f"--out must end in .csv or .npy; got {out}")
    files.check_out(out.parent, [out.name], force)
