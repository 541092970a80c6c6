"""The memory that the compiled code for k-subsets shares with its callers; it needs no compiler."""

from __future__ import annotations

import numpy as np

# A job of sums, the integers that every thread on it reads: those of shares.py first.
N, SIZE, WHAT, Y, HI, LO, K, V, OUT = range(4, 13)

LANES = 64  # complex products of one node side by side, in rows longer than a block
TOGETHER = 16  # nodes side by side, in others, which would pay for folding lanes
ABREAST, WIDE = 8, 16  # numbers of float64 and of float32 in a register
BLOCK = 512
MOST = 27  # nodes
PLACED = 2 * TOGETHER  # places for them
REAL, IMAG, SIN, VERSINE = range(4)
"""The numbers of a node: sin ω, 1 − cos ω, and its share of Pr(N = k), a complex number."""

SMALL = 32
"""The largest nodes of a tree, in coins, that lie side by side."""

# Of a level of a tree: how many nodes, and numbers of heads kept of each; where its probabilities
# and its first numbers of heads begin in memory; how far apart there are two numbers of a node, two
# nodes.
NODES, WINDOW, FIRST, STARTS, STEP, APART = range(6)

# A thread's own memory for sums, in words from the start: the numbers of each node, its products,
# some nodes together, the sums of two; then as many numbers as there are entries.
NODE, RE = 0, 4 * PLACED
IM = RE + MOST * LANES
TABLE = IM + MOST * LANES
PAIRS = TABLE + 6 * TOGETHER
PARTS = PAIRS + 8 * -(-MOST * 2 // 8)
ENTRIES = PARTS + 4 * BLOCK


def padded(n: int) -> int:
    """The number of coins that whole vectors hold, at least n."""
    return -(-n // LANES) * LANES


def room_of_sums(n: int) -> int:
    """Words of memory a thread needs for sums of n coins."""
    return ENTRIES + 4 * padded(n)


def room_of_samples(n: int, levels: np.ndarray) -> int:
    """Words of memory a thread needs to draw among n coins by a tree of these levels."""
    top, nodes = levels[-1], levels[0, NODES]
    cells = top[FIRST] + top[NODES] * top[WINDOW]
    return int(n + 3 * nodes + cells + 4 * top[WINDOW] + top[STARTS] + top[NODES]) + 8 * 8
