"""A CPU in place of a GPU: its tensors take the road of a GPU's, by Triton's interpreter.

The environment has to say TRITON_INTERPRET=1 before Triton is imported. Nothing of kofn knows that
this exists: what asks where a tensor is gets the answer of a GPU for as long as the context lasts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from kofn import kernels
from kofn.arrays import tracing
from kofn.arrays.kinds import is_torch
from kofn.arrays.torch import private

AT_ONCE = 1024
"""Rows of a program: the interpreter takes about as long for a thousand as for one."""


@contextlib.contextmanager
def for_device(rows: int = AT_ONCE) -> Iterator[None]:
    """Have float32 and half-precision CPU tensors served as a GPU's are."""
    from kofn.kernels import gpu
    from kofn.kernels.gpu import launcher
    from kofn.kernels.gpu.doubles import launch as of_doubles
    from kofn.kernels.gpu.rows import launch
    from kofn.kernels.gpu.rows.launch import shape_of

    at_hand = tracing.is_at_hand

    def is_at_hand(x: Any) -> bool:
        return not is_torch(x) and at_hand(x)

    def short(n: int) -> Any:
        shape = shape_of(n)
        return shape if shape.rows == 1 else shape._replace(rows=rows)

    def double(n: int) -> Any:
        return max(rows, doubles_of(n)[0]), *doubles_of(n)[1:]

    doubles_of = of_doubles.shape_of
    modules = [each for name, each in sys.modules.items() if name.startswith("kofn.")]
    with contextlib.ExitStack() as stack:
        for each in modules:
            if getattr(each, "is_at_hand", None) is at_hand:
                stack.enter_context(mock.patch.object(each, "is_at_hand", is_at_hand))
        for owner, name, value in (
            (kernels, "BACKENDS", _backends(gpu)),
            (gpu, "serves_doubles", lambda x, framework: _is_of(x, framework, "float64")),
            (launch, "shape_of", short),
            (of_doubles, "shape_of", double),
            (launcher, "device_of", lambda x: contextlib.nullcontext()),
            (private, "_dispatch_modes", lambda: 0),
            (torch.Tensor, "is_cpu", False),
            (torch.Tensor, "is_cuda", True),
        ):
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


def _backends(gpu: Any) -> tuple[kernels.Backend, ...]:
    """Return those of a GPU, which serve tensors wherever they are."""

    def serving(*served: str) -> Any:
        return lambda x, framework: _is_of(x, framework, *served)

    return tuple(
        each._replace(serves=serving(*(("float64",) if each.operations else gpu.SERVED)))
        for each in kernels.BACKENDS
        if each.rows.startswith(gpu.__name__)
    )


def _is_of(x: Any, framework: str, *dtypes: str) -> bool:
    return framework == "torch" and str(x.dtype).removeprefix("torch.") in dtypes
