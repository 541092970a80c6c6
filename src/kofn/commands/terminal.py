"""Output, progress bars, errors and exit statuses of every subcommand.

A command raises an exception; this module turns it into one line on standard error and an exit
status: 2 if the user can fix it, 1 if the system failed, 128 + the signal number for an interrupt.
A bug keeps its traceback.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from kofn.commands import files as _files
from kofn.commands import starting
from kofn.commands.files import OF_OUTPUT, InputError, OutputError
from kofn.commands.starting import Terminated as Terminated

FAILED, REFUSED, INTERRUPTED, TERMINATED = 1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM

# Parts of the messages with which PyTorch and the dynamic loader report a lack of memory.
OF_MEMORY = ("allocate memory", "failed to map segment")

OTHERS = {
    **dict.fromkeys(("--k", "--top-k", "--topk", "--n-features", "--n-features-to-select"), "-k"),
    **dict.fromkeys(("--tau", "--temp", "--T", "-T", "-t"), "--temperature"),
    **dict.fromkeys(("--link", "--method"), "--map"),
    **dict.fromkeys(("--label", "--labels", "--y", "-y"), "--target"),
    **dict.fromkeys(("--output", "-o"), "--out"),
}
"""What others call options of ours."""

# From version 0.26 on, Typer contains its own copy of click.
UsageError: Any = typer.BadParameter.__mro__[2]


class _Guard:
    """A block that ends with the exit status and the one line of an error."""

    make_context: Any
    invoke: Any
    _main_shell_completion: Any

    def main(self, args: Any = None, prog_name: Any = None, *_: object, **__: object) -> NoReturn:
        """Run the command and exit."""

        def work() -> None:
            given = sys.argv[1:] if args is None else list(args)
            # A shell asks for completions by an environment variable; this answers it and ends.
            self._main_shell_completion({}, prog_name or "kofn")
            with self.make_context(prog_name or "kofn", given) as context:
                self.invoke(context)

        sys.exit(status_of(work))


class Guarded(_Guard, TyperGroup):
    """The top-level command; every subcommand exits through it."""


class GuardedCommand(_Guard, TyperCommand):
    """A command without subcommands that exits likewise."""


def status_of(work: Callable[[], object]) -> int:
    """Run the work, report an error in one line, and return the exit status."""
    written = len(_files.WRITTEN)
    try:
        _check_streams()
        status = 0
        try:
            work()
        except typer.Exit as end:
            status = end.exit_code
        # A full disk can be reported here, but no longer while Python exits.
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _say_usage(error)
    except InputError as error:
        return _say(str(error), REFUSED)
    except OutputError as error:
        return _say(str(error), FAILED)
    except KeyboardInterrupt as stop:
        what = "terminated" if isinstance(stop, Terminated) else "interrupted"
        left = str(stop) or ("" if len(_files.WRITTEN) > written else "nothing was written")
        status = TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
        if _files.OUTPUT in _files.WRITTEN[written:]:
            _discard(sys.stdout)  # its reader may read no more
        return _say(f"{what}; {left}" if left else what, status)
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        _discard(sys.stdout)
        return FAILED
    except MemoryError as error:
        return _say_memory(error)
    except OSError as error:
        return _say_system(error)
    except (RuntimeError, ImportError) as error:
        if not any(words in str(error) for words in OF_MEMORY):
            raise
        return _say_memory(error)


def prepare_kernels() -> None:
    """Check KOFN_KERNELS and KOFN_CPU; report on standard error if kernels have to be compiled.

    They have to where kofn has no library of them.

    Raises:
        InputError: one of these environment variables has a value that is not allowed.
    """
    from kofn import kernels

    try:
        if kernels.wanted():
            _tell_of_compiling()
    except ValueError as error:
        raise InputError(str(error)) from None


def _tell_of_compiling() -> None:
    """Report compilation once, if a kernel has to be compiled."""
    from kofn.kernels.cpu.runtime import library

    if library.found() is not None:
        return
    try:
        from kofn.kernels.cpu.compiler import now, target
    except ImportError:  # without Numba there is nothing to compile
        return
    target.target()  # an error if KOFN_CPU is none
    if now.tell is not None:
        now.tell = lambda: print(now.COMPILING, file=sys.stderr)


def print_result(as_json: bool, content: bytes, parts: Iterable[Any], written: list[Path]) -> None:
    """Print the results of a command: as JSON, or as tables with the names of the files."""
    if as_json:
        put_out(content)
    else:
        printed(*parts, files=written)


def put_out(content: bytes | str) -> None:
    """Write results to standard output."""
    _begin_output()
    typer.echo(content, nl=False)


def _begin_output() -> None:
    """From here on, an interrupt does not say that nothing was written."""
    _files.WRITTEN.append(_files.OUTPUT)
    starting.over()


def printed(*parts: Any, files: Any = ()) -> None:
    """Print items to standard output, then the names of the written files.

    A table that is wider than the terminal is printed as several, with some columns each.
    """
    from kofn.commands.results import WIDEST, folded

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDEST  # a pipe has no lines to break
    _begin_output()
    for part in parts:
        for piece in folded(part, console) if isinstance(part, Table) else [part]:
            console.print(piece, crop=False)
    for path in files:
        console.print(f"Wrote {escape(str(path))}", soft_wrap=True)


class _Lines:
    """Lines of progress, every ten seconds, on a standard error that shows no bars, as a pipe."""

    every = 10.0

    def __init__(self, console: Console) -> None:
        self.begun = time.monotonic()
        self.next = math.inf if console.is_terminal else self.begun + self.every

    def tell(self, task: Task) -> None:
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.every
            done = f"{task.completed:.0f}/{task.total:.0f} {task.description}".rstrip()
            typer.echo(f"kofn: {done}, {now - self.begun:.0f} s", err=True)


@contextlib.contextmanager
def bar(total: int, width: int) -> Iterator[Callable[..., None]]:
    """Show a temporary progress bar on standard error; yield its `update`."""
    columns = (BarColumn(width), MofNCompleteColumn(), TimeElapsedColumn())
    starting.over()  # the bar has to be removed
    console = Console(stderr=True)
    progress = Progress(*columns, TextColumn("{task.description}"), console=console)
    task, lines = progress.add_task("", total=total), _Lines(console)

    def update(**now: Any) -> None:
        progress.update(task, **now)
        lines.tell(progress.tasks[0])

    # Without Live, Progress prints an empty line at the end if there is no terminal.
    with Live(progress, console=console, transient=True):
        yield update


@contextlib.contextmanager
def progress_bar(pieces: int) -> Iterator[Callable[[str], None]]:
    """Show a `bar`; yield a function to call before each step."""
    begun = 0
    with bar(pieces, 20) as update:

        def tell(name: str) -> None:
            nonlocal begun
            update(completed=begun, description=escape(name))
            begun += 1

        yield tell


class TwoBars:
    """Two progress bars on standard error: overall progress and the current training."""

    def __init__(self, pieces: int, steps: int) -> None:
        console = Console(stderr=True)
        # 80 columns hold both lines.
        bars = (TextColumn("{task.description:<17}"), BarColumn(12), MofNCompleteColumn())
        text = " ".join(f"{name} {{task.fields[{name}]:.3f}}" for name in ("loss", "score"))
        text += " temperature {task.fields[temperature]:.3f}"
        self.work = Progress(*bars, TimeElapsedColumn(), console=console)
        self.training = Progress(*bars, TextColumn(text), console=console)
        self.pieces, self.begun = self.work.add_task("", total=pieces), 0
        empty: dict[str, Any] = {"loss": 0.0, "score": 0.0, "temperature": 1.0}
        self.steps = self.training.add_task("training", total=steps, visible=False, **empty)
        self.live = Live(Group(self.work, self.training), console=console, transient=True)
        self.lines = _Lines(console)

    def __enter__(self) -> TwoBars:
        starting.over()
        self.live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.__exit__(None, None, None)

    def begin(self, what: str, *, trains: bool) -> None:
        self.work.update(self.pieces, description=what, completed=self.begun)
        self.begun += 1
        self.lines.tell(self.work.tasks[0])
        if trains:
            self.training.update(self.steps, visible=True, completed=0)

    def end(self) -> None:
        self.work.update(self.pieces, completed=self.begun)

    def trained(self, step: int, loss: float, score: float, temperature: float) -> None:
        now: dict[str, Any] = {"loss": loss, "score": score, "temperature": temperature}
        self.training.update(self.steps, completed=step, **now)


def _check_streams() -> None:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  open until the end
    if sys.stdout is None:
        raise InputError(
            "standard output is closed; redirect it to /dev/null if you do not need it"
        )
    sys.stdout, sys.stderr = _whole(sys.stdout), _whole(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        # A character missing from the terminal's encoding must not stop the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _whole(stream: Any) -> Any:
    """Return a stream that writes all it is given, or raises.

    With PYTHONUNBUFFERED, Python hands everything to the system in one call and ignores how much of
    it that took.
    """
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        return stream
    return open(raw.fileno(), "w", 1, stream.encoding, closefd=False)


def _say(message: str, status: int) -> int:
    return _tell(f"kofn: {' '.join(message.split())}", status)


def _tell(text: str, status: int) -> int:
    try:
        typer.echo(text, err=True)
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    return status


def _say_usage(error: Any) -> int:
    message = error.format_message()
    if "\n" in message:  # a group called without a subcommand: the message is its help text
        return _tell(message, REFUSED)
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context else ""
    own = OTHERS.get(getattr(error, "option_name", None) or "")
    if context and own in {name for each in context.command.params for name in each.opts}:
        message = f"{error.message}; you may mean {own}"  # Click would look for a name alike
    return _say(f"{message.rstrip('.')}{hint}", REFUSED)


def _say_memory(error: Exception) -> int:
    reason = " ".join(str(error).split())
    return _say(f"not enough memory{': ' if reason else ''}{reason[:120]}", FAILED)


def _say_system(error: OSError) -> int:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return _say(f"{_files.shortened(os.fsdecode(error.filename))}: {reason}", FAILED)
    if error.errno not in OF_OUTPUT:  # errors of writing to a stream carry no file name
        return _say(reason, FAILED)
    _discard(sys.stdout)
    return _say(f"cannot write to standard output: {reason}", FAILED)


def _discard(stream: Any) -> None:
    """Discard what a stream holds, which would raise an error when Python exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
