"""Rows of k-subsets in a GPU's memory: the launches for each, as in launch.py."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from kofn.kernels import contract
from kofn.kernels.gpu import launcher
from kofn.kernels.gpu.rows import launch
from kofn.kernels.gpu.subsets import programs


def evaluate(what: int, z: Tensor, k: Tensor, v: Tensor | None = None) -> Tensor:
    """`log_count`, `tails` or `covariance` of kofn.subsets.quadrature."""
    zero = torch.zeros_like(k)
    return at(what, z, zero, zero, k, v)


def at(what: int, y: Tensor, hi: Tensor, lo: Tensor, k: Tensor, v: Tensor | None = None) -> Tensor:
    """Return the same for logits y and their threshold; rows that need none: hi = ±∞ or NaN."""
    y, hi, lo, k = (launch.packed(a) for a in (y, hi, lo, k))
    v = y if v is None else launch.packed(v)
    out = launch.empty(y, y.shape[:-1] if what == contract.LOG_COUNT else y.shape)
    n, count = y.shape[-1], prod(y.shape[:-1])
    if count == 0:
        return out
    part, parts, warps = shape_of(n)
    sums = launch.empty(k, (count, parts, programs.SUMS.value), torch.float64)
    grid, given = count * parts, programs.Given(y, v, hi, lo, k, sums, n, parts)
    lanes, options = 32 * warps, {"num_warps": warps, **OPTIONS}
    constants = part, max(LEAST, launch.power_of_2(parts)), lanes
    launcher.launch(programs.tally_parts, grid, given, (), (what, part, lanes), options)
    launcher.launch(programs.multiply_parts, grid, given, (), constants, options)
    if what == contract.COVARIANCE:
        launcher.launch(programs.others_parts, grid, given, (), constants, options)
    launcher.launch(programs.write_parts, grid, given, (out,), (what, *constants), options)
    return out


draw = None  # on a GPU the splits are array code, in subsets/sampling.py


PART = 2048  # coins to a program, in rows of up to 2¹⁸
LEAST = 16  # parts that are added up: fewer threads than that would each hold every node's sums
OPTIONS = {"enable_fp_fusion": True, "maxnreg": 168}  # without which the assembler spills some


def shape_of(n: int) -> tuple[int, int, int]:
    """Return (length, number) of the parts of a row, at most 128, and the warps for each."""
    part = max(PART, launch.power_of_2(n) // 128)
    return part, -(-n // part), 1 if n <= 256 else 4
