"""Results on disk: whole or not at all, and nothing overwritten that was not told to be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

WRITTEN: list[Path] = []
"""The files that this process has written, whole, with all that belong to them."""


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one line and says what can."""


def check_out(out: Path, names: Iterable[str], force: bool) -> None:
    """Raise InputError, before any work, if the results could not be written to `out`."""
    try:
        _check_out(out, names, force)
    except OSError as error:  # such as a name that is too long
        name = shortened(error.filename or out)
        raise InputError(f"--out {name} cannot be written: {error.strerror}") from None


def shortened(name: object, most: int = 120) -> str:
    """A name for a message or a title: cut in the middle where it is very long."""
    text, half = str(name), most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"


def read_bytes(path: Path, needed: str, done: str) -> bytes:
    """What a file holds; where it cannot be `done` with, InputError says which is `needed`."""
    name = shortened(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"no such file: {name}") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a directory; {needed} is needed") from None
    except OSError as error:
        raise InputError(f"{name} cannot be {done}: {error.strerror or error}") from None


def _check_out(out: Path, names: Iterable[str], force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; a directory is needed")
    taken = [name for name in names if (out / name).exists()]
    if taken and not force:
        raise InputError(f"{out / taken[0]} exists; --force overwrites it, --out puts it elsewhere")
    parent = out
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"--out {out} cannot be written: no permission in {parent}")


def write(out: Path, contents: dict[str, bytes], force: bool) -> None:
    """Put every file into `out`, each whole or not at all.

    The bytes go to temporary files beside their destination first; only when all are on disk does
    each take its name.
    """
    check_out(out, contents, force)
    waiting: list[tuple[str, Path]] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=out)
            waiting.append((temporary, out / name))
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp keeps its files to their owner
        while waiting:
            os.replace(*waiting[0])
            waiting.pop(0)
        WRITTEN.extend(out / name for name in contents)
    except OSError as error:
        raise InputError(
            f"--out {shortened(out)} cannot be written: {error.strerror or error}"
        ) from None
    finally:
        for temporary, _ in waiting:
            Path(temporary).unlink(missing_ok=True)
