"""Time soft_assignment, in CPU seconds, and the memory of large matrices: tables.

    OMP_NUM_THREADS=1 python benchmarks/assignment.py [--write]

Normal scores as torch tensors. Square matrices have k = 8; each is solved in RUNS processes of its
own, without and with its gradient, whose peak memory is that above the one of the scores; the least
of these stands in the table. Then
4,096 × 64 scores in float32 with k = 8, the best of several calls, against softmax. With --write
docs/maps_assignment.md takes the table of square matrices.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kofn import soft_assignment, soft_topk

SIZES = (500, 1000, 2000)
TEMPERATURES = (1.0, 0.1)
RUNS = 3
PAGE = Path(__file__).resolve().parents[1] / "docs" / "maps_assignment.md"
HEAD = (
    "| Matrix, k = 8 | T | forward, s | with gradient, s | MiB | with gradient, MiB |",
    "| --- | ---: | ---: | ---: | ---: | ---: |",
)


def best(function: Callable[[], object], calls: int) -> float:
    """CPU seconds of the fastest call."""
    function()
    found = []
    for _ in range(calls):
        begin = time.process_time()
        function()
        found.append(time.process_time() - begin)
    return min(found)


def peak() -> float:
    """The greatest memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def square(n: int, temperature: float, *, gradient: bool) -> None:
    """Print the seconds of one pass, of soft_assignment, and its memory."""
    leaf = torch.randn(20, 20, requires_grad=True)
    w = soft_assignment(leaf, 2)
    torch.autograd.grad(w, leaf, torch.ones_like(w))  # what the first calls load
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, n, generator=generator, dtype=torch.float64).requires_grad_(gradient)
    one = best(lambda: soft_topk(x.detach(), 8, temperature=temperature), 3)
    before, begin = peak(), time.process_time()
    w = soft_assignment(x, 8, temperature=temperature)
    if gradient:
        torch.autograd.grad(w, x, torch.ones_like(w))
    seconds = time.process_time() - begin
    error = float((w.detach().sum(0) / 8 - 1).abs().max())
    print(f"{one:.3f} {seconds:.2f} {peak() - before:.0f} {error:.0e}", flush=True)


def squares() -> list[str]:
    """Print the rows of the table as they are measured, and return them."""
    print("\n".join(HEAD))
    rows = []
    for n in SIZES:
        for t in TEMPERATURES:
            found = []
            for flag in ("no", "yes"):
                command = [sys.executable, __file__, str(n), str(t), flag]
                said = [
                    subprocess.run(command, capture_output=True, text=True, check=True).stdout
                    for _ in range(RUNS)
                ]
                one, seconds, memory, error = (
                    min(each, key=float) for each in zip(*map(str.split, said), strict=True)
                )
                found.append((seconds, memory))
                print(f"soft_topk {one} s, error {error}", file=sys.stderr)
            (seconds, memory), (both, more) = found
            rows.append(f"| {n:,} × {n:,} | {t:g} | {seconds} | {both} | {memory} | {more} |")
            print(rows[-1], flush=True)
    return rows


def written(page: str, rows: list[str]) -> str:
    """Return the page with these rows in its table."""
    start = page.index(HEAD[0])
    end = page.index("\n\n", start)
    return page[:start] + "\n".join([*HEAD, *rows]) + page[end:]


def against_softmax() -> None:
    x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    softmax = best(lambda: torch.softmax(x, -1), 50)
    print(f"\nsoftmax of 4,096 × 64 in float32: {1e3 * softmax:.2f} ms\n")
    print("| T | soft_topk | soft_assignment |")
    print("| ---: | ---: | ---: |")
    for t in TEMPERATURES:
        one = best(lambda t=t: soft_topk(x, 8, temperature=t), 20)
        both = best(lambda t=t: soft_assignment(x, 8, temperature=t), 10)
        print(
            f"| {t} | {one / softmax:.1f} softmaxes | {both / softmax:.0f} softmaxes |", flush=True
        )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        square(int(sys.argv[1]), float(sys.argv[2]), gradient=sys.argv[3] == "yes")
    else:
        against_softmax()
        rows = squares()
        if "--write" in sys.argv:
            PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
