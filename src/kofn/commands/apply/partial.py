"""An .npy file that is written block by block, and can be continued after an interrupt.

FILE.npy.partial grows beside the file it is to become, and FILE.npy.progress says how far it is,
what the scores were, and which options were given.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kofn.commands import files
from kofn.commands.files import InputError, OutputError, shortened

BETWEEN_RECORDS = 5.0  # seconds
VERSION = 1


class Partial:
    """The file to be, with weights in C order."""

    def __init__(self, out: Path, shape: tuple[int, ...], dtype: np.dtype, settings: Any) -> None:
        self.out, self.shape, self.dtype, self.settings = out, shape, dtype, settings
        self.path = out.with_name(f"{out.name}.partial")
        self.record_path = out.with_name(f"{out.name}.progress")
        self.next_record = out.with_name(f".{out.name}.progress")
        self.done = 0
        self.state: Any = None
        self.force = False
        self.recorded = -math.inf
        self.lock = threading.Lock()

    def begin(self, force: bool) -> None:
        """Start anew; InputError if there is an interrupted run."""
        # Without its record, nobody can continue the file.
        if self.path.exists() and self.record_path.exists() and not force:
            raise InputError(
                f"{self.path} belongs to an interrupted run; add --resume to continue it, or "
                "--force to start anew"
            )
        self.force = force
        form = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        try:
            self.record_path.unlink(missing_ok=True)  # of the run that this one replaces
            self.file: Any = open(self.path, "wb", buffering=0)  # noqa: SIM115  open to the end
        except OSError as error:
            raise files.unwritten(self.out, error) from None
        try:
            np.lib.format.write_array_header_1_0(self.file, {**form, "shape": self.shape})
        except OSError as error:
            self.discard()
            raise files.unwritten(self.out, error) from None
        self.offset = self.file.tell()

    def resume(self) -> None:
        """Continue an interrupted run; InputError unless scores and options are the same.

        A run that was killed before it noted how far it was starts anew.
        """
        if self.path.exists() and not self.record_path.exists():
            files.check_out(self.out.parent, [self.out.name], force=False)
            self.begin(force=False)
            return
        try:
            found = json.loads(self.record_path.read_text())
            settings, done, state = found["asked"], found["done"], found["state"]
            offset, version = found["offset"], found["version"]
            size = self.path.stat().st_size
        except FileNotFoundError as error:
            name = shortened(error.filename)
            raise InputError(f"--resume needs {name}, which does not exist") from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self.record_path} is damaged; --force starts anew") from None
        if version != VERSION:
            raise InputError(
                f"{self.record_path} was written by another version of kofn; --force starts anew"
            )
        self.force = bool(found.get("force"))
        if self.out.exists() and not self.force:
            raise InputError(f"--out {self.out} exists; move it away to continue the run")
        for name, wanted in self.settings.items():
            if settings.get(name) != wanted:
                raise InputError(_differs(self.record_path, name, settings.get(name), wanted))
        if size < offset + done * self.dtype.itemsize:
            raise InputError(f"{self.path} is shorter than it was; --force starts anew")
        self.file = open(self.path, "r+b", buffering=0)  # noqa: SIM115
        self.offset, self.done, self.state = offset, done, state

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
            self.record()
            stop.args = (f"--resume continues {self.path}",)
            raise
        except OSError as error:
            with contextlib.suppress(OSError):  # a full disk may hold this much
                self.record()
            if not self.record_path.exists():
                self.discard()
                raise files.unwritten(self.out, error) from None
            raise OutputError(
                f"--out {shortened(self.out)} cannot be written: {error.strerror or error}; "
                f"--resume continues {shortened(self.path)}"
            ) from None
        finally:
            self.file.close()

    def write(self, start: int, values: np.ndarray) -> None:
        """Write weights from an entry on; threads may call this at once."""
        packed: Any = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8)
        data = memoryview(packed)
        place = self.offset + start * self.dtype.itemsize
        with self.lock:
            self.file.seek(place)
            while data:
                data = data[self.file.write(data) :]

    def reached(self, done: int, state: Any) -> None:
        """Note how many entries are written, on disk from time to time."""
        self.done, self.state = done, state
        if time.monotonic() - self.recorded > BETWEEN_RECORDS:
            self.record()

    def record(self) -> None:
        """Save how far the file is, once that much is on disk."""
        if not self.file.closed:  # `finish` closes it once all of it is on disk
            os.fsync(self.file.fileno())
        known = {"version": VERSION, "asked": self.settings, "done": self.done, "state": self.state}
        text = json.dumps({**known, "offset": self.offset, "force": self.force})
        self.next_record.write_text(text)
        os.replace(self.next_record, self.record_path)
        self.recorded = time.monotonic()

    def finish(self) -> None:
        """Give the file its name."""
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.path, self.out)
        self.record_path.unlink(missing_ok=True)
        files.WRITTEN.append(self.out)

    def discard(self) -> None:
        """Remove what was written: the scores cannot be used."""
        self.file.close()
        for path in (self.path, self.record_path, self.next_record):
            path.unlink(missing_ok=True)


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
