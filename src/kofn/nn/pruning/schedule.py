"""The number of kept weights and the temperature, which fall while a model is trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kofn import schedules
from kofn.arrays.checks import check_integer, check_number
from kofn.nn.scheduled import check_schedule, temperature_at


@dataclass(frozen=True)
class PruningSchedule:
    """The number of kept weights, and the temperature, at each step of training.

    At step t, kept(t) = total·(kept/total)^min(t/(fall·steps), 1), and the temperature goes from
    temperature[0] to temperature[1] in the same way within the first cool·steps steps. In the last
    frozen·steps steps the mask is hard and fixed, and only weights are trained.

    Args:
        steps: the number of training steps, an integer ≥ 1.
        fall: the share of the steps after which no more is kept than wanted, in (0, 1].
        temperature: (first, last), in units of the scores, or a function of the step.
        cool: the share of the steps after which the temperature is the last one, in (0, 1].
        frozen: the share of the steps with a fixed mask, in [0, 1); 0 for none.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.

    Example:
        >>> from kofn import nn
        >>> schedule = nn.PruningSchedule(1000, fall=0.5, temperature=(1.0, 0.01), cool=0.8)
        >>> [round(schedule.kept(step, 10_000, 100)) for step in (0, 250, 500, 1000)]
        [10000, 1000, 100, 100]
        >>> [round(schedule.temperature_at(step), 3) for step in (0, 400, 800, 1000)]
        [1.0, 0.1, 0.01, 0.01]
        >>> schedule.freezes_at
        900
    """

    steps: int
    fall: float = 0.5
    temperature: tuple[float, float] | Callable[[Any], Any] = (1.0, 0.01)
    cool: float = 0.9
    frozen: float = 0.1

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, "an integer ≥ 1", 1)
        for name in ("fall", "cool"):
            number = getattr(self, name)
            check_number(
                name, number, low=0.0, high=1.0, allowed="in (0, 1]", strict=True, arrays=False
            )
        check_number("frozen", self.frozen, low=0.0, below=1.0, allowed="in [0, 1)", arrays=False)
        if callable(self.temperature):
            check_schedule(self.temperature)
        else:
            _check_temperature(self.temperature)

    def kept(self, step: Any, total: float, kept: float) -> Any:
        """Return how much is kept at a step, of `total`; a number, or an array for an array."""
        if kept >= total:
            return total
        least = kept if kept > 0 else min(1.0, total / 2)
        falling = schedules.exponential(float(total), float(least), self._part(self.fall))
        return falling(step)

    def temperature_at(self, step: Any) -> Any:
        """Return the temperature at a step; a number, or an array for an array."""
        if callable(self.temperature):
            return temperature_at(self.temperature, step)
        first, last = self.temperature
        return schedules.exponential(first, last, self._part(self.cool))(step)

    @property
    def freezes_at(self) -> int | None:
        """Return the first step with a fixed mask; None without one."""
        return self.steps - round(self.frozen * self.steps) if self.frozen else None

    def _part(self, share: float) -> int:
        return max(1, round(share * self.steps))


def _check_temperature(given: Any) -> None:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(
            f"temperature must be (first, last) or a function of the step; got {given!r}"
        )
    for place, number in enumerate(given):
        name, allowed = f"temperature[{place}]", "a finite number > 0"
        check_number(
            name, number, low=0.0, below=math.inf, allowed=allowed, strict=True, arrays=False
        )


def schedule_of(schedule: int | PruningSchedule) -> PruningSchedule:
    """Return a schedule given as itself or as a number of steps."""
    if isinstance(schedule, PruningSchedule):
        return schedule
    allowed = "a number of steps ≥ 1 or an nn.PruningSchedule"
    return PruningSchedule(check_integer("schedule", schedule, allowed, 1))
