"""Rows that do not fit into memory: seconds, passes and extra memory.

    python benchmarks/streaming.py [ENTRIES] [FOLDER]

Writes ENTRIES (10⁹) normally distributed float32 scores to an .npy file in FOLDER (that of the
system for temporary files), which needs room for 8 bytes per entry, and removes it in the end.
Every line is a new process. Its memory is what the system counts as resident (VmHWM in
/proc/self/status, with the pages of mapped files; not what the system keeps of files for itself),
less what it was after a call for a short row. Linux only.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

K = 1000
QS = np.array([0.01, 0.5, 0.99])
CASES = (
    *("copy", "threshold", "indices", "topk", "quantiles"),
    *("apply", "apply, linear", "apply, hard"),
)


def make(path: Path, entries: int) -> None:
    """Write the scores."""
    out = np.lib.format.open_memmap(path, "w+", np.float32, (entries,))
    rng, step = np.random.default_rng(0), 1 << 22
    for start in range(0, entries, step):
        out[start : start + step] = rng.standard_normal(min(step, entries - start), np.float32)


def memory(name: str) -> float:
    """Return a line of /proc/self/status, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1e3
    raise SystemExit(f"/proc/self/status has no {name}")


def copy(path: Path, out: Path) -> None:
    """Read and write the file as it is: what the disk and the memory allow."""
    with open(path, "rb") as source, open(out, "wb") as target:
        while block := source.read(1 << 19):
            target.write(block)
        target.flush()


def command(path: Path, out: Path, *options: str) -> None:
    """Run kofn apply."""
    from kofn.commands.app import app

    with contextlib.suppress(SystemExit):
        app(["apply", str(path), "-k", str(K), "--out", str(out), "--force", *options])


def called(name: str, path: Path, out: Path, tell: Any) -> None:
    """Do what the case says."""
    from kofn import streaming

    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: copy(path, out),
        "threshold": lambda: streaming.soft_topk_threshold(opened(path), K, progress=tell),
        "indices": lambda: streaming.topk_indices(opened(path), K, progress=tell),
        "topk": lambda: streaming.topk(opened(path), K, progress=tell),
        "quantiles": lambda: streaming.quantile(opened(path), QS, progress=tell),
        "apply": lambda: command(path, out),
        "apply, linear": lambda: command(path, out, "--map", "linear"),
        "apply, hard": lambda: command(path, out, "--hard", "--dtype", "bool"),
    }
    calls[name]()


def opened(path: Path) -> np.ndarray:
    """Return the scores, on disk."""
    return np.load(path, mmap_mode="r")


def measure(name: str, path: Path, out: Path) -> None:
    """Print the line of a case, in this process."""
    short = path.with_name("short.npy")
    make(short, 1 << 20)
    called(name, short, out, None)
    from kofn.streaming.blocks import Blocks

    passes, each = [], Blocks.each

    def counted(self: Blocks, what: str, *rest: Any) -> Any:
        passes.append(what)
        return each(self, what, *rest)

    Blocks.each = counted  # type: ignore[method-assign]
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    began = time.perf_counter(), time.process_time()
    called(name, path, out, None)
    seconds, used = time.perf_counter() - began[0], time.process_time() - began[1]
    more = memory("VmHWM") - before
    print(f"{name:16}{len(passes) or '':>7}{seconds:9.1f}{used:9.1f}{more:8.0f}", flush=True)


def main() -> None:
    """Print the table."""
    if len(sys.argv) == 5:
        measure(sys.argv[1], *map(Path, sys.argv[2:4]))
        return
    entries = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**9
    folder = sys.argv[2] if len(sys.argv) > 2 else None
    print(f"{entries} scores, k = {K}\n{'':16}{'passes':>7}{'s':>9}{'CPU s':>9}{'MB':>8}")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path, out = Path(place) / "scores.npy", Path(place) / "weights.npy"
        make(path, entries)
        for name in CASES:
            program = [sys.executable, __file__, name, str(path), str(out), "measure"]
            subprocess.run(program, check=True)
            out.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
