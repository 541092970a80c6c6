"""`kofn compare`: it checks options, measures the maps and writes or prints the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kofn.commands import files, options
from kofn.commands.terminal import prepare_kernels, print_result, progress_bar

K = Annotated[
    float, typer.Option("-k", help="Number of entries to choose from each row; may be fractional.")
]


def compare(
    scores: options.Source = "-",
    k: K = 1.0,
    temperature: options.Temperature = None,
    support: options.Support = None,
    gap: options.Gap = None,
    out: Annotated[Path | None, options.directory("kofn-compare")] = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Compare soft_topk, softmax, sparsemax and others on your scores.

    Prints their weights, sparsity and slopes, and writes compare.json and compare.png.
    """
    from kofn.commands.compare import report, table
    from kofn.commands.compare.compare import compare as compared
    from kofn.commands.compare.maps import serving

    measure, value = options.softness(temperature, support, gap)
    out = files.chosen_out(out, "kofn-compare", report.FILES, force, as_json)
    given = table.read(scores)
    rows = given.values.reshape(-1, given.values.shape[-1]).astype("float64")
    options.check_k(k, rows.shape[-1], "so that there is a choice to make", strict=True)
    prepare_kernels()
    options.check_softness(rows, k, measure, value)
    with (
        files.results(out, report.FILES, force, scores) as to,
        progress_bar(2 * len(serving(k)) + 1) as tell,
    ):
        comparison = compared(rows, k, measure, value, tell)
        tell("picture")
        content = report.as_json(comparison, given)
        written = []
        if to is not None:
            pictured = {"compare.json": content, "compare.png": report.as_png(comparison, given)}
            written = to.write(pictured)
    tables = report.weights_table(comparison, given), report.metrics_table(comparison)
    print_result(as_json, content, tables, written)
