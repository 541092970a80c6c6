"""A call that torch.compile leaves out of its graph; importing this imports the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable(  # type: ignore[no-untyped-call]
    reason="torch.compile cannot trace a torch.Generator; draw outside of it"
)
def call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
