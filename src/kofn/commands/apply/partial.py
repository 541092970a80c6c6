"""An .npy file that is written block by block, and can be continued after an interrupt.

FILE.npy.partial grows beside the file it is to become, and FILE.npy.progress records how far it is,
the scores, and the options. The record is there first, so that a partial
file without one is somebody else's.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kofn.commands import files, starting
from kofn.commands.files import InputError, shortened
from kofn.commands.locks import NOFOLLOW

BETWEEN_RECORDS = 5.0  # seconds
VERSION = 2
MARK = re.compile(rb'\{"version": (\d+), "asked": \{"scores": \[')
"""The beginning of a record by any version of kofn. Other files may be somebody else's."""


class Partial:
    """The file to be, with weights in C order."""

    def __init__(self, out: Path, shape: tuple[int, ...], dtype: np.dtype, settings: Any) -> None:
        self.out, self.shape, self.dtype, self.settings = out, shape, dtype, settings
        self.path, self.record_path = (out.with_name(name) for name in names(out)[1:])
        form = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {**form, "shape": shape})
        self.header = header.getvalue()
        self.file: Any = None
        self.done = 0
        self.state: Any = None
        self.force = False
        self.recorded = -math.inf
        self.lock = threading.Lock()

    def begin(self, force: bool) -> None:
        """Start again; InputError if there is an interrupted run, or somebody else's file."""
        version = self._version()
        if os.path.lexists(self.path):
            if version is None or not _is_file(self.path):
                raise InputError(_foreign(self.path))
            if not force:
                raise InputError(
                    f"{self.path} belongs to an interrupted run; add --resume to continue it, or "
                    "--force to start anew"
                )
        self.force = force
        try:
            self.path.unlink(missing_ok=True)
            self.record_path.unlink(missing_ok=True)
            files.replace(self.record_path, self._record(), may_replace=False)
            try:
                self.file = files.create(self.path, buffering=0)
                self._write(self.header)
            except BaseException:
                self.discard()
                raise
        except OSError as error:
            raise files.unwritten(self.out, error) from None

    def resume(self) -> None:
        """Continue an interrupted run; InputError unless scores and options are the same.

        A run that was killed before it wrote anything starts again.
        """
        saved = self._read()
        if saved["version"] != VERSION:
            raise InputError(
                f"{self.record_path} was written by another version of kofn; --force starts anew"
            )
        self.force = saved["force"]
        if os.path.lexists(self.out) and not self.force:
            raise InputError(f"--out {self.out} exists; move it away to continue the run")
        for name, wanted in self.settings.items():
            if saved["asked"].get(name) != wanted:
                raise InputError(_differs(self.record_path, name, saved["asked"].get(name), wanted))
        if not os.path.lexists(self.path) and saved["done"] == 0:
            self.begin(self.force)
            return
        self.file = self._opened()
        if os.fstat(self.file.fileno()).st_size < self._place(saved["done"]):
            raise InputError(f"{self.path} is shorter than it was; --force starts anew")
        if self.file.read(len(self.header)) != self.header:
            raise InputError(f"{self.path} is damaged; --force starts anew")
        self.done, self.state = saved["done"], saved["state"]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Give the file its name in the end; keep what there is of it if that is of use."""
        try:
            yield
            self.finish()
        except InputError:  # the scores cannot be used
            self.discard()
            raise
        except KeyboardInterrupt as stop:
            if self.path.exists():  # otherwise it has its name
                with contextlib.suppress(OSError):  # the record before says less, but is right
                    self.record()
                stop.args = (f"--resume continues {self.path}",)
            raise
        except OSError as error:
            with contextlib.suppress(OSError):  # a full disk may hold this much
                self.record()
            left = f"--resume continues {shortened(self.path)}"
            raise files.unwritten(self.out, error, left) from None
        finally:
            self.file.close()

    def write(self, start: int, values: np.ndarray) -> None:
        """Write weights from an entry on; threads may call this at once."""
        packed = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8)
        with self.lock:
            self.file.seek(self._place(start))
            self._write(packed)

    def reached(self, done: int, state: Any) -> None:
        """Note how many entries are written, on disk from time to time."""
        self.done, self.state = done, state
        if time.monotonic() - self.recorded > BETWEEN_RECORDS:
            self.record()

    def record(self) -> None:
        """Save how far the file is, once that much is on disk."""
        if not self.file.closed:  # `finish` closes it once all of it is on disk
            os.fsync(self.file.fileno())
        files.replace(self.record_path, self._record())
        self.recorded = time.monotonic()

    def finish(self) -> None:
        """Give the file its name."""
        os.fsync(self.file.fileno())
        self.file.close()
        with starting.deferred():
            files.place(self.path, self.out, self.force)
            self.record_path.unlink(missing_ok=True)
            files.WRITTEN.append(self.out)

    def discard(self) -> None:
        """Remove what was written: the scores cannot be used."""
        if self.file is not None:
            self.file.close()
            self.path.unlink(missing_ok=True)
        self.record_path.unlink(missing_ok=True)

    def _place(self, entry: int) -> int:
        """Return where an entry is in the file."""
        return len(self.header) + entry * self.dtype.itemsize

    def _write(self, content: Any) -> None:
        data = memoryview(content)
        while data:
            data = data[self.file.write(data) :]

    def _record(self) -> bytes:
        known = {"version": VERSION, "asked": self.settings, "done": self.done, "state": self.state}
        known |= {"force": self.force}
        return json.dumps({**known, "digest": _digest(known)}).encode()

    def _read(self) -> dict[str, Any]:
        """Return the record; InputError if it is not as it was written."""
        if self._version() is None:
            name = shortened(self.record_path)
            raise InputError(f"--resume needs {name}, which does not exist")
        try:
            record = json.loads(self.record_path.read_bytes())
            if record["version"] == VERSION and record.pop("digest") != _digest(record):
                raise ValueError("a digest that is another's")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(f"{self.record_path} is damaged; --force starts anew") from None
        except OSError as error:
            raise InputError(f"{self.record_path} cannot be read: {error.strerror}") from None
        return record

    def _version(self) -> int | None:
        """Return the version of kofn's record, None if there is none.

        Raises:
            InputError: there is a file that is no record.
        """
        if not os.path.lexists(self.record_path):
            return None
        with contextlib.suppress(OSError):
            if _is_file(self.record_path):
                with open(self.record_path, "rb") as file:
                    match = MARK.match(file.read(64))
                if match is not None:
                    return int(match[1])
        raise InputError(_foreign(self.record_path))

    def _opened(self) -> Any:
        """Return the partial file, to continue it."""
        if not os.path.lexists(self.path):
            name = shortened(self.path)
            raise InputError(f"--resume needs {name}, which does not exist")
        if not _is_file(self.path):
            raise InputError(_foreign(self.path))
        try:
            return os.fdopen(os.open(self.path, os.O_RDWR | NOFOLLOW), "r+b", 0)
        except OSError as error:
            raise InputError(f"{self.path} cannot be continued: {error.strerror}") from None


def names(out: Path) -> list[str]:
    """Return the names of all files of a run: the last, the partial one and its record."""
    return [out.name, f"{out.name}.partial", f"{out.name}.progress"]


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(os.lstat(path).st_mode)


def _foreign(path: Path) -> str:
    return f"{shortened(path)} is in the way, which is not of kofn; move it away, or change --out"


def _digest(known: dict[str, Any]) -> str:
    """Return what tells a record from one in which anything has changed."""
    text = json.dumps(known, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _differs(path: Path, name: str, was: Any, wanted: Any) -> str:
    if name == "scores":
        return f"the scores have changed since {path} was written; --force starts anew"
    return (
        f"{path} was begun with {name} = {was!r}, not {wanted!r}; --resume needs the same options"
    )


def identity(path: str) -> list[Any]:
    """Return what tells a file from others: size, time of change and a digest of some of it."""
    about = os.stat(path)
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        for place in range(0, about.st_size, max(about.st_size // SAMPLES, SAMPLE)):
            file.seek(place)
            digest.update(file.read(SAMPLE))
    return [about.st_size, about.st_mtime_ns, digest.hexdigest()]


SAMPLES, SAMPLE = 64, 4096  # how many are read, and how many bytes each
