"""Marks functions for torch.compile by its public function; imported after the compiler."""

from __future__ import annotations

import torch

from kofn.arrays.torch.marked import MARKED

for _function in MARKED:
    _marked = torch.compiler.assume_constant_result(_function)  # type: ignore[no-untyped-call]
    _function.__globals__[_function.__name__] = _marked
