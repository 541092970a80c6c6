"""Measure rows in several processes, and what the measured constants predict for more of them.

    python benchmarks/scale.py

It starts 1, 2 and 4 processes on this machine, joined by gloo, and measures `soft_topk` of a row
that is cut among them, an all-reduce of the size of a step's, and the gathering of the row. The
processes' compute is in CPU seconds, which do not depend on what else the machine does; messages
are in wall-clock time, of which the table has the least: the rest is waiting for a processor.
docs/scale.md quotes the tables, and says what the formula is.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SIZES = (1 << 16, 1 << 18, 1 << 20)
RANKS = (1, 2, 4)
STEP_BYTES = 40
GATHERED = 1 << 20


class Measured(NamedTuple):
    """The least times of a rank, in seconds."""

    ranks: int
    calls: dict[int, tuple[float, float, int]]  # per size: wall clock, CPU, all-reduces
    message: float  # one all-reduce of a step
    gather: float  # of GATHERED float32 scores


def least(function: Callable[[], Any], times: int, clock: Callable[[], float]) -> float:
    found = math.inf
    for _ in range(times):
        began = clock()
        function()
        found = min(found, clock() - began)
    return found


def measured(rank: int, size: int, folder: str, said: Any) -> None:
    import torch
    from torch import distributed

    from kofn.distributed import soft_topk

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = distributed.FileStore(f"{folder}/{size}", size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    sent, all_reduce = [], distributed.all_reduce

    def counted(message: Any, *others: Any) -> Any:
        sent.append(message.numel())
        return all_reduce(message, *others)

    calls = {}
    for n in SIZES:
        generator = torch.Generator().manual_seed(rank)
        shard = torch.randn(n // size, generator=generator)

        def call(shard: Any = shard, n: int = n) -> None:
            soft_topk(shard, n // 10)

        distributed.all_reduce = counted
        sent.clear()
        call()
        distributed.all_reduce = all_reduce
        wall, cpu = (least(call, 4, clock) for clock in (time.perf_counter, time.process_time))
        calls[n] = wall, cpu, len(sent)
    message = torch.zeros(STEP_BYTES // 8, dtype=torch.float64)
    one = least(lambda: all_reduce(message), 100, time.perf_counter)
    part = torch.zeros(GATHERED // size)
    whole = [torch.empty_like(part) for _ in range(size)]
    gather = least(lambda: distributed.all_gather(whole, part), 4, time.perf_counter)
    said.put(Measured(size, calls, one, gather))
    distributed.barrier()
    distributed.destroy_process_group()


def on_ranks(size: int, folder: str) -> Measured:
    """Return the greatest of the ranks' times: the last one decides."""
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    ranks = [
        spawn.Process(target=measured, args=(rank, size, folder, said), daemon=True)
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    found = [said.get(timeout=600) for _ in ranks]
    for rank in ranks:
        rank.join()
    calls = {
        n: (*(max(one.calls[n][i] for one in found) for i in (0, 1)), found[0].calls[n][2])
        for n in SIZES
    }
    message, gather = (max(getattr(one, name) for one in found) for name in ("message", "gather"))
    return Measured(size, calls, message, gather)


def fitted(found: list[Measured]) -> tuple[float, float]:
    """Return the CPU seconds per entry, and per all-reduce beside the entries, by least squares."""
    points = [(n / m.ranks, m.calls[n][2], m.calls[n][1]) for m in found for n in SIZES]
    # Relative errors count, so that the short rows do.
    aa, ab, bb, ay, by = (
        sum(f(e / y, c / y) for e, c, y in points)
        for f in (
            lambda a, b: a * a,
            lambda a, b: a * b,
            lambda a, b: b * b,
            lambda a, b: a,
            lambda a, b: b,
        )
    )
    by_hand = aa * bb - ab * ab
    return (ay * bb - by * ab) / by_hand, (by * aa - ay * ab) / by_hand


def report(found: list[Measured], per_entry: float, per_message: float) -> None:
    cpus = os.cpu_count()
    print(f"\n{platform.machine()}, {cpus} cores, load {os.getloadavg()[0]:.1f}; least times\n")
    print("| ranks | entries | all-reduces | CPU, measured | CPU, formula | wall clock |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for one in found:
        for n, (wall, cpu, count) in one.calls.items():
            guess = per_entry * n / one.ranks + per_message * count
            print(
                f"| {one.ranks} | {n:,} | {count} | {1e3 * cpu:.1f} ms | {1e3 * guess:.1f} ms | "
                f"{1e3 * wall:.1f} ms |"
            )
    print("\n| ranks | one all-reduce | gathering 1,048,576 float32 |\n| ---: | ---: | ---: |")
    for one in found:
        print(f"| {one.ranks} | {1e6 * one.message:.0f} µs | {1e3 * one.gather:.1f} ms |")
    print(f"\nper entry {1e9 * per_entry:.1f} ns, per all-reduce {1e6 * per_message:.0f} µs CPU")


def predicted(
    per_entry: float, latency: float, bandwidth: float, messages: int, ranks: int, n: float
) -> tuple[float, float]:
    """Return the seconds of a row cut among the ranks, and of gathering it first."""
    sharded = per_entry * n / ranks + messages * latency * math.log2(max(ranks, 2))
    gathered = 4 * n * (1 - 1 / ranks) / bandwidth + per_entry * n
    return sharded, gathered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024, help="ranks to predict")
    parser.add_argument("--entries", type=float, default=1e12, help="entries to predict")
    parser.add_argument(
        "--latency", type=float, help="seconds of an all-reduce of 2 ranks; default: as measured"
    )
    parser.add_argument("--bandwidth", type=float, help="bytes/s; default: as measured")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [on_ranks(size, str(Path(folder))) for size in RANKS]
    per_entry, per_message = fitted(found)
    report(found, per_entry, per_message)
    pair = found[RANKS.index(2)]
    latency = asked.latency or pair.message
    bandwidth = asked.bandwidth or 4 * GATHERED / 2 / pair.gather
    messages = max(count for one in found for _, _, count in one.calls.values())
    print(
        f"\nan all-reduce {1e6 * latency:.0f} µs·log₂(ranks), gathering {bandwidth / 1e9:.2f} GB/s"
    )
    print("\n| ranks | entries | sharded | gathered |\n| ---: | ---: | ---: | ---: |")
    for ranks in (2, 4, 64, asked.ranks):
        for n in (1e4, 1e6, 1e9, asked.entries):
            ours, theirs = predicted(per_entry, latency, bandwidth, messages, ranks, n)
            print(f"| {ranks:,} | {n:.0e} | {ours:.2e} s | {theirs:.2e} s |")
        fixed = messages * latency * math.log2(max(ranks, 2))
        gain = (1 - 1 / ranks) * (4 / bandwidth + per_entry)
        print(f"| {ranks:,} | {fixed / gain:,.0f} | crossover | |")


if __name__ == "__main__":
    main()
