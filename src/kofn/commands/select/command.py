"""`kofn select`: it checks options, compares the methods and selects columns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kofn.commands import files
from kofn.commands.files import InputError
from kofn.commands.needed import require_torch
from kofn.commands.options import Force, Json, at_least, directory, one_of, valid_seed
from kofn.commands.terminal import TwoBars, prepare_kernels, print_result

if TYPE_CHECKING:
    from kofn.commands.select.compare import Outcome
    from kofn.commands.select.table import Table


def select(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA.csv",
            help="CSV table with a header, columns of numbers or words, and a target; without it, "
            "scikit-learn's handwritten digits and a table with planted interactions.",
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Name of the column to predict.")] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Name of a column to leave out, an id, say; repeat it for several."),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("-k", help="Number of columns to select; 16 by default for the digits."),
    ] = None,
    task: Annotated[
        str,
        typer.Option(help="classification, regression, or auto, which looks at the target column."),
    ] = "auto",
    missing: Annotated[
        str,
        typer.Option(
            help="What to do with missing values: refuse, drop (leave out their rows), or median "
            "(fill in the median of the column, over the training rows)."
        ),
    ] = "refuse",
    metric: Annotated[
        str,
        typer.Option(
            help="How to score classification: accuracy, or balanced, the mean over classes of "
            "the accuracy on their rows."
        ),
    ] = "accuracy",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    splits: Annotated[int, typer.Option(help="Number of random splits to compare on.")] = 10,
    steps: Annotated[int, typer.Option(help="Number of training steps per selection.")] = 300,
    out: Annotated[Path | None, directory("kofn-select")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Select the k most useful columns of a table.

    Compares soft top-k with other selection methods on random train/test splits, and writes
    selection.json and selection.png. Without DATA.csv it selects 16 of the 64 pixels of
    scikit-learn's handwritten digits, and 5 of 100 columns of a table in which four columns
    matter only in pairs.
    """
    require_torch("select")
    # These imports take seconds; made here, an interrupt during them is handled as usual.
    from kofn.commands.select import report
    from kofn.commands.select.compare import METRICS

    began = time.monotonic()
    at_least("splits", splits, 1)
    at_least("steps", steps, 1)
    valid_seed("seed", seed)
    one_of("metric", metric, METRICS)
    out = files.chosen_out(out, "kofn-select", report.FILES, force, as_json)
    prepare_kernels()
    tables = _load(data, target, drop or [], k, task, missing, seed)
    with files.results(out, report.FILES, force, data, "the table") as to:
        outcomes = _work(tables, seed=seed, splits=splits, steps=steps, metric=metric)
        seconds = time.monotonic() - began
        content = report.as_json(outcomes, seed=seed, missing=missing, seconds=seconds)
        written = []
        if to is not None:
            pictured = {"selection.json": content, "selection.png": report.as_png(outcomes)}
            written = to.write(pictured)
    parts = (part for outcome in outcomes for part in report.as_rich(outcome))
    print_result(as_json, content, parts, written)


def _load(
    data: Path | None,
    target: str | None,
    drop: list[str],
    k: int | None,
    task: str,
    missing: str,
    seed: int,
) -> list[tuple[Table, int]]:
    """Return the tables to work on, each with its number of columns to choose."""
    from kofn.commands.select import table as tables

    one_of("task", task, tables.TASKS)
    one_of("missing", missing, tables.MISSING)
    if data is None:
        if target is not None or drop:
            what = "--drop" if target is None else "--target"
            raise InputError(f"{what} needs a table; use: kofn select DATA.csv --target NAME -k K")
        if task == "regression":
            raise InputError(
                "--task regression needs a table; the digits are a classification task"
            )
        digits, k = tables.digits_table(), tables.DIGITS_K if k is None else k
        tables.check_k(k, digits)
        return [(digits, k), (tables.planted_table(seed), tables.PLANTED_K)]
    if target is None:
        raise InputError("--target NAME is missing; name the column to predict")
    table = tables.read_table(data, target, task, missing, drop)
    if k is None:
        raise InputError(
            f"-k is missing; choose how many columns to keep, 1..{len(table.columns) - 1}"
        )
    tables.check_k(k, table)
    return [(table, k)]


def _work(
    tables: list[tuple[Table, int]], *, seed: int, splits: int, steps: int, metric: str
) -> list[Outcome]:
    """On each table, compare the methods on every split, then select columns on all rows."""
    from sklearn.base import clone
    from threadpoolctl import threadpool_limits

    from kofn.commands.select.compare import LINEAR, METHODS, OURS, Outcome, compare
    from kofn.commands.select.table import filled
    from kofn.feature_selection import SoftTopKSelector

    outcomes = []
    pieces = len(tables) * (splits * METHODS + 1)
    # Small matrices are faster on one thread, and much faster if other processes share the cores.
    with threadpool_limits(limits=1), TwoBars(pieces, steps) as progress:

        def tell(split: int, method: str) -> None:
            progress.begin(f"{split + 1}/{splits} {method}", trains=method in (OURS, LINEAR))

        for table, k in tables:
            # clone() deep-copies parameters; it leaves a function alone, but not a bound method.
            selector = SoftTopKSelector(
                k,
                groups=None if table.members is None else table.members.tolist(),
                task=table.task,
                steps=steps,
                random_state=seed,
                callback=lambda *now: progress.trained(*now),
            )
            comparison = compare(
                table, k, selector=selector, splits=splits, seed=seed, tell=tell, metric=metric
            )
            progress.begin("all rows", trains=True)
            final = clone(selector).fit(filled(table.X, table.X), table.y)
            outcomes.append(Outcome(table, final, comparison))
        progress.end()
    return outcomes
