"""Temperature schedules for training: functions of the step, without state.

    cool = schedules.exponential(1.0, 0.1, steps=1000)
    for step in range(2000):
        weights = soft_topk(scores, k, temperature=cool(step))

A schedule keeps no state: it can be pickled, compared, printed, shared between processes, and a
run that is resumed asks it for the step it has reached. Any function of the step will do in its
place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Never, overload

from kofn.arrays.checks import check_integer, check_number, check_real
from kofn.arrays.kinds import Array, cast, default_float, dtype_name, framework, namespace
from kofn.arrays.names import answer_for_others, unknown_keyword
from kofn.arrays.typing import ArrayT

__all__ = ["Schedule", "UntilHard", "constant", "cosine", "exponential", "linear", "until_hard"]


def __dir__() -> list[str]:
    """List the public names only."""
    return sorted(__all__)


answer_for_others(__name__, __all__)


@dataclass(frozen=True, repr=False)
class Schedule:
    """schedule(step) → number: `start` at step 0, `end` from step `steps` on.

    Made by `constant`, `linear`, `cosine`, `exponential` and `until_hard`.
    """

    shape: str
    start: float
    end: float
    steps: int

    @overload
    def __call__(self, step: float) -> float: ...
    @overload
    def __call__(self, step: ArrayT) -> ArrayT: ...
    def __call__(self, step: Any) -> Any:
        """Return the value at `step`.

        Args:
            step: a number ≥ 0, whole or not (epochs may be counted in parts). Or an array, which
                a compiled training step may hold: the answer is then an array of the same
                framework, elementwise, and steps below 0 count as 0. It has the dtype of the
                steps; of whole numbers the framework's default, but float32 for a half type.

        Returns:
            A Python float for a number, `start` and `end` exactly where the schedule is there.

        Raises:
            TypeError, ValueError: `step` is not a number, or is negative or NaN.
        """
        if framework(step) is None:
            number = check_number("step", step, low=0.0, allowed="a finite number ≥ 0")
            return self._at(min(number / self.steps, 1.0), math)
        check_real("step", step)
        xp = namespace(step)
        return self._at(xp.clip(_floats(step) / self.steps, 0.0, 1.0), xp)

    def _at(self, done: Any, xp: Any) -> Any:
        """Return the value after a share `done` of the steps; exact at 0 and 1."""
        if self.shape == "exponential":
            return self.start ** (1 - done) * self.end**done
        if self.shape == "cosine":
            done = (1 - xp.cos(math.pi * done)) / 2
        return (1 - done) * self.start + done * self.end

    def __repr__(self) -> str:
        if self.shape == "constant":
            return f"schedules.constant({self.start!r})"
        return f"schedules.{self.shape}({self.start!r}, {self.end!r}, steps={self.steps})"


@dataclass(frozen=True, repr=False)
class UntilHard(Schedule):
    """An exponential schedule whose steps are counted only while the choice is still soft."""

    gap: float

    def next(self, step: int | Array, gap: float | Array) -> Any:
        """Return step + 1 while the measured gap is above `self.gap`, else `step`.

        Args:
            step: as for the schedule itself.
            gap: the gap measured at this step, such as `metrics.hard_gap(weights, k).max()`. A
                number or an array; NaN holds the schedule where it is.

        Returns:
            A Python integer where both are numbers; else an array, without waiting for a device,
            so that it may be part of a compiled step. Arrays broadcast: with a clock per row each
            row cools by itself.
        """
        soft = gap > self.gap
        return step + (bool(soft) if framework(gap) is None else soft)

    def __repr__(self) -> str:
        return (
            f"schedules.until_hard({self.start!r}, {self.end!r}, "
            f"steps={self.steps}, gap={self.gap!r})"
        )


def constant(value: float, **others: Never) -> Schedule:
    """Return a schedule with the same value at every step.

    Raises:
        TypeError, ValueError: not a finite number.

    Example:
        >>> from kofn import schedules
        >>> schedules.constant(0.5)(1000)
        0.5
    """
    if others:
        raise unknown_keyword(constant, others)
    value = _finite("value", value)
    return Schedule("constant", value, value, 1)


def linear(start: float, end: float, steps: int, **others: Never) -> Schedule:
    """Return a linear schedule, start + (end − start)·step/steps.

    Args:
        start, end: finite numbers. A temperature has to stay above 0; the weight of a loss,
            which a schedule serves as well, may be 0.
        steps: at how many steps `end` is reached, an integer ≥ 1; it is held from there on.

    Raises:
        TypeError, ValueError: an argument of the wrong kind or out of range.

    Example:
        >>> from kofn import schedules
        >>> warm = schedules.linear(0.0, 1.0, steps=4)
        >>> [warm(step) for step in range(6)]
        [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    if others:
        raise unknown_keyword(linear, others)
    return Schedule("linear", _finite("start", start), _finite("end", end), _steps(steps))


def cosine(start: float, end: float, steps: int, **others: Never) -> Schedule:
    """Return a cosine schedule, end + (start − end)·(1 + cos(π·step/steps))/2.

    Args:
        start, end, steps: as for `linear`.

    Raises:
        TypeError, ValueError: as for `linear`.

    Source: Loshchilov & Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017).

    Example:
        >>> from kofn import schedules
        >>> cool = schedules.cosine(1.0, 0.2, steps=4)
        >>> [round(cool(step), 3) for step in range(6)]
        [1.0, 0.883, 0.6, 0.317, 0.2, 0.2]
    """
    if others:
        raise unknown_keyword(cosine, others)
    return Schedule("cosine", _finite("start", start), _finite("end", end), _steps(steps))


def exponential(start: float, end: float, steps: int, **others: Never) -> Schedule:
    """Return an exponential schedule, start·(end/start)^(step/steps), the usual way to cool.

    Args:
        start, end: finite numbers > 0.
        steps: as for `linear`.

    Raises:
        TypeError, ValueError: as for `linear`.

    Source: Jang, Gu & Poole, "Categorical Reparameterization with Gumbel-Softmax" (2017), which
    anneals max(end, e^(−rate·step)): here rate = ln(start/end)/steps.

    Example:
        >>> from kofn import schedules
        >>> cool = schedules.exponential(1.0, 0.01, steps=4)
        >>> [round(cool(step), 3) for step in range(6)]
        [1.0, 0.316, 0.1, 0.032, 0.01, 0.01]
        >>> cool
        schedules.exponential(1.0, 0.01, steps=4)
    """
    if others:
        raise unknown_keyword(exponential, others)
    return Schedule("exponential", _positive("start", start), _positive("end", end), _steps(steps))


def until_hard(
    start: float, end: float, steps: int, *, gap: float = 0.05, **others: Never
) -> UntilHard:
    """Return an exponential schedule that stops cooling while the choice is hard enough.

    The temperature needed for a hard choice depends on the scores, which change during training,
    so the schedule uses a measured gap. `schedule.next(step, gap)` is step + 1 while the measured
    gap is above `gap`, and step once it is not; should the choice soften again the cooling goes
    on. The clock is the caller's: the schedule itself keeps nothing.

        step = 0
        for batch in data:
            weights = soft_topk(scores, k, temperature=cool(step))
            ...
            step = cool.next(step, metrics.hard_gap(weights, k).max())

    Args:
        start, end: finite numbers > 0. `end` is the coldest it may get, hard or not.
        steps: how many steps of cooling lead from one to the other.
        gap: a finite number ≥ 0, in the units of the measured one.

    Raises:
        TypeError, ValueError: as for `linear`.

    Example:
        >>> import numpy as np
        >>> from kofn import schedules, soft_topk
        >>> scores, step = np.array([2.0, 1.0, 0.5, -1.0]), 0
        >>> cool = schedules.until_hard(1.0, 0.001, steps=300, gap=0.05)
        >>> for _ in range(300):
        ...     weights = soft_topk(scores, 2, temperature=cool(step))
        ...     step = cool.next(step, np.minimum(weights, 1 - weights).max())
        >>> int(step), round(float(cool(step)), 3), weights.round(2)
        (108, 0.083, array([1.  , 0.95, 0.05, 0.  ]))
    """
    if others:
        raise unknown_keyword(until_hard, others)
    low, high = _positive("start", start), _positive("end", end)
    wanted = check_number("gap", gap, low=0.0, allowed="a finite number ≥ 0", arrays=False)
    return UntilHard("exponential", low, high, _steps(steps), wanted)


def _floats(step: Array) -> Array:
    """Return steps as floats: half types have not the digits of a count, nor of its share."""
    if "float" in dtype_name(step):
        return step
    dtype, xp = default_float(step), namespace(step)
    return cast(step, dtype if dtype == xp.float64 else xp.float32)


def _finite(name: str, value: Any) -> float:
    allowed = "a finite number"
    return check_number(name, value, low=-math.inf, allowed=allowed, strict=True, arrays=False)


def _positive(name: str, value: Any) -> float:
    allowed = "a finite number > 0"
    return check_number(name, value, low=0.0, allowed=allowed, strict=True, arrays=False)


def _steps(steps: Any) -> int:
    number = check_integer("steps", steps, "an integer ≥ 1")
    if number < 1:
        raise ValueError(f"steps must be an integer ≥ 1; got {steps!r}")
    return number
