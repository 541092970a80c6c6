"""The errors of a command, which end it with one line."""

from __future__ import annotations

import errno
from pathlib import Path

OF_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)
"""Errors of writing that another option would not mend."""


class InputError(ValueError):
    """An unusable input of the user; the one-line message names the allowed ones."""


class OutputError(Exception):
    """A failure of the system while it wrote; the one-line message names the files left."""


def unwritten(
    out: Path, error: OSError, left: str = "nothing was written"
) -> InputError | OutputError:
    """Return the error of a file that could not be written, which names the files `left`."""
    text = f"--out {shortened(out)} cannot be written: {error.strerror or error}"
    if error.errno in OF_OUTPUT or left != "nothing was written":
        return OutputError(f"{text}; {left}")
    return InputError(text)


def shortened(name: object, most: int = 120) -> str:
    """Shorten a very long name for a message or a title by cutting its middle."""
    text, half = str(name), most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"
