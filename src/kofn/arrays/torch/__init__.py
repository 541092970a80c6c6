"""PyTorch's part of the array code; nothing here is imported before PyTorch is.

A part that rooms without PyTorch use, such as `torch.state`, is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kofn.arrays.torch import dtensors as dtensors
    from kofn.arrays.torch import jagged as jagged
    from kofn.arrays.torch import state as state


def __getattr__(name: str) -> Any:
    if name in ("dtensors", "jagged", "state"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
