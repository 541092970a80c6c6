"""Times to the first answer of a process.

    python benchmarks/first_use.py [REPEATS]

Every line is a new process that has imported PyTorch, whose own import is not counted: CPU seconds
and seconds on the clock for importing kofn and one call. The first line imports kofn alone, beyond
NumPy.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

CALLS = {
    "soft_topk, forward": "kofn.soft_topk(x, 32)",
    "soft_topk, short rows": "kofn.soft_topk(x[:, :64].contiguous(), 5)",
    "soft_topk, with backward": "torch.autograd.grad(kofn.soft_topk(leaf, 32), leaf, x)",
    "softmax, forward": "kofn.softmax(x)",
    "entmax, forward": "kofn.entmax(x)",
    "KSubset.marginals": "kofn.KSubset(x, 32).marginals()",
}
IMPORT = """
import time
import numpy

began = time.process_time(), time.perf_counter()
import kofn
print(time.process_time() - began[0], time.perf_counter() - began[1])
"""
PROGRAM = """
import time
import torch

x = torch.randn(512, 1024)
leaf = x.clone().requires_grad_()
torch.autograd.grad((leaf * 2), leaf, x)  # PyTorch imports SymPy at the first backward pass
began = time.process_time(), time.perf_counter()
import kofn
{call}
print(time.process_time() - began[0], time.perf_counter() - began[1])
"""


def measured(program: str) -> list[float]:
    """Return the CPU seconds and the seconds of a new process."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()]


def main() -> None:
    """Print the medians."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    programs = {"import kofn": IMPORT} | {
        name: PROGRAM.format(call=call) for name, call in CALLS.items()
    }
    print(f"{'':26}{'CPU s':>8}{'s':>8}")
    for name, program in programs.items():
        each = zip(*(measured(program) for _ in range(repeats)), strict=True)
        cpu, clock = map(statistics.median, each)
        print(f"{name:26}{cpu:8.3f}{clock:8.3f}", flush=True)


if __name__ == "__main__":
    main()
