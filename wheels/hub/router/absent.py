"""Packages that the kernel does not import. Whoever passes their arrays has imported them."""

import sys
from types import ModuleType
from typing import Any


class Absent(ModuleType):
    """A package that nobody has imported: of its classes there are no instances."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__new__": _refuse})
        setattr(self, name, made)
        return made


def _refuse(of: type, *_: Any, **__: Any) -> Any:
    raise ImportError(
        f"{of.__name__} is of a package that this kernel, for tensors, does not import"
    )


def package(name: str) -> Any:
    """Return a package if it has been imported, else one without instances."""
    return sys.modules.get(name) or Absent(name)
