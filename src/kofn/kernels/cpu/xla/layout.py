"""The numbers that the handler shares with its callers in Python; nothing here needs a compiler."""

from __future__ import annotations

from kofn.kernels.cpu.knapsack.layout import WORDS

# What Python tells the handler, by a table of its library: then no address is in a compiled
# program, and JAX may keep it on disk.
SYMBOL = "kofn_xla_table"
CALLOC, FREE, FORWARD, AFTER, COMPARE, LOGS, ASSIST, SINGLE, DOUBLE = range(9)
MISSING, MEMORY, FAILED, KNAPSACK, KNAPSACK_BACK, FILL_SINGLE, FILL_DOUBLE = range(9, 16)
AT_THETA = 16
RUN = 32
"""From here on, by task: what its threads run."""
FINISH = 64
"""From here on, by task: what solves the rows that a kernel gave up on."""
PASSES = 96
TABLE = 1024

OF_ROWS = FORWARD, AFTER, COMPARE, LOGS, AT_THETA
"""The tasks with the job of rows/layout.py."""
OF_KNAPSACKS = KNAPSACK, KNAPSACK_BACK, FILL_SINGLE, FILL_DOUBLE
"""The tasks with the job of knapsack/layout.py: the same with more words."""
FILLS = FILL_SINGLE, FILL_DOUBLE
"""The tasks in which no row is shared by threads, and the link does not count."""

# The attribute "plan" of a call, after "alpha".
TASK, SLOT, KIND, SIZE, GROUP, CHUNK, ROOM, WIDTH, ALONE, SIXTH, ALPHAS, OF_ALPHA = range(12)
PLAN = 12
ALPHA_AT, PLAN_AT = 0, 1

# The sixth argument of rows with a known θ, after scores, k, T and θ: an array like the
# scores, which is read; such an array, which becomes the answer; labels, as 64 bits; labels of a
# softmax.
ENTRIES, ANSWER, LABELS, LIKELY = range(4)
# If there are ALPHAS, the last argument is α per row; and OF_ALPHA the last answer is of α.

# The memory of a call: how many threads may read it, α, a job, a ticket of each thread.
REFERENCES, ALPHA, JOB = 0, 1, 2
TICKETS = JOB + WORDS
BLOCK, OWN, LEADS, CODE = range(4)
TICKET = 4
