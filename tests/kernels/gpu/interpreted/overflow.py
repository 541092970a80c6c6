"""Sums of integers that have no room are seen: the interpreter's own check is replaced here."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def twice(x_at, out_at, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_at + i)
    tl.store(out_at + i, x + x)


@triton.jit
def squared_less_it(x_at, out_at, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_at + i)
    tl.store(out_at + i, x * x - x)


def test_a_sum_without_room_is_refused():
    for kernel, right, wrong in (
        (twice, 2**30 - 1, 2**30),
        (twice, -(2**30), -(2**30) - 1),
        (squared_less_it, 46_340, 46_341),
    ):
        x = torch.full((4,), right, dtype=torch.int32)
        out = torch.empty_like(x)
        kernel[(1,)](x, out, 4)
        assert out.tolist() == ([2 * right] * 4 if kernel is twice else [right * (right - 1)] * 4)
        with pytest.raises(InterpreterError, match="int32"):
            kernel[(1,)](x.fill_(wrong), out, 4)
