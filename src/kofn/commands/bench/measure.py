"""Timing: check the results first, then time in rounds beside the framework's softmax.

The speed of a shared machine varies; the ratio of two consecutive timings varies much less.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch

from kofn.commands.bench.cases import Case, Contender, Map
from kofn.commands.bench.contenders import contenders
from kofn.commands.bench.devices import Device

ERROR = {"float32": 3e-6, "bfloat16": 8e-3, "float16": 1e-3}
"""The allowed error of weights against float64, relative for numbers above 1; half of
bfloat16's last place near 1 is 4e-3, of float16's 5e-4.
"""

ERROR_OF_GRADIENT = {"float32": 1e-3, "bfloat16": 3e-2, "float16": 4e-3}
"""The same for a gradient, of its norm, in nine rows of ten: in others an entry lies on a kink, as
coarse scores often do, and may take either of its two slopes.
"""

SECONDS = 1.5  # seconds per contender for all rounds; at least two rounds are run
SECONDS_ON_DEVICE = 0.1  # the same on a GPU, whose times differ less
LONGEST = 10.0  # a call that takes longer is not repeated
PASSES = ("forward", "forward + backward")
Passes = dict[str, Callable[[], Any]]
Runner = Callable[[str], float]
"""Runs the pass of a name and returns the seconds it took."""


@dataclass
class Timing:
    """Timings of one contender on one case."""

    contender: Contender
    seconds: dict[str, list[float]] = field(default_factory=dict)  # per pass
    ratios: dict[str, list[float]] = field(default_factory=dict)  # to the softmax timed just before
    baselines: dict[str, list[float]] = field(default_factory=dict)  # that softmax's seconds
    memory: dict[str, int] = field(default_factory=dict)  # peak bytes, in addition to the input
    trouble: str = ""  # why nothing was timed


def measure(
    case: Case,
    dtype: str,
    rounds: int,
    tell: Callable[[str], None],
    device: Device | None = None,
) -> tuple[list[Timing], float]:
    """Return the timings of all contenders, and the bytes per second of a copy of the scores.

    On a device every call has other scores than the calls before it, which its cache no longer has.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.shape, generator=generator).to(getattr(torch, dtype)).to(case.device)
    pool = [x] if device is None else device.fresh(x)
    timings: list[Timing] = []
    baselines: dict[str, Runner] = {}
    for contender in contenders(case):
        if contender.framework == "jax" and dtype != "float32":
            continue
        tell(contender.name)
        timing = Timing(contender)
        timings.append(timing)
        try:
            passes = _passes(contender, pool)
            timing.trouble = _check(contender, case, x, _passes(contender, [x]), device)
            timing.trouble = timing.trouble or _patience(passes, device)
            if not timing.trouble:
                on = device if contender.framework == "torch" else None
                run = _runner(passes, on, case.repeats)
                baseline = baselines.setdefault(contender.framework, run)
                for what in PASSES[: 1 if contender.forward_alone else None]:
                    _time(timing, what, run, baseline, rounds, device)
                    held = None
                    if contender.framework == "torch":
                        held = device.memory(passes[what]) if device else _memory(run, what)
                    if held is not None:
                        timing.memory[what] = held
        except Exception as error:  # another library failed: report it and continue
            timing.trouble = f"{type(error).__name__}: {error}".splitlines()[0]
    return timings, _copy_rate(x, rounds) if device is None else device.copy_rate(rounds)


