"""`kofn apply`: it checks options, calls the library and writes or prints the weights."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kofn.commands.apply.options import Options, check_hard, given_k, no_thresholds
from kofn.commands.files import InputError
from kofn.commands.options import Force, Gap, Source, Support, Temperature, check_k, softness
from kofn.commands.terminal import bar, print_result, put_out
from kofn.links.table import TABLE

if TYPE_CHECKING:
    from kofn.commands.apply.by_blocks import Scores


def apply(
    scores: Source = "-",
    k: Annotated[
        float | None,
        typer.Option(
            "-k",
            help="Number of entries to choose from each row; may be fractional. Needed, but for a "
            "map that always chooses one.",
        ),
    ] = None,
    map_: Annotated[
        str | None,
        typer.Option(
            "--map",
            help=f"Function to apply: a link of soft_topk ({', '.join(TABLE)}), softmax, "
            "sparsemax, taylor_softmax, sparse_softmax, perturbed_argmax or KSubset; logistic by "
            "default.",
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
    threshold_only: Annotated[
        bool,
        typer.Option("--threshold-only", help="Print the threshold of each row, not the weights."),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of the weights: float16, float32 or float64, with --hard also bool or "
            "uint8; as the scores by default."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output file, .csv or .npy; without it, the weights are printed."),
    ] = None,
    force: Force = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue an interrupted run from .npy file to .npy file."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print what was done, or the thresholds, as JSON."),
    ] = False,
) -> None:
    """Turn each row of scores into weights that sum to k.

    Prints the weights in the format of the input. An .npy input gives .npy output, which needs
    --out or a pipe. From .npy file to .npy file, scores are read block by block, so rows of any
    length fit into memory; an interrupted run can be continued.
    """
    k = given_k(k, map_)
    measure, value = softness(temperature, support, gap)
    if hard:
        check_hard(map=map_, alpha=alpha, temperature=temperature, support=support, gap=gap)
    soft = map_ or "logistic", alpha, measure, value
    options = Options(k, *soft, hard, dtype, threshold_only, out, force, resume, as_json)
    options.check()
    written = out is not None and out.suffix in ("", ".npy")
    if scores != "-" and measure == "temperature" and (written or threshold_only):
        from kofn.commands.apply.by_blocks import opened

        on_disk = opened(scores)
        if on_disk is not None:
            _by_blocks(scores, on_disk, options)
            return
    if resume:
        raise InputError(
            "--resume continues from .npy file to .npy file in rows, without --support and --gap"
        )
    _in_memory(scores, options)


def _by_blocks(name: str, scores: Scores, options: Options) -> None:
    """Work on a file that stays on disk."""
    import numpy as np

    from kofn.commands.apply import by_blocks
    from kofn.commands.apply.partial import Partial, identity, names

    began, out = time.monotonic(), options.out
    check_k(options.k, scores.n, "at most the number of scores per row", strict=False)
    job = options.job(None)
    if out is None:
        if job.link is None:
            no_thresholds(None)
        with bar(1, 20) as update:
            thresholds = by_blocks.thresholds(scores, job, update)
        _print_thresholds(thresholds, name, options)
        return
    dtype = np.dtype(options.dtype) if options.dtype else scores.dtype
    settings = {"scores": identity(name), **options.about(), "dtype": dtype.name}
    to = Partial(out, scores.shape, dtype, settings)
    with options.opened(name, names(out)[1:]):
        if options.resume:
            to.resume()
        else:
            to.begin(options.force)
        with to.kept(), bar(1, 20) as update:
            by_blocks.write(scores, job, to, update)
    about = {"shape": scores.shape, "dtype": dtype.name, "out": str(out)}
    seconds = round(time.monotonic() - began, 2)
    print_result(options.as_json, _json(name, options, {**about, "seconds": seconds}), (), [out])


def _in_memory(source: str, options: Options) -> None:
    from kofn.commands.compare import table

    given, out = table.read(source, exact=options.hard), options.out
    values, n = given.values, given.values.shape[-1]
    check_k(options.k, n, "at most the number of scores per row", strict=False)
    rows = values.reshape(-1, n)
    job = options.job(rows)
    if options.threshold_only:
        _print_thresholds(job.thresholds(rows).tolist(), given.name, options)
        return
    weights = job.weights(rows).reshape(values.shape)
    weights = weights if options.dtype is None else weights.astype(options.dtype)
    binary = given.binary if out is None or not out.suffix else out.suffix == ".npy"
    if not binary and weights.ndim > 2:
        raise InputError(
            f"weights of shape {weights.shape} do not fit in a table; use --out FILE.npy"
        )
    content = table.write_npy(weights) if binary else table.write_csv(weights, given)
    if out is not None:
        with options.opened(source) as to:
            to.write({out.name: content})
        about = {"shape": weights.shape, "dtype": weights.dtype.name, "out": str(out)}
        print_result(options.as_json, _json(given.name, options, about), (), [out])
        return
    if binary and sys.stdout.isatty():
        raise InputError(".npy output cannot be shown on a terminal; use --out FILE or a pipe")
    put_out(content)


def _print_thresholds(thresholds: list[float], name: str, options: Options) -> None:
    # JSON has no infinity and no NaN.
    numbers = [theta if math.isfinite(theta) else str(theta) for theta in thresholds]
    text = "".join(f"{theta!r}\n" for theta in thresholds)
    put_out(_json(name, options, {"thresholds": numbers}) if options.as_json else text)


def _json(name: str, options: Options, more: dict[str, Any]) -> bytes:
    from kofn.commands.results import json_bytes

    return json_bytes({"scores": name, **options.about(), **more})
