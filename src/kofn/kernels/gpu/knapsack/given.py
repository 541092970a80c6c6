"""The rows with costs that kernels of a GPU are given. (Tests: test_kernels_gpu.py.)"""

from __future__ import annotations

from typing import Any, NamedTuple


class Given(NamedTuple):
    """The rows as every kernel sees them: where their numbers are, and α."""

    x_at: Any  # scores, (count, n)
    costs_at: Any
    budget_at: Any
    temperature_at: Any
    theta_at: Any  # two floats' worth, (2, count): an answer forward, an argument backward
    count: Any
    n: Any
    alpha: Any
