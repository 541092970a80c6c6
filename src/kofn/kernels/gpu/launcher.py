"""Launches of Triton's kernels without a search for the program, most of the time of a short call.

Triton looks up in every launch what its arguments are compiled for. Here its first launch with
arguments of a kind gives the program; the next ones call that, as Triton's users may.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from triton.compiler import CompiledKernel

_PROGRAMS: dict[tuple[Any, ...], CompiledKernel] = {}
_HERE = contextlib.nullcontext()
_ALIGNED = 15  # Triton takes multiples of 16 for granted, in addresses and numbers


def launch(
    kernel: Any,
    programs: int,
    given: tuple[Any, ...],
    arrays: tuple[Any, ...],
    constants: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """Launch kernel(given, *arrays, *constants), whose constants have the order of its parameters.

    The first of `given` is a tensor on the device that is to do it.
    """
    x = given[0]
    kinds = [kernel.fn, constants, *options.values(), x.get_device()]
    usual = _add_kinds(kinds, given) and _add_kinds(kinds, arrays)
    key = tuple(kinds)
    program = _PROGRAMS.get(key) if usual else None
    with device_of(x):
        if program is not None:
            program[programs, 1, 1](given, *arrays, *constants)
            return
        compiled = kernel[programs,](given, *arrays, *constants, **options)
    if usual and isinstance(compiled, CompiledKernel):  # of the interpreter it is none
        _PROGRAMS[key] = compiled


def _add_kinds(kinds: list[Any], arguments: Any) -> bool:
    """Add what a program depends on; return whether all addresses are aligned, as nearly always.

    Of a tensor that is its dtype. Of an integer it is whether Triton makes a constant of 1, knows
    that 16 divides it, and takes 32 bits.
    """
    for each in arguments:
        kind = type(each)
        if kind is float:
            kinds.append(kind)
        elif kind is int:
            kinds.append(1 if each == 1 else (each & _ALIGNED == 0, -(2**31) <= each < 2**31))
        elif isinstance(each, Tensor):
            if each.data_ptr() & _ALIGNED:
                return False
            kinds.append(each.dtype)
        elif not isinstance(each, tuple):
            kinds.append(kind)
        elif not _add_kinds(kinds, each):
            return False
    return True


def device_of(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make the tensor's device the current one, to which launches go."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device(x.device)
