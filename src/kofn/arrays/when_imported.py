"""Import a module of kofn as soon as another package has been imported.

Saved programs that use kofn's torch operators can be loaded once the operators are registered.
Importing kofn is enough, before or after PyTorch; without PyTorch it costs nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_after(name: str, ours: str) -> None:
    """Import module `ours` once module `name` is imported: now, or right after its import."""
    if name in sys.modules:
        _import(ours)
    else:
        sys.meta_path.insert(0, _Finder(name, ours))


class _Finder:  # no subclass: importing importlib.abc takes a third of kofn's import time
    """Finds `name` by the other finders, and imports `ours` after it has been loaded."""

    def __init__(self, name: str, ours: str) -> None:
        self.name, self.ours = name, ours

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        others = (f for f in [*sys.meta_path] if f is not self and hasattr(f, "find_spec"))
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_import(module: ModuleType) -> None:
                run(module)
                with contextlib.suppress(ValueError):  # another thread has removed it
                    sys.meta_path.remove(self)
                _import(self.ours)

            spec.loader.exec_module = run_and_import  # type: ignore[method-assign]
        return spec


def _import(ours: str) -> None:
    # `name` must import as if kofn were not there; kofn reports the error at its first call.
    with contextlib.suppress(Exception):
        importlib.import_module(ours)
