"""The `kofn` command: its subcommands check the options, call the library and print."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kofn.commands.needed import missing

_missing = missing()
if _missing is not None:
    raise ImportError(f"kofn.commands.app: {_missing[1]}", name=_missing[0])

import typer  # noqa: E402
from rich.markup import escape  # noqa: E402

import kofn  # noqa: E402
from kofn.commands import files, moved  # noqa: E402
from kofn.commands.apply.command import EXAMPLES, apply  # noqa: E402
from kofn.commands.compare import command  # noqa: E402
from kofn.commands.examples import EXAMPLES as EXAMPLES_OF  # noqa: E402
from kofn.commands.examples import FIRST  # noqa: E402
from kofn.commands.explore.command import explore  # noqa: E402
from kofn.commands.files import InputError  # noqa: E402
from kofn.commands.terminal import (  # noqa: E402
    Guarded,
    TwoBars,
    at_least,
    chosen,
    end_on_sigterm,
    prepare_kernels,
    printed,
    progress_bar,
    valid_seed,
)
from kofn.commands.warm import warm  # noqa: E402

if TYPE_CHECKING:
    from kofn.commands.bench.contenders import Case
    from kofn.commands.bench.report import Result
    from kofn.commands.select.compare import Outcome
    from kofn.commands.select.table import Table

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
    end_on_sigterm()
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


@app.command(epilog=EXAMPLES_OF["select"])
def select(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA.csv",
            help="CSV table with a header, numeric columns and a target column; without it, "
            "scikit-learn's handwritten digits and a table with planted interactions.",
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Name of the column to predict.")] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            help="Number of columns to select; 16 by default for the digits.",
        ),
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
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    splits: Annotated[int, typer.Option(help="Number of random splits to compare on.")] = 10,
    steps: Annotated[int, typer.Option(help="Number of training steps per selection.")] = 300,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory to write the results to; kofn-select by default."),
    ] = None,
    force: command.Force = False,
    as_json: command.Json = False,
) -> None:
    """Select the k most useful columns of a table.

    Compares soft top-k with other selection methods on random train/test splits, and writes
    selection.json and selection.png. Without DATA.csv it selects 16 of the 64 pixels of
    scikit-learn's handwritten digits, and 5 of 100 columns of a table in which four columns
    matter only in pairs.
    """
    # These imports take seconds; made here, an interrupt during them is handled as usual.
    from kofn.commands.select import report

    began = time.monotonic()
    at_least("splits", splits, 1)
    at_least("steps", steps, 1)
    valid_seed("seed", seed)
    out = files.chosen_out(out, "kofn-select", report.FILES, force, as_json)
    prepare_kernels()
    tables = _load(data, target, k, task, missing, seed)
    outcomes = _work(tables, seed=seed, splits=splits, steps=steps)
    seconds = time.monotonic() - began
    content = report.as_json(outcomes, seed=seed, missing=missing, seconds=seconds)
    written = []
    if out is not None:
        pictured = {"selection.json": content, "selection.png": report.as_png(outcomes)}
        files.write(out, pictured, force)
        written = [out / name for name in pictured]
    if as_json:
        typer.echo(content, nl=False)
        return
    parts = [part for outcome in outcomes for part in report.as_rich(outcome)]
    printed(*parts, files=written)


app.command(epilog=EXAMPLES_OF["compare"])(command.compare)
app.command(epilog=EXAMPLES)(apply)
app.command(epilog=EXAMPLES_OF["explore"])(explore)
app.command(epilog=EXAMPLES_OF["warm"])(warm)


@app.command(epilog=EXAMPLES_OF["bench"])
def bench(
    case: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Shape of the scores: router, attention, vocabulary or pruning; or another "
            "comparison: losses, compile, jax, half, knapsack or segments. Repeat the "
            "option for several; all by default.",
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="float32, bfloat16 or float16; by default those of the case."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Number of threads; PyTorch's default if not given.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Maximum number of timings of each function.")] = 31,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for bench.json and bench.md; without it, no files are written."
        ),
    ] = None,
    force: command.Force = False,
    as_json: command.Json = False,
) -> None:
    """Time soft_topk, sparsemax and others, relative to softmax.

    Also times common hand-written code, and other libraries if they are installed.
    """
    # PyTorch's profiler measures memory; by default it prints a line whenever it starts.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch

    from kofn.commands.bench import report
    from kofn.commands.bench.contenders import CASES

    cases = chosen("case", case, {each.name: each for each in CASES})
    dtypes = chosen("dtype", dtype, {name: name for name in ("float32", "bfloat16", "float16")})
    at_least("rounds", rounds, 2)
    if threads is not None:
        at_least("threads", threads, 1)
        torch.set_num_threads(threads)
    if out is not None:
        files.check_out(out, report.FILES, force)
    prepare_kernels()
    results = _timed(cases, dtypes if dtype else None, rounds)
    about = report.machine(torch.get_num_threads())
    written: list[Path] = []
    content = report.as_json(about, results)
    if out is not None:
        contents = (content, report.as_markdown(about, results))
        files.write(out, dict(zip(report.FILES, contents, strict=True)), force)
        written = [out / name for name in report.FILES]
    if as_json:
        typer.echo(content, nl=False)
        return
    tables = map(report.as_rich, results)
    printed(escape(report.headline(about)), report.SHORT_EXPLANATION, *tables, files=written)


app.command(hidden=True, add_help_option=False, context_settings=moved.ANY)(moved.train)


def _timed(cases: list[Case], dtypes: list[str] | None, rounds: int) -> list[Result]:
    from kofn.commands.bench.measure import count, measure
    from kofn.commands.bench.report import Result

    jobs = [(case, dtype) for case in cases for dtype in dtypes or case.dtypes]
    with progress_bar(sum(count(*job) for job in jobs)) as tell:
        results = []
        for case, dtype in jobs:

            def show(name: str, where: str = f"{case.name} {dtype}") -> None:
                tell(f"{where}: {name}")

            timings, copy_rate = measure(case, dtype, rounds, show)
            results.append(Result(case, dtype, copy_rate, timings))
    return results


def _load(
    data: Path | None, target: str | None, k: int | None, task: str, missing: str, seed: int
) -> list[tuple[Table, int]]:
    """Return the tables to work on, each with its number of columns to choose."""
    from kofn.commands.select import table as tables

    tables.check_task(task)
    tables.check_missing(missing)
    if data is None:
        if target is not None:
            raise InputError("--target needs a table; use: kofn select DATA.csv --target NAME -k K")
        if task == "regression":
            raise InputError(
                "--task regression needs a table; the digits are a classification task"
            )
        digits, k = tables.digits_table(), tables.DIGITS_K if k is None else k
        tables.check_k(k, digits)
        return [(digits, k), (tables.planted_table(seed), tables.PLANTED_K)]
    if target is None:
        raise InputError("--target NAME is missing; name the column to predict")
    table = tables.read_table(data, target, task, missing)
    if k is None:
        raise InputError(
            f"-k is missing; choose how many columns to keep, 1..{len(table.columns) - 1}"
        )
    tables.check_k(k, table)
    return [(table, k)]


def _work(tables: list[tuple[Table, int]], *, seed: int, splits: int, steps: int) -> list[Outcome]:
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
                task=table.task,
                steps=steps,
                random_state=seed,
                callback=lambda *now: progress.trained(*now),
            )
            comparison = compare(table, k, selector=selector, splits=splits, seed=seed, tell=tell)
            progress.begin("all rows", trains=True)
            final = clone(selector).fit(filled(table.X, table.X), table.y)
            outcomes.append(Outcome(table, final, comparison))
        progress.end()
    return outcomes
