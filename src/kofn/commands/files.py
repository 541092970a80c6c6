"""Writing of result files: complete or not at all; existing files only with --force."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

WRITTEN: list[Path] = []
"""The files that this process has written, whole, with all that belong to them."""


OF_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)
"""Errors of writing that another option would not mend."""


class InputError(ValueError):
    """An unusable input of the user; the one-line message says what is allowed."""


class OutputError(Exception):
    """A failure of the system while it wrote; the one-line message says what is left."""


def unwritten(out: Path, error: OSError) -> InputError | OutputError:
    """Return the error of a file that could not be written, of which nothing is left."""
    text = f"--out {shortened(out)} cannot be written: {error.strerror or error}"
    if error.errno in OF_OUTPUT:
        return OutputError(f"{text}; nothing was written")
    return InputError(text)


def chosen_out(
    out: Path | None, usual: str, names: Iterable[str], force: bool, as_json: bool
) -> Path | None:
    """Return the checked directory for the results; None with --json and without --out."""
    if out is None and as_json:
        return None
    out = Path(usual) if out is None else out
    check_out(out, names, force)
    return out


def check_out(out: Path, names: Iterable[str], force: bool) -> None:
    """Raise InputError before any work starts if the results cannot be written to `out`."""
    try:
        _check_out(out, names, force)
    except OSError as error:  # for example, a name that is too long
        name = shortened(error.filename or out)
        raise InputError(f"--out {name} cannot be written: {error.strerror}") from None


def shortened(name: object, most: int = 120) -> str:
    """Shorten a very long name for a message or a title by cutting its middle."""
    text, half = str(name), most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"


def read_bytes(path: Path, needed: str, done: str) -> bytes:
    """Read a file; an InputError names what cannot be `done` and what is `needed`."""
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
        raise InputError(f"{out / taken[0]} exists; add --force to overwrite it, or change --out")
    parent = out
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"--out {out} cannot be written: no permission in {parent}")


def write(
    out: Path, contents: dict[str, bytes], force: bool, option: Path | None = None
) -> list[Path]:
    """Write every file to `out`, each complete or not at all; return their paths.

    An error names the value of --out: `option`, if that is not the folder.

    The bytes go to temporary files in the same directory first; these are renamed only when all
    of them are on disk.
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
            os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner can read
        while waiting:
            os.replace(*waiting[0])
            waiting.pop(0)
        written = [out / name for name in contents]
        WRITTEN.extend(written)
        return written
    except OSError as error:
        raise unwritten(option or out, error) from None
    finally:
        for temporary, _ in waiting:
            Path(temporary).unlink(missing_ok=True)
