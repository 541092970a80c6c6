"""What is saved from time to time, so that --resume continues a study."""

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
VERSION = 3


class Checkpoint:
    """The finished work, kept in memory and saved to disk from time to time."""

    def __init__(self, out: Path, settings: Settings) -> None:
        self.out, self.settings = out, settings
        self.finished: list[dict[str, Any]] = []
        self.current: dict[str, Any] | None = None
        self.written = -math.inf
        self.fresh = False

    @property
    def path(self) -> Path:
        return self.out / CHECKPOINT

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
        torch.save({"version": VERSION, "settings": vars(self.settings), **work}, buffer)
        files.write(self.out, {CHECKPOINT: buffer.getvalue()}, force=True)
        self.written, self.fresh = time.monotonic(), False

    def read(self) -> None:
        """Load the checkpoint of an earlier run; InputError unless its settings are the same."""
        path = self.path
        if not path.is_file():
            raise InputError(f"--resume needs {path}, which does not exist")
        try:
            # Load tensors and plain values only, so that an untrusted file runs no code.
            found = torch.load(path, weights_only=True)
            version, settings = found["version"], found["settings"]
            finished, current = found["finished"], found["current"]
        except Exception as error:
            reason = " ".join(str(error).split())[:80] or type(error).__name__
            raise InputError(f"{path} is not a checkpoint: {reason}") from None
        if version != VERSION:
            raise InputError(f"{path} has version {version}; these studies read version {VERSION}")
        for name, wanted in vars(self.settings).items():
            if settings.get(name) != wanted:
                raise InputError(
                    f"{path} was made with {name} = {settings.get(name)!r}, not {wanted!r}; "
                    "--resume needs the same options"
                )
        self.finished, self.current = finished, current
        self.written = 0.0
