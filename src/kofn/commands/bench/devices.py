"""Devices that `kofn bench --device` times: their events, memory and cache."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kofn.commands.files import InputError

NAMES = ("cpu", "cuda", "mps", "xpu")
CACHE = 64 << 20  # bytes, where PyTorch does not say how large the last cache is
COPIED = 256 << 20  # bytes of the copy whose rate is the limit
CALLS = 4  # of a function between two events


@dataclass(frozen=True)
class Device:
    """The functions of PyTorch for timing on a device."""

    name: str
    event: Callable[[], Any]
    synchronize: Callable[[], None]
    cache: int
    calls: int = CALLS
    allocated: Callable[[], int] | None = None
    peak: Callable[[], int] | None = None
    reset_peak: Callable[[], None] | None = None
    has_float64: bool = True

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the time of one call on the device, of a few in a row."""
        begin, end = self.event(), self.event()
        begin.record()
        for _ in range(self.calls):
            call()
        end.record()
        end.synchronize()
        taken: float = begin.elapsed_time(end)
        return taken / 1e3 / self.calls

    def fresh(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return `x` and as many like it as it takes for the cache to have none that is next."""
        count = 2 * self.cache // (x.numel() * x.element_size()) + 1
        return [x, *(x.roll(i, -1) for i in range(1, count))]

    def memory(self, call: Callable[[], Any]) -> int | None:
        """Return the most bytes that a call held beyond those held before, None if not known."""
        if self.allocated is None or self.peak is None or self.reset_peak is None:
            return None
        self.synchronize()
        self.reset_peak()
        before = self.allocated()
        call()
        self.synchronize()
        return self.peak() - before

    def copy_rate(self, rounds: int) -> float:
        """Return the bytes read and written per second by a copy larger than the cache."""
        x = torch.ones(max(COPIED, 4 * self.cache) // 4, device=self.name)
        into = torch.empty_like(x)
        taken = [self.seconds(lambda: into.copy_(x)) for _ in range(rounds + 1)]
        return 2 * x.numel() * 4 / statistics.median(taken)


def of(name: str) -> Device | None:
    """Return the device of a name, None for the CPU.

    Raises:
        InputError: PyTorch does not know it, or this machine has none.
    """
    if name not in NAMES:
        raise InputError(f"--device must be one of {', '.join(NAMES)}; got {name!r}")
    if name == "cpu":
        return None
    module = importlib.import_module("torch.mps") if name == "mps" else getattr(torch, name)
    # torch.mps has is_available under another name.
    test = torch.backends.mps.is_available if name == "mps" else module.is_available
    if not test():
        raise InputError(
            f"--device {name}: PyTorch {torch.__version__} finds no such device here; "
            "without --device, kofn bench times the CPU"
        )
    home = importlib.import_module("torch.mps.event") if name == "mps" else module
    return Device(
        name,
        event=lambda: home.Event(enable_timing=True),
        synchronize=module.synchronize,
        cache=getattr(_properties(module), "L2_cache_size", CACHE),
        allocated=getattr(module, "memory_allocated", None),
        peak=getattr(module, "max_memory_allocated", None),
        reset_peak=getattr(module, "reset_peak_memory_stats", None),
        has_float64=name != "mps",
    )


def _properties(module: Any) -> Any:
    of_device = getattr(module, "get_device_properties", None)
    return None if of_device is None else of_device(module.current_device())


def described(device: Device | None) -> str:
    """Return the name of the card, or an empty string."""
    if device is None:
        return ""
    module = getattr(torch, device.name, None)
    properties = _properties(module) if module is not None else None
    return str(getattr(properties, "name", device.name))