def _check(
    contender: Contender, case: Case, x: torch.Tensor, passes: Passes, device: Device | None
) -> str:
    """Describe the error in the weights or the gradient; empty if both are right."""
    if contender.exact is None:
        return ""
    function = contender.exact
    if device is not None and not device.has_float64:
        x, on_cpu = x.cpu(), contenders(replace(case, device="cpu"))
        function = next(c.exact for c in on_cpu if c.name == contender.name) or function
    exact = _torch_passes(function, [x.double()], x.dtype)
    dtype = str(x.dtype).removeprefix("torch.")
    weights, gradient = (_to_torch(passes[what]()).to(x.device).double() for what in PASSES)
    answer = exact["forward"]()
    error = ((weights - answer).abs() / answer.abs().clamp(min=1)).max().item()
    if not error <= ERROR[dtype]:
        return f"wrong by {error:.1e}"
    wanted = exact["forward + backward"]()
    rows = (gradient - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp(min=1e-30)
    error = torch.quantile(rows, 0.9).item()
    return "" if error <= ERROR_OF_GRADIENT[dtype] else f"gradient wrong by {error:.1e}"


def _patience(passes: Passes, device: Device | None) -> str:
    """Time the second call, which compiles nothing; describe it if it is too slow to repeat."""
    wait = (lambda: None) if device is None else device.synchronize
    passes["forward"](), wait()
    start = time.perf_counter()
    passes["forward"](), wait()
    taken = time.perf_counter() - start
    return f"{taken:.0f} s per call" if taken > LONGEST else ""


def _time(
    timing: Timing, what: str, run: Runner, baseline: Runner, rounds: int, device: Device | None
) -> None:
    run(what)
    baseline(what)
    seconds: list[float] = []
    baselines: list[float] = []
    end = time.perf_counter() + (SECONDS if device is None else SECONDS_ON_DEVICE)
    while len(seconds) < rounds and (len(seconds) < 2 or time.perf_counter() < end):
        baselines.append(baseline(what))
        seconds.append(run(what))
    timing.seconds[what], timing.baselines[what] = seconds, baselines
    timing.ratios[what] = [own / softmax for own, softmax in zip(seconds, baselines, strict=True)]


def _runner(passes: Passes, device: Device | None, repeats: int) -> Runner:
    """Return a function that runs one pass, so many times, and returns the seconds it took."""
    if device is not None:
        return lambda what: device.seconds(passes[what])
    now = clock()[1]

    def run(what: str) -> float:
        once, start = passes[what], now()
        for _ in range(repeats):
            once()
        return (now() - start) / repeats

    return run


def clock() -> tuple[str, Callable[[], float]]:
    """Return the name of the clock, and its function.

    With one thread it is the processor's time, so that other work on the machine does not count.
    """
    fine = time.get_clock_info("process_time").resolution < 1e-6
    if torch.get_num_threads() == 1 and fine:
        return "processor time", time.process_time
    return "time", time.perf_counter


def _passes(contender: Contender, pool: list[torch.Tensor]) -> Passes:
    """Return two functions: one computes the weights, the other the gradient too.

    Each call takes the next scores of the pool.
    """
    make = _jax_passes if contender.framework == "jax" else _torch_passes
    return make(contender.function, pool, pool[0].dtype)


@functools.lru_cache(maxsize=2)
def _cotangent(shape: torch.Size, dtype: torch.dtype, device: Any = "cpu") -> torch.Tensor:
    """Return the same numbers for all contenders: drawing them takes longer than most calls."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return drawn.to(device, dtype)


def _torch_passes(function: Map, pool: list[torch.Tensor], dtype: torch.dtype) -> Passes:
    x = pool[0]
    cotangent = _cotangent(function(x).shape, dtype, x.device).to(x.dtype)
    scores = itertools.cycle(pool)

    def both() -> torch.Tensor:
        leaf = next(scores).detach().requires_grad_()
        function(leaf).backward(cotangent)
        return cast(torch.Tensor, leaf.grad)

    return {"forward": lambda: function(next(scores)), "forward + backward": both}


def _jax_passes(function: Map, pool: list[torch.Tensor], dtype: torch.dtype) -> Passes:
    import jax

    scores = jax.numpy.asarray(pool[0].cpu().numpy())
    shape = torch.Size(jax.eval_shape(function, scores).shape)
    cotangent = jax.numpy.asarray(_cotangent(shape, dtype).numpy())
    forward = jax.jit(function)

    def pull(scores: Any) -> Any:
        answer, back = jax.vjp(function, scores)
        return answer, *back(cotangent)

    both = jax.jit(pull)
    return {
        "forward": lambda: forward(scores).block_until_ready(),
        "forward + backward": lambda: jax.block_until_ready(both(scores))[1],
    }


def _memory(run: Runner, what: str) -> int:
    """Return the peak memory of PyTorch during a pass, in bytes above the memory held before."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run(what)
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _copy_rate(x: torch.Tensor, rounds: int) -> float:
    """Return the bytes read and written per second by a copy of the scores."""
    into = torch.empty_like(x)
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        into.copy_(x)
        taken.append(time.perf_counter() - start)
    return 2 * x.numel() * x.element_size() / statistics.median(taken)


def _to_torch(y: Any) -> torch.Tensor:
    import numpy as np

    return y if isinstance(y, torch.Tensor) else torch.from_numpy(np.array(y))


def slowdown(timings: Sequence[Timing]) -> float:
    """Return torch.softmax's median time over its best: well above 1 on a busy machine.

    JAX's own differs by as much on an idle one, for its threads wait for each other.
    """
    ratios = []
    for what in PASSES:
        ours = (each for each in timings if each.contender.framework == "torch")
        seconds = [one for each in ours for one in each.baselines.get(what, ())]
        ratios += [statistics.median(seconds) / min(seconds)] if seconds else []
    return max(ratios, default=1.0)


def count(case: Case, dtype: str) -> int:
    """Count the contenders of a case, for the progress bar."""
    return sum(c.framework == "torch" or dtype == "float32" for c in contenders(case))


def quartiles(values: list[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")
