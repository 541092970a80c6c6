"""Ctrl-C and SIGTERM: one line and an exit status, from the first import on.

Before a command has made anything, a signal ends it at once: raised as an exception while modules
are imported, it would leave a traceback, or be lost where the import system ignores errors. From
`over` on it is an exception, so that what was made is removed, or kept for --resume.

This module is imported before all others, and imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType
from typing import NoReturn

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like an interrupt: clean up, report, exit."""


def is_the_command() -> bool:
    """Return whether this process has been started as `kofn` or as `python -m kofn`."""
    first, typed = getattr(sys, "argv", [])[:1], sys.orig_argv
    if first == ["-m"]:  # while the package is imported; later it is the path of __main__.py
        return any(pair == ("-m", "kofn") for pair in pairwise(typed))
    name = os.path.basename(first[0]) if first and first[0] in typed else ""
    return name.removesuffix(".exe") == "kofn"


def begin() -> None:
    """Let a signal end this process at once, with a line, until `over` is called."""
    with contextlib.suppress(ValueError):  # a thread other than the main one has no signals
        for number in SIGNALS:
            # Signals that the parent process has told to be ignored stay so.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _end)


def over() -> None:
    """Let a signal raise an exception from now on; something is made that has to be removed."""
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _stop)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let signals wait until the end of the block, which is short."""
    waiting: list[int] = []
    before = {}
    with contextlib.suppress(ValueError):  # a thread other than the main one has no signals
        for number in SIGNALS:
            before[number] = signal.signal(number, lambda each, _: waiting.append(each))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came in waiting[:1]:
            signal.raise_signal(came)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    line = f"kofn: {SIGNALS[signal.Signals(number)]}; nothing was written\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
    os._exit(128 + number)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


if is_the_command():
    begin()
