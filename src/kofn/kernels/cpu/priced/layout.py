"""What the compiled code for rows with costs and its callers agree on; nothing here needs a
compiler.
"""

from __future__ import annotations

import numpy as np

from kofn.kernels.cpu.runtime.layout import SUMS

# What visits a row, by the names of what makes it in loops.py and back_loops.py.
FORWARD = ("survey", "ends", "rough", "evaluate", "write", "close")
BACKWARD = ("dearest", "weigh", "slope", "centre", "charge", "still")
VALUE = ("integrate",)
SURVEY, ENDS, ROUGH, EVALUATION, WRITE, CLOSE = range(len(FORWARD))
DEAREST, WEIGH, SLOPE, CENTRE, CHARGE, STILL = range(len(BACKWARD))
INTEGRATE = 0

BY_LINK = {"rough", "evaluate", "write", "close", "weigh", "centre", "charge", "integrate"}
"""The others are the same for all links."""

STATE = np.dtype(
    [
        ("given", "i8"),  # bytes from the scores to the cotangents, or to what else is given
        *(
            (name, "f8")
            for name in (
                # θ as two numbers; where z is counted from; what rounds costs to a grid; the mean
                # of cotangents, or the weight of entries of a closed row; F⁻¹ of the share to buy;
                # 1 over the greatest cost; what stands for θ in the cotangent of T.
                *("hi", "lo", "per_t", "edge", "alpha", "magic", "mean", "quantile", "unit"),
                *("pivot", "budget", "temperature", "total", "dearest", "coarse", "fine"),
                # The bracket of θ with the log-odds at its ends; whether it has been asked for;
                # its width some steps ago, and how often a step of Newton's has left it.
                *("low", "high", "low_gap", "high_gap", "known", "width", "tries"),
                *("in_budget", "in_t"),
            )
        ),
        ("sums", "f8", (SUMS,)),  # of the visit under way
    ]
)
"""What is known of a row; frame.py says what an entry is told of that."""

# A job, the integers that every thread on it is told: first those of runtime/layout.py; how many
# rows were given up; the shape and kind; the address of a team, if there is one, and those of
# visits and arrays. Costs are so many bytes apart from row to row: 0 if all rows share them. Where
# no cotangents are given, values stand in place of those of the budget.
GIVEN_UP, N, SIZE, KIND, TEAM, VISITS, X, COSTS, APART, G, OUT, IN_COSTS = range(4, 16)
HIGH, LOW, BUDGET, TEMPERATURE, IN_BUDGET, IN_T = range(16, 22)
WORDS = 22

HEAD = -(-(STATE.itemsize // 8) // 8) * 8
"""Words of a thread's own memory before those of a team."""
