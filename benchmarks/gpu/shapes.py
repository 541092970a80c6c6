"""Time the shapes that a program of the GPU's row kernels may have, to choose among them.

`python -m benchmarks.gpu.shapes [--lengths 8,64] [--out FILE]`: for each length of a row, how many
rows a program takes, entries of each at a time, and warps; forward and backward, for a link with an
exponential and one without, beside what kernels/gpu/rows/launch.py takes now. Some processes
compile first, into Triton's cache; then one times. A line of JSON for each, and last a table: the
forward and backward kernel on more rows than a cache holds, and the forward one on few.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENTRIES = 1 << 25  # of a call: more than any cache holds
FEW = 1 << 18  # entries of a call whose rows do not fill the device
LENGTHS = (8, 32, 64, 256, 1024)
LINKS = ("logistic", "linear")
THREADS = 32
VECTOR = 4  # entries that a thread loads at once


def shapes_for(n: int) -> Iterator[tuple[int, int, int]]:
    """Yield (rows, entries of each at a time, warps): from a thread to a row to a warp to it."""
    whole = 1 << (n - 1).bit_length()
    block = max(VECTOR, whole // 64)
    while block <= min(whole, VECTOR * THREADS):
        yield VECTOR * THREADS // block, block, 1
        block *= 2


def launched(x: Any, g: Any, link: Any, shape: tuple[int, int, int] | None) -> Any:
    """Return functions that run the forward and the backward kernel in a shape; None is today's."""
    import torch

    from kofn.kernels.gpu.rows import launch, one_program

    rows, n = x.shape
    used = launch.shape_of(n)
    if shape is not None:
        used = launch.Shape(shape[0], shape[1], shape[1], shape[2])
    theta = x.new_empty((2, rows), dtype=torch.float32)
    given = launch._given(x, float(max(1, n // 8)), 1.0, theta, link)
    out, back = torch.empty_like(x), x.new_empty((2, rows), dtype=torch.float32)
    grid = (-(-rows // used.rows),)
    kind, options = launch.kind_of_rows(link), launch.options_of(used.warps)
    constants = kind, used.rows, used.block

    def forward() -> None:
        one_program.forward[grid](given, out, *constants, used.wide, True, **options)

    def backward() -> None:
        one_program.backward[grid](given, g, out, back, *constants, **options)

    return forward, backward, (out, theta)


def scores(rows: int, n: int, device: str = "cuda") -> tuple[Any, Any]:
    import torch

    draw = torch.Generator(device).manual_seed(n)
    return tuple(torch.randn(rows, n, device=device, generator=draw) for _ in "xg")


def work(lengths: list[int]) -> list[tuple[int, str, tuple[int, int, int] | None]]:
    return [(n, link, shape) for n in lengths for link in LINKS for shape in (None, *shapes_for(n))]


def compile_part(lengths: list[int], part: int, parts: int) -> None:
    """Compile every `parts`-th kernel, by running it on a few rows."""
    from kofn import links

    for n, link, shape in work(lengths)[part::parts]:
        x, g = scores(256, n)
        forward, backward, _ = launched(x, g, getattr(links, link).inner, shape)
        forward(), backward()


def median(call: Any, rounds: int = 7) -> float:
    """Return milliseconds."""
    import torch

    found = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return sorted(found)[rounds // 2]


def replayed(call: Any, times: int = 10) -> float:
    """Return the milliseconds of one of some launches in a CUDA graph, without the host's time."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return median(graph.replay) / times


def time_all(lengths: list[int]) -> Iterator[dict[str, Any]]:
    import torch

    from kofn import links

    for n in lengths:
        x, g = scores(ENTRIES // n, n)
        copied = torch.empty_like(x)
        yield dict(n=n, link="copy", forward=median(lambda c=copied, x=x: c.copy_(x)))
        yield dict(n=n, link="softmax", forward=median(lambda x=x: torch.softmax(x, -1)))
        wanted: dict[str, Any] = {}
        for length, link, shape in work([n]):
            forward, backward, answer = launched(x, g, getattr(links, link).inner, shape)
            forward()
            if shape is None:
                wanted[link] = [one.clone() for one in answer]
            off = max(
                float((a - b).abs().nan_to_num(nan=9.0).max())
                for a, b in zip(answer, wanted[link], strict=True)
            )
            few, _, _ = launched(x[: FEW // n], g[: FEW // n], getattr(links, link).inner, shape)
            yield dict(
                n=length, link=link, shape=shape, off=off, forward=median(forward),
                backward=median(backward), few=replayed(few),
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.shapes", description=__doc__)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    lengths = [int(n) for n in given.lengths.split(",")]
    if given.part:
        compile_part(lengths, *map(int, given.part.split("/")))
        return
    parts = max(1, (os.cpu_count() or 2) - 2)
    command = [sys.executable, "-m", "benchmarks.gpu.shapes", "--lengths", given.lengths]
    running = [
        subprocess.Popen([*command, "--part", f"{part}/{parts}"], stderr=subprocess.DEVNULL)
        for part in range(parts)
    ]
    for one in running:
        one.wait()
    found = []
    for one in time_all(lengths):
        found.append(one)
        if given.out:
            given.out.write_text("\n".join(map(json.dumps, found)) + "\n")
    print("n link (rows, at a time, warps): forward, backward, of few rows in ms; off")
    for one in found:
        more = [f"{one[what]:.4f}" for what in ("forward", "backward", "few") if what in one]
        print(one["n"], one["link"], one.get("shape", ""), *more, one.get("off", ""))


if __name__ == "__main__":
    main()
