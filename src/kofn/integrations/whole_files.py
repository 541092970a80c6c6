"""Files of other libraries' formats, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


def write(folder: str | os.PathLike[str], contents: dict[str, bytes], overwrite: bool) -> None:
    """Write files to a folder, which is made if needed: all of them, or none.

    The bytes go to temporary files in the folder first, which are renamed when all are on disk.

    Raises:
        FileExistsError: a file is there already, or a link that leads nowhere, and `overwrite` is
            False.
    """
    out = Path(folder)
    taken = [out / name for name in contents if os.path.lexists(out / name)]
    if taken and not overwrite:
        raise FileExistsError(f"{taken[0]} exists; pass overwrite=True to replace it")
    out.mkdir(parents=True, exist_ok=True)
    waiting: list[tuple[str, Path]] = []
    try:
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
    finally:
        for temporary, _ in waiting:
            Path(temporary).unlink(missing_ok=True)


def required(entries: dict[str, Any], name: str, file: str) -> Any:
    """Return an entry of a file; ValueError names a missing one."""
    if name not in entries:
        raise ValueError(f"{file} has no {name!r}; it has {', '.join(map(repr, entries))}")
    return entries[name]
