"""The memory that the compiled code for rows with costs shares with its callers; nothing here
needs a compiler.
"""

from __future__ import annotations

import numpy as np

from kofn.kernels.cpu.rows import layout as rows
from kofn.kernels.cpu.runtime.layout import SUMS

# What passes over a row, by the names of what makes it in loops.py and back_loops.py.
FORWARD = ("statistics", "ends", "rough", "evaluate", "write", "close")
BACKWARD = ("costliest", "weigh", "slope", "centre", "charge", "still")
VALUE = ("integrate",)
STATISTICS, ENDS, ROUGH, EVALUATION, WRITE, CLOSE = range(len(FORWARD))
COSTLIEST, WEIGH, SLOPE, CENTRE, CHARGE, STILL = range(len(BACKWARD))
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
                *("pivot", "budget", "temperature", "total", "costliest", "coarse", "fine"),
                # The bracket of θ with the log-odds at its ends; whether it is needed;
                # its width some steps ago, and how often a step of Newton's has left it.
                *("low", "high", "low_odds", "high_odds", "known", "width", "tries"),
                *("in_budget", "in_t"),
            )
        ),
        ("sums", "f8", (SUMS,)),  # of the pass under way
    ]
)
"""The numbers of a row; frame.py says which ones an entry sees."""

# The job of rows/layout.py has more words here: the address of the costs, which are so many bytes
# apart from row to row, 0 if all rows share them, and of their cotangents. K are the budgets.
# Without cotangents, values stand in place of the budget's cotangents. Of hard choices, a number
# that is NaN where a row was given up is in place of θ.
COSTS, APART, IN_COSTS = range(rows.WORDS, rows.WORDS + 3)
WORDS = rows.WORDS + 3

HEAD = -(-(STATE.itemsize // 8) // 8) * 8
"""Words of a thread's own memory before the words of a team."""
