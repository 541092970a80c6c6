"""Kernels' own memory: no answer, and no end of a call, depends on what lay there before."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import kofn
from calls import CALLS, surroundings
from kofn.kernels.cpu.runtime import memory
from places import TESTS

LONG = {
    "hard_topk": lambda x: kofn.hard_topk(x, 1000),
    "hard": lambda x: kofn.soft_topk(x, 23333.3, hard=True),
    "topk": lambda x: kofn.topk(x, 40),
    "gates": lambda x: kofn.topk_gates(x, 40),
    "soft_topk": lambda x: kofn.soft_topk(x, 1000),
    "sparsemax": kofn.sparsemax,
    "log_entmax": kofn.log_entmax,
    "sparse_softmax": lambda x: kofn.sparse_softmax(x, k=50, p=0.9),
    "quantile": lambda x: kofn.quantile(x, 0.3, dim=-1),
    "loss": lambda x: kofn.losses.topk_loss(x, torch.arange(len(x))),
}


class Used:
    """NumPy, but that memory was used before: as numbers it is NaN, as integers −1."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def empty(shape, dtype=np.float64):
        memory = np.empty(shape, dtype)
        memory.reshape(-1).view(np.uint8)[:] = 255
        return memory


def in_used_memory(function):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "np", Used())
        patch.setattr(memory, "_FEW_WORDS", -1)  # small calls, too, ask NumPy for it
        return function()


def answers(function, x):
    x = x.detach().requires_grad_(x.is_floating_point())
    found = function(x)
    found = found if isinstance(found, tuple) else (found,)
    slopes = [
        torch.autograd.grad(each.float().square().sum(), x, retain_graph=True)[0]
        for each in found
        if each.requires_grad
    ]
    return [*found, *slopes]


def alike(ours, theirs):
    pairs = zip(ours, theirs, strict=True)
    return all(
        np.array_equal(
            *(torch.as_tensor(a).detach().double().numpy() for a in pair), equal_nan=True
        )
        for pair in pairs
    )


def long_rows(dtype):
    x = torch.randn(3, 70_000, generator=torch.Generator().manual_seed(0))
    x = x.to(getattr(torch, dtype))
    for name, function in LONG.items():
        wanted = answers(function, x)
        assert alike(in_used_memory(lambda f=function: answers(f, x)), wanted), (name, dtype)


def every_call(dtype):
    for call in CALLS:
        if "torch" in call.frameworks:
            with surroundings(call):
                wanted = call("torch", dtype)
                used = in_used_memory(lambda c=call: c("torch", dtype))
                assert alike(used, wanted), (call.name, dtype)


@pytest.mark.parametrize(
    ("rows", "dtypes"),
    [
        (long_rows, ("float32", "bfloat16", "float16")),
        (every_call, ("float32", "float64")),  # modules have such weights
    ],
    ids=["long_rows", "every_call"],
)
def test_what_lay_in_memory_does_not_matter(rows, dtypes):
    """In a process of its own: a kernel that counts on zeros may wait for ever."""
    program = [sys.executable, __file__, rows.__name__, *dtypes]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])}
    done = subprocess.run(
        program, env=found, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    rows = {each.__name__: each for each in (long_rows, every_call)}[sys.argv[1]]
    for dtype in sys.argv[2:]:
        rows(dtype)
