"""Times on the device, one line of JSON each as soon as it is there: `make gpu` starts this.

`python -m benchmarks.gpu.timed NAME ...` times these: cases of `kofn bench`, `functions`, or `jax`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import torch

import kofn
from benchmarks.gpu.functions import FUNCTIONS, Draw, Function
from kofn.commands.bench import devices
from kofn.commands.bench.cases import CASES, on_device
from kofn.commands.bench.measure import PASSES, measure, quartiles

SMALL = os.environ.get("KOFN_GPU") == "cpu"
ROUNDS = 2 if SMALL else 15
SLOW = 0.02  # seconds of a call that is timed once
ROWS, LENGTH = (16, 16) if SMALL else (4096, 64)


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def stood_in() -> devices.Device:
    """Return a device that is the CPU, for a rehearsal."""

    class Event:
        def record(self) -> None:
            self.at = time.perf_counter()

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return 1e3 * (end.at - self.at)

    return devices.Device("cpu", Event, lambda: None, 1 << 10, calls=1)


def time_case(name: str, device: devices.Device) -> None:
    """Time a case, and its large shape, in each of its dtypes."""
    (case,) = (one for one in CASES if one.name == name)
    for each in on_device(case, device.name):
        if SMALL:
            each = type(case)(case.name, (8, 16), 2, case.dtypes, device.name)
        for dtype in each.dtypes:
            timings, rate = measure(each, dtype, ROUNDS, lambda name: None, device)
            rows, n = each.shape
            size = rows * n * (4 if dtype == "float32" else 2)
            for one in timings:
                middle = {what: quartiles(one.seconds[what])[1] for what in PASSES if one.seconds}
                ratio = {what: quartiles(one.ratios[what])[1] for what in PASSES if one.ratios}
                say(
                    case=each.name,
                    shape=[rows, n],
                    dtype=dtype,
                    name=one.contender.name,
                    group=one.contender.group,
                    seconds=middle,
                    ratio=ratio,
                    memory=one.memory,
                    of_copy=2 * size / rate / middle["forward"] if middle else None,
                    copy_rate=rate,
                    trouble=one.trouble,
                )


def time_functions(device: devices.Device) -> None:
    """Time every public function once, forward and with backward, beside torch.softmax."""
    for function in FUNCTIONS:
        try:
            say(function=function.name, **_times(function, device))
        except Exception as error:
            say(function=function.name, trouble=f"{type(error).__name__}: {error}"[:300])


def _times(function: Function, device: devices.Device) -> dict[str, Any]:
    call, leaves = function.make(Draw(device.name, torch.float32, ROWS, LENGTH))
    leaves = tuple(leaf.requires_grad_(function.learns) for leaf in leaves)

    def both() -> None:
        out = call(*leaves)
        torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    found = {"forward": _median(lambda: call(*leaves), device)}
    if function.learns:
        found["forward + backward"] = _median(both, device)
    graph = None if SMALL or function.waits or function.random else _replayed(call, leaves, device)
    memory = device.memory(both if function.learns else lambda: call(*leaves))
    return dict(seconds=found, replayed=graph, memory=memory)


def _median(call: Callable[[], Any], device: devices.Device, rounds: int = 5) -> float:
    call()
    device.synchronize()
    start = time.perf_counter()
    call()
    device.synchronize()
    taken = time.perf_counter() - start
    if taken > SLOW:
        return taken
    return statistics.median(device.seconds(call) for _ in range(2 if SMALL else rounds))


def _replayed(call: Any, leaves: Any, device: devices.Device) -> float:
    """Return the time of the forward pass as a CUDA graph: that of the kernels alone."""
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call(*leaves)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(*leaves)
    return _median(graph.replay, device)


def time_jax() -> None:
    """Time JAX's programs on the same card, where JAX is installed and has it."""
    try:
        import jax
    except ImportError:
        return
    x = jax.numpy.asarray(torch.randn(ROWS, LENGTH).numpy())
    functions: dict[str, Callable[[Any], Any]] = {
        "jax.nn.softmax": jax.nn.softmax,
        "soft_topk": lambda x: kofn.soft_topk(x, LENGTH // 8),
        "sparsemax": kofn.sparsemax,
        "entmax": kofn.entmax,
        "hard_topk": lambda x: kofn.hard_topk(x, LENGTH // 8),
        "log_soft_topk": lambda x: kofn.log_soft_topk(x, LENGTH // 8),
    }
    for name, function in functions.items():
        made, taken = jax.jit(function), []
        made(x).block_until_ready()
        for _ in range(2 if SMALL else 11):
            start = time.perf_counter()
            made(x).block_until_ready()
            taken.append(time.perf_counter() - start)
        median = statistics.median(taken)
        say(jax=name, backend=jax.default_backend(), seconds={"forward": median})


def main(names: list[str]) -> None:
    device = stood_in() if SMALL else devices.of("cuda")
    assert device is not None
    say(card=devices.described(device), copy_rate=device.copy_rate(3 if SMALL else 15))
    for name in names:
        say(begun=name)
        if name == "functions":
            time_functions(device)
        elif name == "jax":
            time_jax()
        else:
            time_case(name, device)
        say(done=name)


if __name__ == "__main__":
    main(sys.argv[1:])
