"""What every study does: check, train with a progress bar and checkpoints, write, print."""

import contextlib
import math
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from kofn.commands import files
from kofn.commands.files import InputError, OutputError
from kofn.commands.terminal import bar, prepare_kernels, printed
from studies.frame.checkpoint import CHECKPOINT, Checkpoint
from studies.frame.options import Settings, Study
from studies.frame.run import Run


def conduct(study: Study, settings: Settings, out: Path, *, resume: bool, force: bool) -> None:
    """Train all runs, continue after --resume, write the files and print the table."""
    began = time.monotonic()
    code = import_module(f"studies.{study.name}.study")
    keys, report = code.Run.runs(settings), code.Report(study, settings)
    if resume and force:
        raise InputError(
            "--resume continues the saved run, --force overwrites it; give only one of them"
        )
    with files.opened(out, (CHECKPOINT, *report.files()), force or resume) as to:
        checkpoint = Checkpoint(to, settings)
        if resume:
            checkpoint.read()
        prepare_kernels()
        try:
            train(code.Run, keys, checkpoint)
            report.results = checkpoint.finished
            written = to.write(report.contents(time.monotonic() - began))
        except KeyboardInterrupt as stop:
            with contextlib.suppress(OutputError):  # what was saved before is right, too
                checkpoint.write()
            resumable = checkpoint.written > -math.inf
            resumes = f"--resume continues from {checkpoint.path}"
            stop.args = (resumes if resumable else "nothing was written",)
            raise
    printed(report.table(), files=[*written, checkpoint.path])


def train(kind: type[Run], keys: list[Any], checkpoint: Checkpoint) -> None:
    """Train every unfinished run, with a progress bar on standard error."""
    settings, waiting = checkpoint.settings, checkpoint.current
    done, parts = {tuple(each["key"]) for each in checkpoint.finished}, kind.parts(settings)
    # Small matrices are faster on one thread, and much faster if other processes share the cores.
    with threadpool_limits(limits=1), bar(len(keys) * parts, 16) as update:
        for place, key in enumerate(keys):
            if key in done:
                continue
            run = kind(settings, *key)
            if waiting is not None and tuple(waiting["key"]) == key:
                run.load(waiting)
            update(completed=place * parts + run.done, description=run.says())
            while run.done < parts:
                run.part()
                update(completed=place * parts + run.done, description=run.says())
                if run.done < parts:
                    checkpoint.keep({**run.state(), "key": key})
            checkpoint.finished.append({**run.result(), "key": key})
            checkpoint.keep(None)
