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


@torch.compiler.disable(  # type: ignore[no-untyped-call]
    reason="kofn.distributed decides by numbers from all ranks how many messages a row needs, "
    "which torch.compile cannot trace; leave fullgraph out, or call it outside of compiled code"
)
def outside_of_graphs(function: Callable[..., Any], *arguments: Any, **others: Any) -> Any:
    return function(*arguments, **others)
