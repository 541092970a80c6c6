"""What a call of soft_topk on a GPU takes of the host, and where: microseconds a stage.

`python -m benchmarks.gpu.host` issues calls without waiting for the device. Where there is none,
CPU tensors go the same way up to Triton, of which there is a stub that launches nothing.
"""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

import kofn

CALLS, ROUNDS = 100, 10
STAGES = {
    "arguments": "kofn.maps.topk.given",
    "route": "kofn.adapters.route.answer",
    "forward": "kofn.kernels.gpu.rows.launch.weights",
    "backward": "kofn.kernels.gpu.rows.launch.gradients",
    "launch": "kofn.kernels.gpu.rows.launch.launch",
    "Triton": "triton.compiler.CompiledKernel.__getitem__",
}
"""Functions whose own time, without that of those below, is a stage."""


class Stages:
    """Own times of functions that call one another, in whatever thread: one waits for another."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.below = [0.0]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            self.below.append(0.0)
            try:
                found = function(*arguments, **options)
                # What Triton gives for a grid launches when it is called.
                return self.timed(name, found) if name == "Triton" and callable(found) else found
            finally:
                taken = time.perf_counter() - begin
                self.seconds[name] += taken - self.below.pop()
                self.below[-1] += taken

        return call

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, path in STAGES.items():
                home, _, attribute = path.rpartition(".")
                function = self.timed(name, _at(path))
                stack.enter_context(mock.patch.object(_at(home), attribute, function))
            yield


def _at(path: str) -> Any:
    home, _, rest = path.rpartition(".")
    return sys.modules[path] if path in sys.modules else getattr(_at(home), rest)


@contextlib.contextmanager
def stubbed() -> Iterator[None]:
    """Have CPU tensors go the way of a GPU's, up to kernels that do nothing."""
    from triton.compiler import CompiledKernel
    from triton.runtime.jit import JITFunction

    from benchmarks.gpu import stand_in

    class Stub(CompiledKernel):  # type: ignore[misc]  # Triton has no types
        def __init__(self) -> None:
            pass

        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *arguments: None

    with stand_in.for_device(), mock.patch.object(JITFunction, "run", return_value=Stub()):
        yield


def calls_of(dtype: torch.dtype, rows: int, n: int, device: str) -> Iterator[tuple[str, Any]]:
    """Yield what is timed by name, torch.softmax first."""
    generator = torch.Generator(device).manual_seed(0)
    own: dict[str, Any] = dict(generator=generator, device=device)
    x = torch.randn(rows, n, **own).to(dtype)
    g, mask = torch.randn(rows, n, **own).to(dtype), torch.rand(rows, n, **own) < 0.9
    k, t = torch.full((rows,), n / 8, device=device), torch.ones(rows, device=device)
    learned = tuple(one.clone().requires_grad_() for one in (x, k, t))

    def both(function: Callable[..., Any], *leaves: Any) -> Any:
        return torch.autograd.grad(function(*leaves), leaves, g)

    def call(x: Any, k: Any = n // 8, t: Any = 1.0, mask: Any = None) -> Any:
        return kofn.soft_topk(x, k, temperature=t, mask=mask)

    def softmax(x: Any) -> Any:
        return torch.softmax(x, -1)

    yield "softmax", lambda: softmax(x)
    yield "softmax, both", lambda: both(softmax, learned[0])
    yield "topk", lambda: torch.topk(x, n // 8)
    yield "soft_topk", lambda: call(x)
    yield "soft_topk, both", lambda: both(call, learned[0])
    yield "mask", lambda: call(x, mask=mask)
    yield "k and T per row", lambda: call(x, k, t)
    yield "k and T learned, both", lambda: both(call, *learned)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def microseconds(call: Callable[[], Any], device: str) -> float:
    """Return the host's time for a call, the least of a few rounds."""
    least = float("inf")
    for _ in range(ROUNDS):
        wait(device)
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        least = min(least, time.perf_counter() - begin)
    wait(device)
    return 1e6 * least / CALLS


def stages_of(call: Callable[[], Any], device: str) -> dict[str, float]:
    """Return the microseconds of each stage in the shortest round; the clocks make it longer."""
    stages = Stages()
    rounds = []
    with stages.watched():
        for _ in range(ROUNDS):
            stages.seconds = dict.fromkeys(STAGES, 0.0)
            wait(device)
            for _ in range(CALLS):
                call()
            rounds.append(stages.seconds)
    shortest = min(rounds, key=lambda one: sum(one.values()))
    return {name: 1e6 * seconds / CALLS for name, seconds in shortest.items()}


def allocations(call: Callable[[], Any]) -> int:
    key = "allocation.all.allocated"
    before = torch.cuda.memory_stats()[key]
    call()
    return int(torch.cuda.memory_stats()[key] - before)


def profile_of(call: Callable[[], Any], lines: int) -> Iterator[str]:
    """Yield microseconds a call, own and with what is below, of the longest functions."""
    with cProfile.Profile() as profile:
        for _ in range(10 * CALLS):
            call()
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # not in its types
    longest = sorted(found.items(), key=lambda one: -one[1][2])[:lines]
    for (file, line, name), (_, calls, own, whole, _) in longest:
        own, whole = (1e6 * one / (10 * CALLS) for one in (own, whole))
        where = "/".join(file.split("/")[-2:])
        yield f"{own:8.2f} {whole:8.2f} {calls / (10 * CALLS):4.0f} times  {where}:{line} {name}"


def report(device: str, rows: int, n: int) -> None:
    print(f"{'µs of the host':32}{'in all':>8}", *(f"{name:>9}" for name in STAGES), "allocations")
    for dtype in (torch.float32, torch.bfloat16):
        for name, call in calls_of(dtype, rows, n, device):
            for _ in range(20):
                call()
            cells = [f"{one:9.1f}" for one in stages_of(call, device).values()]
            count = f"{allocations(call)}" if device == "cuda" else "-"
            about = f"{name}, {str(dtype).removeprefix('torch.')}"
            took = microseconds(call, device)
            print(f"{about:32}{took:8.1f}", *cells, f"{count:>11}", flush=True)
    calls = dict(calls_of(torch.float32, rows, n, device))
    print("soft_topk by cProfile: own µs, with what is below")
    print(*profile_of(calls["soft_topk"], 25), sep="\n")


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, n = (4096, 64) if device == "cuda" else (64, 64)
    import triton

    print(f"torch {torch.__version__}, Triton {triton.__version__}, {device}, {rows} x {n}")
    kofn.soft_topk(torch.zeros(1, 4), 2)  # imports what is imported late
    from kofn.kernels.gpu.rows import launch  # noqa: F401

    with contextlib.nullcontext() if device == "cuda" else stubbed():
        report(device, rows, n)


if __name__ == "__main__":
    main()
