"""Options that several commands have, and checks of the values that options may have."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kofn.commands.files import InputError

if TYPE_CHECKING:
    import numpy as np

Force = Annotated[bool, typer.Option("--force", help="Overwrite earlier results.")]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the results as JSON instead of tables; write files to --out only."
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SCORES",
        help="CSV or .npy file with rows of scores; - reads standard input.",
    ),
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


def directory(usual: str) -> Any:
    """Return the option for the directory of the results."""
    return typer.Option(help=f"Directory to write the results to; {usual} by default.")


def one_of(name: str, value: str, allowed: Collection[str]) -> str:
    """Return the value of an option; InputError unless it is allowed."""
    if value not in allowed:
        raise InputError(f"--{name} must be one of {', '.join(allowed)}; got {value!r}")
    return value


def chosen(name: str, values: list[str] | None, allowed: dict[str, Any]) -> list[Any]:
    """Return the objects that an option names; all of them if the option is not given."""
    return [allowed[one_of(name, value, allowed)] for value in values or allowed]


def at_least(name: str, value: int, low: int) -> int:
    """Return the value of an option; InputError if it is too small."""
    if value < low:
        raise InputError(f"--{name} must be at least {low}; got {value}")
    return value


def valid_seed(name: str, seed: int) -> int:
    """Return the value of an option; InputError unless NumPy and scikit-learn accept the seed."""
    if at_least(name, seed, 0) >= 2**31:
        raise InputError(f"--{name} must be below 2147483648; got {seed}")
    return seed


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
