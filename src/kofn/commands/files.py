"""Files of commands: read, and written whole or not at all, without loss of what was there.

Every subcommand writes through `opened`. A name that exists, be it a link that leads nowhere, is
replaced only with --force, an input never; a link is replaced itself, not what it points to.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kofn.commands import starting
from kofn.commands.errors import OF_OUTPUT as OF_OUTPUT
from kofn.commands.errors import InputError as InputError
from kofn.commands.errors import OutputError as OutputError
from kofn.commands.errors import shortened as shortened
from kofn.commands.errors import unwritten as unwritten
from kofn.commands.locks import NOFOLLOW, Taken, locked

WRITTEN: list[Path] = []
"""The files that this process has written, whole, with all that belong to them; and OUTPUT."""

OUTPUT = Path("-")
"""Standard output, in WRITTEN once something has been written there."""

STDIN = "-"

_BINARY = getattr(os, "O_BINARY", 0)


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


def read_bytes(path: Path, needed: str, done: str) -> bytes:
    """Read a file; an InputError names the step that cannot be `done` and the `needed` input."""
    name = shortened(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"no such file: {name}") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a directory; {needed} is needed") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be {done}: {reason}") from None


def check_columns(columns: Sequence[str], name: str) -> None:
    """Raise InputError if the header of a table leaves a column without a name."""
    if "" in columns:
        number = columns.index("") + 1
        raise InputError(f"column {number} of {name} has no name (a saved index?); name or drop it")


class Outputs:
    """The results of a run: files in a folder that no other run writes meanwhile."""

    def __init__(self, folder: Path, force: bool, option: Path) -> None:
        self.folder, self.force, self.option = folder, force, option
        self.own: set[str] = set()
        """The names that this run has written."""

    def write(self, contents: dict[str, bytes]) -> list[Path]:
        """Write every file, each whole, or none; return their paths.

        The bytes go to temporary files in the same directory first; these get their names only
        when all of them are on disk.
        """
        waiting: list[tuple[Path, Path]] = []
        new: list[Path] = []
        written = [self.folder / name for name in contents]
        try:
            for path, content in zip(written, contents.values(), strict=True):
                waiting.append((_beside(path), path))
                with create(waiting[-1][0]) as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            with starting.deferred():
                for temporary, path in waiting:
                    may_replace = self.force or path.name in self.own
                    if not os.path.lexists(path):
                        new.append(path)
                    place(temporary, path, may_replace)
                self.own.update(contents)
                WRITTEN.extend(written)
            return written
        except OSError as error:
            for path in new:
                path.unlink(missing_ok=True)
            raise unwritten(self.option, error) from None
        finally:
            for temporary, _ in waiting:
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def opened(
    folder: Path,
    names: Iterable[str],
    force: bool,
    *,
    option: Path | None = None,
    source: str | Path | None = None,
    what: str = "the scores",
    beside: Iterable[str] = (),
) -> Iterator[Outputs]:
    """Yield the folder for results, which is made, and goes again if it stays empty.

    Args:
        folder: where the files go.
        names: of all files that are to be written; the first is locked.
        force: whether files of these names are replaced.
        option: the value of --out, if that is not the folder.
        source: the file that is read, or "-"; it is not replaced, even with --force.
        what: its content.
        beside: names of more files, which the caller takes care of.
    """
    names = list(names)
    check_out(folder, names, force)
    if source is not None:
        _spare(source, what, [folder / name for name in (*names, *beside)], option or folder)
    missing = _missing(folder)
    starting.over()
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, missing)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / names[0]))
        except Taken as taken:
            raise InputError(str(taken)) from None
        except OSError as error:
            raise unwritten(option or folder, error) from None
        check_out(folder, names, force)  # another run may have written them until now
        yield Outputs(folder, force, option or folder)


@contextlib.contextmanager
def results(
    out: Path | None,
    names: Iterable[str],
    force: bool,
    source: str | Path | None = None,
    what: str = "the scores",
) -> Iterator[Outputs | None]:
    """Yield the folder for results, as `opened` does; None without one."""
    if out is None:
        yield None
        return
    with opened(out, names, force, source=source, what=what) as to:
        yield to


def write(
    out: Path,
    contents: dict[str, bytes],
    force: bool,
    option: Path | None = None,
    source: str | Path | None = None,
) -> list[Path]:
    """Write every file to the folder `out`, as `opened` and `Outputs.write` do."""
    with opened(out, contents, force, option=option, source=source) as to:
        return to.write(contents)


def create(path: Path, buffering: int = -1) -> Any:
    """Open a new file for writing bytes; FileExistsError if there is anything of this name."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | _BINARY, 0o666)
    return os.fdopen(handle, "wb", buffering)


def place(temporary: Path, path: Path, may_replace: bool) -> None:
    """Give a file its name; FileExistsError if the name is taken and may not be replaced."""
    if not may_replace:
        try:
            os.link(temporary, path)  # unlike a rename, it replaces nothing
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                raise FileExistsError(17, os.strerror(17), str(path)) from None
        else:
            os.unlink(temporary)
            return
    os.replace(temporary, path)


def replace(path: Path, content: bytes, may_replace: bool = True) -> None:
    """Write one file that is no result, whole or not at all."""
    temporary = _beside(path)
    try:
        with create(temporary) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        place(temporary, path, may_replace)
    finally:
        temporary.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Return a name in the same folder that nobody can know before."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _check_out(out: Path, names: Iterable[str], force: bool) -> None:
    if os.path.lexists(out) and not out.is_dir():
        raise InputError(f"--out {out} is a file; a directory is needed")
    for path in (out / name for name in names):
        about = _about(path)
        if about is not None and stat.S_ISDIR(about.st_mode):
            raise InputError(f"{path} is a directory; move it away, or change --out")
        if os.path.exists(path) and not (path.is_file() or path.is_dir()):
            raise InputError(f"{path} is no file, but a device or a pipe; change --out")
        if about is not None and not force:
            raise InputError(f"{path} exists; add --force to overwrite it, or change --out")
    parent = out
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"--out {out} cannot be written: no permission in {parent}")


def _about(path: Path) -> os.stat_result | None:
    """Return what there is of this name, a link being a link; OSError if nobody can tell."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _spare(source: str | Path, what: str, paths: Iterable[Path], option: Path) -> None:
    """Raise InputError if a path leads to the source."""
    try:
        about = os.fstat(sys.stdin.fileno()) if str(source) == STDIN else os.stat(source)
    except (OSError, ValueError, AttributeError):  # there is none; reading says so
        return
    if any(os.path.exists(path) and os.path.samestat(about, os.stat(path)) for path in paths):
        name = "standard input" if str(source) == STDIN else shortened(source)
        raise InputError(
            f"--out {shortened(option)} would overwrite {what}, {name}; choose another"
        )


def _missing(folder: Path) -> list[Path]:
    """Return the folders on the way that do not exist, the deepest first."""
    every = [folder, *folder.parents]
    return [each for each in every if not os.path.lexists(each)]


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):  # the first that has something in it, or is not there
        for folder in folders:
            folder.rmdir()
