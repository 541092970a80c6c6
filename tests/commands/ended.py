"""Commands in processes of their own, in what goes wrong: full disks, closed pipes, others at once.

Processes fork from one that has imported the commands, on Linux; elsewhere each imports them.
"""

import contextlib
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

import ranks

WITHIN = 300  # seconds


class Ended(NamedTuple):
    """How a command has ended."""

    status: int
    out: bytes
    error: str

    def lines(self):
        """What was said on standard error, without the bars that were there for a while."""
        return [line for line in self.error.splitlines() if line.strip()]


class Running:
    """A command in a process, which may wait at a place until it is told to go on."""

    def __init__(self, target, arguments, folder, **how):
        context = multiprocessing.get_context(ranks.START)
        context.set_forkserver_preload(ranks.PRELOADED)
        self.said = Path(tempfile.mkdtemp())
        self.ours, theirs = context.Pipe()
        given = theirs, target, arguments, str(folder), str(self.said), how
        self.process = context.Process(target=_run, args=given, daemon=True)
        self.process.start()
        theirs.close()

    def reached(self):
        """Whether it waits, and has not ended without."""
        with contextlib.suppress(EOFError):
            return bool(self.ours.poll(WITHIN)) and self.ours.recv() == "waits"
        return False

    def ended(self):
        with contextlib.suppress(OSError):
            self.ours.send("go on")
        self.process.join(WITHIN)
        out, error = ((self.said / name).read_bytes() for name in ("out", "err"))
        shutil.rmtree(self.said)
        return Ended(self.process.exitcode, out, error.decode())


def ended(target, arguments, folder, **how):
    """Run a command to its end.

    Args:
        target: a function of the arguments, which raises SystemExit.
        arguments: of the command.
        folder: where it runs.
        how: limit, bytes that a file may have, as on a full disk; unbuffered, as with
            PYTHONUNBUFFERED=1; out, what standard output is: "pipe", "file", or "closed", a pipe
            whose reader has left; waits, whether it waits before it writes a file.
    """
    return Running(target, arguments, folder, **how).ended()


def _run(pipe, target, arguments, folder, said, how):
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    copiers = [_copied(f"{said}/{name}", number) for number, name in ((1, "out"), (2, "err"))]
    if how.get("out") == "file":
        os.dup2(os.open(f"{said}/out", os.O_WRONLY), 1)
    elif how.get("out") == "closed":
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.close(reader)
    unbuffered = how.get("unbuffered", False)
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        binary = raw if unbuffered else io.BufferedWriter(raw)
        setattr(sys, name, io.TextIOWrapper(binary, "utf-8", write_through=unbuffered))
    sys.argv = ["kofn", *arguments]
    if how.get("waits"):
        sys.addaudithook(_waiting(pipe, folder))
    if "limit" in how:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (how["limit"], resource.RLIM_INFINITY))
    status = 70  # a bug, with a traceback
    try:
        target(arguments)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    try:
        sys.stdout.flush()  # as Python does in the end
    except (OSError, ValueError):
        status = 120
    for number in (1, 2):
        os.dup2(0, number)
    for copier in copiers:
        os.waitpid(copier, 0)
    os._exit(status)


def _copied(name, number):
    """Copy what is written to a descriptor to a file, in a process without a limit on files."""
    reader, writer = os.pipe()
    with open(
        name, "wb"
    ) as file:  # there from here on, as others may open it before the copier runs
        copier = os.fork()
        if copier == 0:
            os.close(writer)
            while data := os.read(reader, 1 << 16):
                file.write(data)
            file.flush()
            os._exit(0)
    os.close(reader)
    os.dup2(writer, number)
    os.close(writer)
    return copier


def _waiting(pipe, folder):
    """An audit hook that waits once, before a file in a folder is written that is no lock."""
    waits = [True]

    def hook(event, arguments):
        if not waits or event != "open" or not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        path = os.path.abspath(arguments[0])
        if path.startswith(folder) and not path.endswith(".lock"):
            waits.clear()
            pipe.send("waits")
            pipe.recv()

    return hook
