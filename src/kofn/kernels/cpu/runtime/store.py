"""Compiled code on disk, for later processes.

The folder is KOFN_CACHE_DIR, else NUMBA_CACHE_DIR, else the system's folder for such files. One
that cannot be read or written costs time, never a call. A file is checked before it is used, and is
put in its place in one step: several processes may fill the same folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
from pathlib import Path

_HEAD = b"kofn 1\n"
_BINARY = getattr(os, "O_BINARY", 0)  # Windows
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Return the folder, whether it exists or not."""
    for name in ("KOFN_CACHE_DIR", "NUMBA_CACHE_DIR"):
        if chosen := os.environ.get(name):
            return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser(r"~\AppData\Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "kofn-kernels")


def read(name: str) -> bytes | None:
    """Return what was written under this name, if it is whole."""
    try:
        found = (folder() / name).read_bytes()
    except (OSError, ValueError):
        return None
    start = len(_HEAD) + _DIGEST
    data = found[start:]
    whole = found[:start] == _HEAD + hashlib.sha256(data).digest()
    return data if whole else None


def write(name: str, data: bytes) -> bool:
    """Keep the data under this name; return whether that was possible."""
    path = folder() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Others may read it, unlike what `tempfile` makes.
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
    except (OSError, ValueError):
        return False
    try:
        with open(handle, "wb") as file:
            file.write(_HEAD + hashlib.sha256(data).digest() + data)
        os.replace(temporary, path)
    except BaseException as error:  # a full disk; an interrupt
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        return False
    return True
