"""What the handler and its callers in Python agree on; nothing here needs a compiler."""

from __future__ import annotations

from kofn.kernels.cpu.rows.layout import WORDS

# What Python tells the handler, by a table whose address is that of a symbol: then no address is in
# a compiled program, and the handler may be kept on disk.
SYMBOL = "kofn_xla_table"
FINISH, CALLOC, FREE, FORWARD, AFTER, ASSIST, SINGLE, DOUBLE, MISSING, MEMORY, FAILED = range(11)
VISITS = 16
RUN = 96
"""From here on, by task: what its threads run."""
TABLE = 128

# The attribute "plan" of a call, after "alpha".
TASK, SLOT, KIND, SIZE, GROUP, CHUNK, ROOM, WIDTH, ALONE = range(9)
PLAN = 9
ALPHA_AT, PLAN_AT = 0, 1

# The memory of a call: how many threads may read it, α, a job, a ticket of each thread.
REFERENCES, ALPHA, JOB = 0, 1, 2
TICKETS = JOB + WORDS
BLOCK, OWN, LEADS, CODE = range(4)
TICKET = 4
