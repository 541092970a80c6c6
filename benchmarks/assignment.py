"""Time soft_assignment, in CPU seconds, and the memory of large matrices: tables.

    OMP_NUM_THREADS=1 python benchmarks/assignment.py [--write]

Normal scores as torch tensors, with k = 8. Each matrix is solved in RUNS processes of its own; the
least of what they say stands in the tables. Square matrices: without and with the gradient, with
the peak memory above that of the scores. 4,096 × 64 scores in float32: the best of several calls,
beside softmax and soft_topk of the rows alone. With --write docs/maps_assignment.md takes both.
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
SHORT_HEAD = (
    "| 4,096 × 64 in float32, k = 8 | softmax | soft_topk | soft_assignment |",
    "| --- | ---: | ---: | ---: |",
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


def least(*arguments: str) -> tuple[str, ...]:
    """Return the least of each number that RUNS processes print with these arguments."""
    command = [sys.executable, __file__, *arguments]
    said = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(RUNS)
    ]
    return tuple(min(each, key=float) for each in zip(*said, strict=True))


def squares() -> list[str]:
    """Print the rows of the table as they are measured, and return them."""
    print("\n".join(HEAD))
    rows = []
    for n in SIZES:
        for t in TEMPERATURES:
            found = []
            for flag in ("no", "yes"):
                one, seconds, memory, error = least(str(n), str(t), flag)
                found.append((seconds, memory))
                print(f"soft_topk {one} s, error {error}", file=sys.stderr)
            (seconds, memory), (both, more) = found
            rows.append(f"| {n:,} × {n:,} | {t:g} | {seconds} | {both} | {memory} | {more} |")
            print(rows[-1], flush=True)
    return rows


def written(page: str, head: tuple[str, ...], rows: list[str]) -> str:
    """Return the page with these rows in the table of this head."""
    start = page.index(head[0])
    end = page.index("\n\n", start)
    return page[:start] + "\n".join([*head, *rows]) + page[end:]


def short(temperature: float) -> None:
    """Print the milliseconds of softmax, soft_topk and soft_assignment of 4,096 × 64 scores."""
    x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    softmax = best(lambda: torch.softmax(x, -1), 50)
    one = best(lambda: soft_topk(x, 8, temperature=temperature), 20)
    both = best(lambda: soft_assignment(x, 8, temperature=temperature), 20)
    print(*(f"{1e3 * each:.2f}" for each in (softmax, one, both)))


def shorts() -> list[str]:
    """Print the rows of the table of short rows as they are measured, and return them."""
    print("\n".join(SHORT_HEAD))
    rows = []
    for t in TEMPERATURES:
        rows.append(f"| T = {t:g} | {' | '.join(f'{each} ms' for each in least(str(t)))} |")
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    if len(sys.argv) == 4:
        square(int(sys.argv[1]), float(sys.argv[2]), gradient=sys.argv[3] == "yes")
    elif len(sys.argv) == 2 and sys.argv[1] != "--write":
        short(float(sys.argv[1]))
    else:
        tables = {SHORT_HEAD: shorts(), HEAD: squares()}
        if "--write" in sys.argv:
            page = PAGE.read_text(encoding="utf-8")
            for head, rows in tables.items():
                page = written(page, head, rows)
            PAGE.write_text(page, encoding="utf-8")
