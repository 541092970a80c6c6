"""A lock by the name of a file, so that two runs do not write it at once.

It is an empty file `.NAME.lock` beside it while a run lasts, locked for as long as the process
lives. A file of that name that was there before is locked, too, but never removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

flock: Any = None
with contextlib.suppress(ImportError):  # Windows, where nothing is locked
    from fcntl import LOCK_EX, LOCK_NB, flock

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


class Taken(Exception):
    """A lock that cannot be had; the one-line message says why."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file.

    Raises:
        Taken: another process has it, or a file that is no lock has its name.
    """
    if flock is None:
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    handle, made = -1, False
    try:
        while handle < 0:
            handle, made = _taken(lock, path)
        yield
    finally:
        if made:
            lock.unlink(missing_ok=True)
        if handle >= 0:
            os.close(handle)


def _taken(lock: Path, path: Path) -> tuple[int, bool]:
    """Return the locked file and whether it was made here; -1 if it has gone meanwhile."""
    made = False
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666)
        made = True
    except FileExistsError:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_NONBLOCK | NOFOLLOW)
        except FileNotFoundError:
            return -1, False
        except OSError:
            raise Taken(_foreign(lock)) from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size:
            raise Taken(_foreign(lock))
        if not _is_free(handle):
            made = False
            raise Taken(f"another run of kofn is writing {path}; wait for it, or change --out")
        # Whoever had it may have removed it before this process locked it.
        if os.path.lexists(lock) and os.path.samestat(about, os.lstat(lock)):
            return handle, made
    except BaseException:
        if made:
            lock.unlink(missing_ok=True)
        os.close(handle)
        raise
    os.close(handle)
    return -1, False


def _is_free(handle: int) -> bool:
    try:
        flock(handle, LOCK_EX | LOCK_NB)
    except OSError as error:  # a file system without locks lets everyone write
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _foreign(lock: Path) -> str:
    return f"{lock} is in the way, which is no lock of kofn; move it away"
