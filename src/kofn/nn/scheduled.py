"""Temperatures that follow a schedule: checked when it is given, and whenever it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kofn.arrays.checks import check_number, check_temperature
from kofn.arrays.tracing import is_at_hand
from kofn.schedules import Schedule

ALLOWED = "a finite number > 0 at every step of its schedule"


def check_schedule(temperature: Any) -> Any:
    """Return a temperature, or a function from the step to one; kofn's tell their ends."""
    if not callable(temperature):
        return check_temperature(temperature)
    if isinstance(temperature, Schedule):
        for end in (temperature.start, temperature.end):
            if end <= 0:
                raise ValueError(f"temperature must be {ALLOWED}; got {temperature!r}")
    return temperature


def temperature_at(schedule: Callable[[Any], Any], step: Any) -> Any:
    """Return the temperature at a step: a number, or a tensor for a tensor.

    A tensor is checked where that does not wait for a device; elsewhere NaN follows from a wrong
    one.
    """
    value = schedule(step)
    if isinstance(value, Tensor) and (value.numel() != 1 or not is_at_hand(value)):
        return value
    number = float(value) if isinstance(value, Tensor) else value
    check_number("temperature", number, low=0.0, allowed=ALLOWED, strict=True, arrays=False)
    return value
