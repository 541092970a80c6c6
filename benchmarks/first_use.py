"""Times to the first answer of a process, without compiled code on disk and with it.

    python benchmarks/first_use.py [REPEATS]

Every line is a new process that has imported PyTorch, whose own import is not counted: CPU seconds
and seconds on the clock for importing kofn and one call. "cold" begins with an empty folder.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

CALLS = {
    "soft_topk, forward": "kofn.soft_topk(x, 32)",
    "soft_topk, short rows": "kofn.soft_topk(x[:, :64].contiguous(), 5)",
    "soft_topk, with backward": "torch.autograd.grad(kofn.soft_topk(leaf, 32), leaf, x)",
    "softmax, forward": "kofn.softmax(x)",
    "entmax, forward": "kofn.entmax(x)",
    "KSubset.marginals": "kofn.KSubset(x, 32).marginals()",
}
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


def measured(call: str, folder: str) -> list[float]:
    """Return the CPU seconds and the seconds of a new process."""
    environment = os.environ | {"KOFN_CACHE_DIR": folder, "NUMBA_CACHE_DIR": folder}
    program = [sys.executable, "-c", PROGRAM.format(call=call)]
    done = subprocess.run(program, env=environment, check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()]


def main() -> None:
    """Print the medians."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"{'':26}{'cold: CPU s':>12}{'s':>7}{'warm: CPU s':>14}{'s':>7}")
    for name, call in CALLS.items():
        cold, warm = [], []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                cold.append(measured(call, folder))
                warm.append(measured(call, folder))
        (a, b), (c, d) = (
            [*map(statistics.median, zip(*each, strict=True))] for each in (cold, warm)
        )
        print(f"{name:26}{a:12.2f}{b:7.2f}{c:14.2f}{d:7.2f}", flush=True)


if __name__ == "__main__":
    main()
