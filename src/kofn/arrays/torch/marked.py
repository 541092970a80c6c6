"""Functions that were marked as constant before torch.compile was imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MARKED: list[Callable[..., Any]] = []
