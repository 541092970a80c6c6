"""What is saved from time to time, so that --resume continues a study."""

import hashlib
import io
import math
import time
from pathlib import Path
from typing import Any

import torch

from kofn.commands import files
from kofn.commands.files import InputError
from studies.frame.options import Settings

BETWEEN_WRITES = 5.0  # seconds
CHECKPOINT = "checkpoint.pt"
VERSION = 4
KEY = f"checkpoint {VERSION}".encode()
DIGEST = 32
"""Bytes at the end that tell a checkpoint from one in which anything has changed."""


class Checkpoint:
    """The finished work, kept in memory and saved to disk from time to time."""

    def __init__(self, to: files.Outputs, settings: Settings) -> None:
        self.to, self.settings = to, settings
        self.finished: list[dict[str, Any]] = []
        self.current: dict[str, Any] | None = None
        self.written = -math.inf
        self.fresh = False

    @property
    def path(self) -> Path:
        return self.to.folder / CHECKPOINT

    def keep(self, current: dict[str, Any] | None) -> None:
        """Record a part; save if the last save is long ago or a run is finished."""
        self.current, self.fresh = current, True
        if current is None or time.monotonic() - self.written > BETWEEN_WRITES:
            self.write()

    def write(self) -> None:
        if not self.fresh:
            return
        buffer = io.BytesIO()
        work = {"finished": self.finished, "current": self.current}
        torch.save({"settings": vars(self.settings), **work}, buffer)
        self.to.write({CHECKPOINT: buffer.getvalue() + _digest(buffer.getvalue())})
        self.written, self.fresh = time.monotonic(), False

    def read(self) -> None:
        """Load the checkpoint of an earlier run; InputError unless its settings are the same."""
        path = self.path
        if not path.is_file():
            raise InputError(f"--resume needs {path}, which does not exist")
        content = files.read_bytes(path, "a checkpoint", "read")
        if content[-DIGEST:] != _digest(content[:-DIGEST]):
            raise InputError(
                f"{path} is not a checkpoint of these studies, which have version {VERSION}, or it "
                "is damaged; --force starts anew"
            )
        # Load tensors and plain values only, so that an untrusted file runs no code.
        found = torch.load(io.BytesIO(content[:-DIGEST]), weights_only=True)
        settings, finished, current = found["settings"], found["finished"], found["current"]
        for name, wanted in vars(self.settings).items():
            if settings.get(name) != wanted:
                raise InputError(
                    f"{path} was made with {name} = {settings.get(name)!r}, not {wanted!r}; "
                    "--resume needs the same options"
                )
        self.finished, self.current = finished, current
        self.written = 0.0


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, key=KEY, digest_size=DIGEST).digest()
