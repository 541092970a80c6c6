"""`kofn compare`, and the options that it shares with `kofn apply`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kofn.commands import files
from kofn.commands.files import InputError
from kofn.commands.options import Force, Json, directory
from kofn.commands.terminal import prepare_kernels, progress_bar, told

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


def compare(
    scores: Source = "-",
    k: K = 1.0,
    temperature: Temperature = None,
    support: Support = None,
    gap: Gap = None,
    out: Annotated[Path | None, directory("kofn-compare")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compare soft_topk, softmax, sparsemax and others on your scores.

    Prints their weights, sparsity and slopes, and writes compare.json and compare.png.
    """
    from kofn.commands.compare import report, table
    from kofn.commands.compare.compare import compare as compared
    from kofn.commands.compare.maps import serving

    measure, value = softness(temperature, support, gap)
    out = files.chosen_out(out, "kofn-compare", report.FILES, force, as_json)
    given = table.read(scores)
    rows = given.values.reshape(-1, given.values.shape[-1]).astype("float64")
    check_k(k, rows.shape[-1], "so that there is a choice to make", strict=True)
    prepare_kernels()
    check_softness(rows, k, measure, value)
    with progress_bar(2 * len(serving(k)) + 1) as tell:
        comparison = compared(rows, k, measure, value, tell)
        tell("picture")
        content = report.as_json(comparison, given)
        written = []
        if out is not None:
            pictured = {"compare.json": content, "compare.png": report.as_png(comparison, given)}
            written = files.write(out, pictured, force)
    tables = report.weights_table(comparison, given), report.metrics_table(comparison)
    told(as_json, content, tables, written)


def softness(
    temperature: float | None, support: float | None, gap: float | None
) -> tuple[str, float]:
    """Return the name and value of the option that was given; temperature 1 if none was."""
    given = {"temperature": temperature, "support": support, "gap": gap}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) > 1:
        names = " and ".join(f"--{name}" for name in chosen)
        raise InputError(f"{names} each set the temperature; give only one of them")
    name, value = next(iter(chosen.items()), ("temperature", 1.0))
    if not 0 <= value < math.inf or (value == 0 and name != "gap"):
        allowed = "≥ 0" if name == "gap" else "> 0"
        raise InputError(f"--{name} must be a finite number {allowed}; got {value:g}")
    return name, value


def check_softness(rows: np.ndarray, k: float, measure: str, value: float) -> None:
    """Raise InputError for values that kofn.temperature_for refuses, naming the option."""
    from kofn import temperature_for

    if measure != "temperature":
        numbers: dict[str, float] = {measure: value}
        try:
            temperature_for(rows[:0], k, **numbers)  # type: ignore[arg-type]
        except ValueError as error:
            raise InputError(f"--{error}") from None


def check_k(k: float, n: int, why: str, *, strict: bool) -> None:
    inside = 0 < k < n if strict else 0 <= k <= n
    if not inside:
        allowed = f"above 0 and below {n}, the number of scores," if strict else f"in [0, {n}],"
        raise InputError(f"-k must be {allowed} {why}; got {k:g}")
