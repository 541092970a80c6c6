"""Options that several commands have, and checks of the values that options may have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import typer

from kofn.commands.files import InputError

Force = Annotated[bool, typer.Option("--force", help="Overwrite earlier results.")]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the results as JSON instead of tables; write files to --out only."
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
