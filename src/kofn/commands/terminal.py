"""How every subcommand meets the terminal: its output, its progress, and the one way it ends.

A command does its work and raises; here the exception becomes one line on standard error and an
exit status: 2 for what the user can change, 1 for what the system refused, 128 + the signal for an
interrupt. A bug keeps its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from typer.core import TyperGroup

from kofn.commands import files as _files
from kofn.commands.files import InputError

FAILED, REFUSED, INTERRUPTED, TERMINATED = 1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM

# Errors of writing to a stream, which carry no name of a file.
OF_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)

# How PyTorch, and the loader of a shared library, say that memory is short.
OF_MEMORY = ("allocate memory", "failed to map segment")

# Typer brings a copy of click of its own from version 0.26 on.
UsageError: Any = typer.BadParameter.__mro__[2]


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is answered as an interrupt is: clean up, say so, end."""


class Guarded(TyperGroup):
    """The root of a command line, with one end for all its subcommands."""

    def main(self, args: Any = None, prog_name: Any = None, *_: Any, **__: Any) -> NoReturn:
        """Run the command and exit."""

        def work() -> None:
            given = sys.argv[1:] if args is None else list(args)
            with self.make_context(prog_name or "kofn", given) as context:
                self.invoke(context)

        sys.exit(status_of(work))


def status_of(work: Callable[[], object]) -> int:
    """Do the work; its exit status, once what went wrong has been said in one line."""
    written = len(_files.WRITTEN)
    try:
        _check_streams()
        status = 0
        try:
            work()
        except typer.Exit as end:
            status = end.exit_code
        # Here, where a full disk can still be told; when Python ends it could not.
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _say_usage(error)
    except InputError as error:
        return _say(str(error), REFUSED)
    except KeyboardInterrupt as stop:
        what = "terminated" if isinstance(stop, Terminated) else "interrupted"
        left = str(stop) or ("" if len(_files.WRITTEN) > written else "nothing was written")
        status = TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
        return _say(f"{what}; {left}" if left else what, status)
    except BrokenPipeError:  # as with `| head`: whoever read has read enough
        _discard_output()
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
    """Check KOFN_KERNELS, and say on standard error when kernels are compiled, if they are.

    Nothing is said where they are found on disk, as in every later run.

    Raises:
        InputError: KOFN_KERNELS in the environment says what there is not.
    """
    from kofn import kernels

    try:
        kernels.wanted()
    except ValueError as error:
        raise InputError(str(error)) from None
    _tell_of_compiling()


@cache
def _tell_of_compiling() -> None:
    """Once for as long as nothing is compiled."""
    try:
        from numba.core import event
    except ImportError:  # without Numba there is nothing to compile
        return

    class Teller(event.Listener):
        def on_start(self, _: Any) -> None:
            event.unregister("numba:run_pass", self)  # type: ignore[no-untyped-call]
            _tell_of_compiling.cache_clear()
            _say("compiling for this machine, once; this may take a minute", 0)

        def on_end(self, _: Any) -> None:
            pass

    event.register("numba:run_pass", Teller())  # type: ignore[no-untyped-call]


def end_on_sigterm() -> None:
    """Let SIGTERM unwind the stack, so that no temporary file stays behind."""

    def stop(number: int, frame: object) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


def printed(*parts: Any, files: Any = ()) -> None:
    """Print to standard output, and then which files were written."""
    console = Console(highlight=False)
    for part in parts:
        console.print(part)
    for path in files:
        console.print(f"Wrote {escape(str(path))}", soft_wrap=True)


@contextlib.contextmanager
def bar(total: int, width: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """A bar on standard error, gone at the end; yields its `update`."""
    columns = (BarColumn(width), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    progress = Progress(*columns, TextColumn("{task.description}"), console=console)
    # Alone, a Progress would end with an empty line where there is no terminal.
    with Live(progress, console=console, transient=True):
        yield partial(progress.update, progress.add_task("", total=total, completed=done))


@contextlib.contextmanager
def progress_bar(pieces: int) -> Iterator[Callable[[str], None]]:
    """A `bar` that yields what to call before each piece of work."""
    with bar(pieces, 20, -1) as update:
        yield lambda name: update(advance=1, description=escape(name))


def chosen(name: str, values: list[str] | None, allowed: dict[str, Any]) -> list[Any]:
    """What the names given to an option stand for; everything where none is given."""
    unknown = [value for value in values or () if value not in allowed]
    if unknown:
        raise InputError(f"--{name} must be one of {', '.join(allowed)}; got {unknown[0]!r}")
    return [allowed[value] for value in values or allowed]


def at_least(name: str, value: int, low: int) -> None:
    """Raise InputError if the value of an option is too small."""
    if value < low:
        raise InputError(f"--{name} must be at least {low}; got {value}")


def check_seed(seed: int) -> None:
    """Raise InputError unless NumPy and scikit-learn take the seed."""
    at_least("seed", seed, 0)
    if seed >= 2**31:
        raise InputError(f"--seed must be below 2147483648; got {seed}")


def _check_streams() -> None:
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  open until the end
    if sys.stdout is None:
        raise InputError("standard output is closed; send it to /dev/null if you do not need it")
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is no reason to stop.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _say(message: str, status: int) -> int:
    with contextlib.suppress(OSError):
        typer.echo(f"kofn: {' '.join(message.split())}", err=True)
    return status


def _say_usage(error: Any) -> int:
    message = error.format_message()
    if "\n" in message:  # a command without its subcommand: the help itself
        typer.echo(message, err=True)
        return REFUSED
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context else ""
    return _say(f"{message.rstrip('.')}{hint}", REFUSED)


def _say_memory(error: Exception) -> int:
    reason = " ".join(str(error).split())
    return _say(f"not enough memory{': ' if reason else ''}{reason[:120]}", FAILED)


def _say_system(error: OSError) -> int:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return _say(f"{_files.shortened(os.fsdecode(error.filename))}: {reason}", FAILED)
    if error.errno not in OF_OUTPUT:
        return _say(reason, FAILED)
    _discard_output()
    return _say(f"standard output cannot be written: {reason}", FAILED)


def _discard_output() -> None:
    """Send what is still buffered nowhere; Python would complain about it when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
