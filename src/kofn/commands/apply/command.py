"""`kofn apply`: it checks options, calls the library and writes or prints the weights."""

from __future__ import annotations

import math
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kofn.commands import files
from kofn.commands.compare.command import (
    Force,
    Gap,
    Source,
    Support,
    Temperature,
    check_k,
    check_softness,
    softness,
)
from kofn.commands.files import InputError
from kofn.commands.terminal import bar, prepare_kernels, printed

if TYPE_CHECKING:
    import numpy as np

    from kofn.commands.apply.by_blocks import Job, Scores

DTYPES = ("float16", "float32", "float64")
HARD_DTYPES = (*DTYPES, "bool", "uint8")

EXAMPLES = """
Examples:

  echo "2 1 0.5 -1" | kofn apply -k 2

  kofn apply scores.csv -k 2 --support 3 --out weights.csv

  kofn apply scores.npy -k 1000 --out weights.npy

  kofn apply scores.npy -k 1000 --hard --dtype bool --out chosen.npy

  kofn apply scores.npy -k 1000 --threshold-only --json
"""


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
    threshold_only: Annotated[
        bool,
        typer.Option("--threshold-only", help="Print the threshold of each row, not the weights."),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of the weights: float16, float32 or float64, with --hard also bool or "
            "uint8; that of the scores by default."
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
    k = _given_k(k, map_)
    measure, value = softness(temperature, support, gap)
    if hard:
        _check_hard(map=map_, alpha=alpha, temperature=temperature, support=support, gap=gap)
    _check_dtype(dtype, hard, k)
    _check_combination(out, force, resume, hard, threshold_only, as_json, dtype)
    if out is not None:
        _check_file(out, force or resume)  # --resume checks more about the file that is there
    how = _How(k, map_ or "logistic", alpha, measure, value, hard, dtype)
    written = out is not None and out.suffix in ("", ".npy")
    if scores != "-" and measure == "temperature" and (written or threshold_only):
        from kofn.commands.apply.by_blocks import opened

        found = opened(scores)
        if found is not None:
            _by_blocks(scores, found, how, out, threshold_only, force, resume, as_json)
            return
    if resume:
        raise InputError(
            "--resume continues from .npy file to .npy file in rows, without --support and --gap"
        )
    _in_memory(scores, how, out, threshold_only, force, as_json)


class _How:
    """The options that say what the weights are."""

    def __init__(
        self, k: float, map_: str, alpha: float | None, measure: str, value: float, hard: bool,
        dtype: str | None,
    ) -> None:  # fmt: skip
        self.k, self.map, self.alpha, self.measure, self.value = k, map_, alpha, measure, value
        self.hard, self.dtype = hard, dtype
        if alpha is not None and not 1 <= alpha < math.inf:
            raise InputError(f"--alpha must be a finite number ≥ 1; got {alpha:g}")

    def job(self, rows: np.ndarray | None) -> Job:
        """Return what to do with rows; those given tell the temperature, if it is not given."""
        import kofn
        from kofn.commands.apply.by_blocks import Job
        from kofn.commands.compare.maps import named

        if self.hard:
            return Job(self.k, 1.0, None, True, partial(kofn.hard_topk, k=self.k), _refuse)
        prepare_kernels()
        chosen, t = named(self.map, self.k, self.alpha), self.value
        if self.measure != "temperature":
            assert rows is not None
            check_softness(rows, self.k, self.measure, self.value)
            t = chosen.temperature(rows.astype("float64"), self.k, self.measure, self.value)
        link: Any = chosen.link if self.alpha is None else kofn.links.entmax(self.alpha)
        if link is None:
            return Job(self.k, t, None, False, lambda x: chosen.weights(x, self.k, t), _refuse)
        from kofn.links import table

        solve = partial(kofn.soft_topk_threshold, k=self.k, link=link, temperature=t)
        weights = partial(kofn.soft_topk, k=self.k, link=link, temperature=t)
        return Job(self.k, t, table.resolve(link), False, weights, solve)

    def about(self) -> dict[str, Any]:
        """Return the options, for JSON."""
        soft = {"map": self.map, "alpha": self.alpha, self.measure: self.value}
        return {"k": self.k, "hard": self.hard} | ({} if self.hard else soft)


def _refuse(_: Any) -> Any:
    raise InputError("--threshold-only needs soft_topk: --map with the name of a link")


def _by_blocks(
    name: str, scores: Scores, how: _How, out: Path | None, threshold_only: bool, force: bool,
    resume: bool, as_json: bool,
) -> None:  # fmt: skip
    """Work on a file that stays on disk."""
    import numpy as np

    from kofn.commands.apply import by_blocks
    from kofn.commands.apply.partial import Partial, identity

    began = time.monotonic()
    check_k(how.k, scores.n, "at most the number of scores per row", strict=False)
    job = how.job(None)
    if out is None:
        if job.link is None:
            _refuse(None)
        with bar(1, 20) as update:
            found = by_blocks.thresholds(scores, job, update)
        _print_thresholds(found, name, how, as_json)
        return
    dtype = np.dtype(how.dtype) if how.dtype else scores.dtype
    settings = {"scores": identity(name), **how.about(), "dtype": dtype.name}
    to = Partial(out, scores.shape, dtype, settings)
    for path in (out, to.path, to.record_path):
        if path.exists() and os.path.samefile(path, name):
            raise InputError(f"--out {out} would overwrite the scores, {name}; choose another")
    if resume:
        to.resume()
    else:
        to.begin(force)
    with to.kept(), bar(1, 20) as update:
        by_blocks.write(scores, job, to, update)
    if not as_json:
        printed(files=[out])
        return
    about = {"shape": scores.shape, "dtype": dtype.name, "out": str(out)}
    _print_json(name, how, {**about, "seconds": round(time.monotonic() - began, 2)})


def _in_memory(
    source: str, how: _How, out: Path | None, threshold_only: bool, force: bool, as_json: bool
) -> None:
    from kofn.commands.compare import table

    given = table.read(source)
    values, n = given.values, given.values.shape[-1]
    check_k(how.k, n, "at most the number of scores per row", strict=False)
    rows = values.reshape(-1, n)
    job = how.job(rows)
    if threshold_only:
        _print_thresholds(job.thresholds(rows).tolist(), given.name, how, as_json)
        return
    weights = job.weights(rows).reshape(values.shape)
    weights = weights if how.dtype is None else weights.astype(how.dtype)
    binary = given.binary if out is None or not out.suffix else out.suffix == ".npy"
    if not binary and weights.ndim > 2:
        raise InputError(
            f"weights of shape {weights.shape} do not fit in a table; use --out FILE.npy"
        )
    content = table.write_npy(weights) if binary else table.write_csv(weights, given)
    if out is not None:
        files.write(out.parent, {out.name: content}, force, option=out)
        if not as_json:
            printed(files=[out])
            return
        about = {"shape": weights.shape, "dtype": weights.dtype.name, "out": str(out)}
        _print_json(given.name, how, about)
        return
    if binary and sys.stdout.isatty():
        raise InputError(".npy output cannot be shown on a terminal; use --out FILE or a pipe")
    typer.echo(content, nl=False)


def _print_thresholds(found: list[float], name: str, how: _How, as_json: bool) -> None:
    if as_json:
        # JSON has no infinity and no NaN.
        numbers = [theta if math.isfinite(theta) else str(theta) for theta in found]
        _print_json(name, how, {"thresholds": numbers})
        return
    for theta in found:
        typer.echo(repr(theta))


def _print_json(name: str, how: _How, more: dict[str, Any]) -> None:
    from kofn.commands.results import json_bytes

    typer.echo(json_bytes({"scores": name, **how.about(), **more}), nl=False)


def _given_k(k: float | None, map_: str | None) -> float:
    """Return k; InputError if it is not given, unless the map always chooses one."""
    if k is not None:
        return k
    if map_ is not None:
        from kofn.commands.compare.maps import chooses_one

        if chooses_one(map_):
            return 1.0
    raise InputError("-k is missing; give the number of entries to choose from each row")


def _check_hard(**soft: object) -> None:
    for name, value in soft.items():
        if value is not None:
            raise InputError(
                f"--hard gives weights of 0 and 1; it cannot be combined with --{name}"
            )


def _check_dtype(dtype: str | None, hard: bool, k: float) -> None:
    allowed = HARD_DTYPES if hard else DTYPES
    if dtype is None or dtype in DTYPES:
        return
    if dtype not in allowed:
        raise InputError(f"--dtype must be one of {', '.join(allowed)}; got {dtype!r}")
    if k % 1:
        raise InputError(f"--dtype {dtype} needs a whole k; got {k:g}")


def _check_combination(
    out: Path | None,
    force: bool,
    resume: bool,
    hard: bool,
    threshold_only: bool,
    as_json: bool,
    dtype: str | None,
) -> None:
    if threshold_only:
        others = {"out": out, "resume": resume, "hard": hard, "dtype": dtype}
        for name, given in others.items():
            if given:
                raise InputError(
                    f"--threshold-only prints thresholds; it cannot be combined with --{name}"
                )
    elif as_json and out is None:
        raise InputError(
            "--json describes a file or thresholds; add --out FILE or --threshold-only"
        )
    if resume and out is None:
        raise InputError("--resume needs --out, the file that was to be written")
    if resume and force:
        raise InputError(
            "--resume continues the interrupted run, --force starts anew; give only one of them"
        )


def _check_file(out: Path, force: bool) -> None:
    if os.path.isdir(out):  # unlike Path.is_dir, it accepts a name that is too long
        raise InputError(f"--out {out} is a directory; give a .csv or .npy file")
    if out.suffix not in ("", ".csv", ".npy"):
        raise InputError(f"--out must end in .csv or .npy; got {out}")
    if not os.path.exists(out.parent):
        files.check_out(out.parent, [out.name], force)  # a name that is too long, for example
        raise InputError(
            f"--out {files.shortened(out)} cannot be written: there is no folder "
            f"{files.shortened(out.parent)}"
        )
    files.check_out(out.parent, [out.name], force)
