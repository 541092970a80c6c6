"""What every `kofn train` does: check, train with a progress bar and checkpoints, write, print."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kofn.commands import files as _files
from kofn.commands.files import InputError
from kofn.commands.terminal import at_least, bar, prepare_kernels, printed

if TYPE_CHECKING:
    from kofn.commands.train.checkpoint import Checkpoint, Key
    from kofn.commands.train.run import Run

Results = list[dict[str, Any]]

Resume = Annotated[bool, typer.Option("--resume", help="Continue the run saved in --out.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite earlier results.")]
Out = Annotated[Path, typer.Option(help="Directory to write the results to.")]
Seeds = Annotated[int, typer.Option(help="Number of runs of each method.")]
Repeats = Annotated[int | None, typer.Option(help="Number of runs of each method; by default 3.")]
Seed = Annotated[
    int, typer.Option(help="Random seed of the first run; later runs use the next integers.")
]


@dataclass(frozen=True)
class Study:
    """A comparison of methods, each trained with several seeds."""

    settings: Any
    """A dataclass of all options that determine a result."""
    keys: Sequence[Key]
    parts: int
    """How many parts a run has, such as epochs."""
    begin: Callable[[Key], Run]
    names: tuple[str, ...]
    """The files to write beside the checkpoint."""
    contents: Callable[[Results, float], tuple[bytes, ...]]
    """From the results and the seconds that the study took, what is in them."""
    table: Callable[[Results], Any]


def comparison(settings: Any, run: Callable[..., Run], report: Any) -> Study:
    """Return the study of `settings.runs()`, each in `settings.parts` parts.

    run(settings, *key) begins one; the module `report` has FILES, contents and as_rich.
    """
    return Study(
        settings=settings,
        keys=settings.runs(),
        parts=settings.parts,
        begin=lambda key: run(settings, *key),
        names=report.FILES,
        contents=lambda results, seconds: report.contents(settings, results, seconds),
        table=lambda results: report.as_rich(settings, results),
    )


def lengths_of(quick: bool, few: int, steps: int | None, usual: int, seeds: int | None) -> Any:
    """Return (steps, seeds): `few` and 1 with --quick, else what was given, else `usual` and 3."""
    if quick:
        for name, given in (("steps", steps), ("seeds", seeds)):
            if given is not None:
                raise InputError(f"--quick chooses --{name} itself; give only one of them")
        return few, 1
    steps, seeds = usual if steps is None else steps, 3 if seeds is None else seeds
    at_least("steps", steps, 1)
    at_least("seeds", seeds, 1)
    return steps, seeds


def conduct(study: Study, out: Path, *, resume: bool, force: bool) -> None:
    """Train all runs, continue after --resume, write the files and print the table."""
    from kofn.commands.train.checkpoint import CHECKPOINT, Checkpoint

    began = time.monotonic()
    if resume and force:
        raise InputError(
            "--resume continues the saved run, --force overwrites it; give only one of them"
        )
    _files.check_out(out, (CHECKPOINT, *study.names), force or resume)
    checkpoint = Checkpoint(out, study.settings)
    if resume:
        checkpoint.read()
    prepare_kernels()
    try:
        results = _trained(study, checkpoint)
        contents = study.contents(results, time.monotonic() - began)
        _files.write(out, dict(zip(study.names, contents, strict=True)), force=True)
    except KeyboardInterrupt as stop:
        stop.args = (_left(checkpoint),)
        raise
    files = [out / name for name in (*study.names, CHECKPOINT)]
    printed(study.table(results), files=files)


def _left(checkpoint: Checkpoint) -> str:
    """Save the last part after an interrupt, and say how to continue."""
    checkpoint.write()
    resumable = checkpoint.written > -math.inf
    return f"--resume continues from {checkpoint.path}" if resumable else "nothing was written"


def _trained(study: Study, checkpoint: Checkpoint) -> Results:
    """Train all runs, with a progress bar on standard error."""
    from threadpoolctl import threadpool_limits

    from kofn.commands.train.checkpoint import work

    keys, parts = list(study.keys), study.parts
    # Small matrices are faster on one thread, and much faster if other processes share the cores.
    with threadpool_limits(limits=1), bar(len(keys) * parts, 16) as update:

        def tell(key: Key, run: Run) -> None:
            update(completed=keys.index(key) * parts + run.done, description=run.says())

        return work(keys, parts, study.begin, checkpoint, tell)
