"""`kofn bench`: it checks options, times the contenders and writes or prints the figures."""

from __future__ import annotations

import getpass
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from kofn.commands import files
from kofn.commands.errors import OutputError
from kofn.commands.needed import require_torch
from kofn.commands.options import Force, Json, at_least, chosen
from kofn.commands.terminal import prepare_kernels, print_result, progress_bar

if TYPE_CHECKING:
    from kofn.commands.bench.cases import Case
    from kofn.commands.bench.devices import Device
    from kofn.commands.bench.report import Result


def bench(
    case: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Shape of the scores: router, attention, vocabulary or pruning; or another "
            "comparison: losses, compile, jax, half, knapsack, segments, balance, calls of few "
            "scores (calls), or the cost of an entry beside that of reading it (floor). Repeat the "
            "option for several; all by default.",
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="float32, bfloat16 or float16; by default those of the case."
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="cpu; or cuda, mps or xpu, where every call has scores that are not in the "
            "device's cache, and large shapes are timed, too.",
        ),
    ] = "cpu",
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
    busy: Annotated[
        bool, typer.Option("--busy", help="Write files on a busy machine, too; they say so.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Time soft_topk, sparsemax and others, relative to softmax.

    Also times common hand-written code, and other libraries if they are installed.
    """
    # PyTorch's profiler measures memory; by default it prints a line whenever it starts.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if level := os.environ.get("ATEN_CPU_CAPABILITY"):
        # What PyTorch keeps of compiled code is of one width of vectors, and it does not ask which.
        kept = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}_{level}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))
    require_torch("bench")
    import torch

    from kofn.commands.bench import devices, report
    from kofn.commands.bench.cases import CASES, on_device

    cases = chosen("case", case, {each.name: each for each in CASES})
    dtypes = chosen("dtype", dtype, {name: name for name in ("float32", "bfloat16", "float16")})
    at_least("rounds", rounds, 2)
    timed_on = devices.of(device)
    cases = [each for one in cases for each in on_device(one, device)]
    if threads is not None:
        torch.set_num_threads(at_least("threads", threads, 1))
    if out is not None:
        files.check_out(out, report.FILES, force)
    if timed_on is None:
        prepare_kernels()
    with files.results(out, report.FILES, force) as to:
        again = AGAIN if to is not None and not busy else 0
        results = _timed(cases, dtypes if dtype else None, rounds, timed_on, again)
        about = report.machine(torch.get_num_threads(), timed_on)
        content = report.as_json(about, results)
        written, troubled = [], [each.title for each in results if each.warning]
        if to is not None and (busy or not troubled):
            contents = (content, report.as_markdown(about, results))
            written = to.write(dict(zip(report.FILES, contents, strict=True)))
    parts = (
        escape(report.headline(about)),
        report.SHORT_EXPLANATION,
        *map(report.as_rich, results),
    )
    print_result(as_json, content, parts, written)
    if out is not None and troubled and not busy:
        raise OutputError(
            f"the machine was busy ({'; '.join(troubled)}), so nothing was written: run this again "
            "when it is idle, or give --busy, which marks the files"
        )


AGAIN = 3  # how often a case may be timed again, rather than that nothing is written


def _timed(
    cases: list[Case], dtypes: list[str] | None, rounds: int, device: Device | None, again: int
) -> list[Result]:
    from kofn.commands.bench.measure import count, measure
    from kofn.commands.bench.report import Result

    jobs = [(case, dtype) for case in cases for dtype in dtypes or case.dtypes]
    with progress_bar(sum(count(*job) for job in jobs)) as tell:
        results = []
        for case, dtype in jobs:

            def show(name: str, where: str = f"{case.name} {dtype}") -> None:
                tell(f"{where}: {name}")

            timings, copy_rate = measure(case, dtype, rounds, show, device)
            result = Result(case, dtype, copy_rate, timings)
            for _ in range(again):
                if not result.warning:
                    break
                timings, copy_rate = measure(case, dtype, rounds, lambda _: None, device)
                result = Result(case, dtype, copy_rate, timings)
            results.append(result)
    return results
