"""The memory that the rows' compiled code shares with its callers; nothing here needs a compiler.

The words of a job, the memory of a thread, and the passes whose addresses a job brings.
"""

from __future__ import annotations

import numpy as np

from kofn.kernels.contract import (
    EXPONENTIAL,
    LAPLACE,
    LINEAR,
    LOGISTIC,
    NORMAL,
    SQUARE,
    with_formula,
)
from kofn.kernels.cpu.runtime.layout import AT_ONCE, SUMS

SERVED = with_formula("tail", "density", "quantile")
"""The links with compiled weights; nobody asks for sums or losses of one without `integral`."""
LOGARITHMS = with_formula("logarithm", "hazard")
ONE_LOG = (LOGISTIC,)
"""The links whose losses of several entries take one logarithm: G, less z above θ, is that of
1/(1 − tail).
"""
HAVE_ROUGH = LINEAR, SQUARE
"""The links with a cheaper evaluation, for a θ that is seen to be right by Σp: `roughly`."""
KNOWS_OMEGA = with_formula("omega")
"""The links whose Ω compiled code has, so that soft targets need no array code."""

SERVES_OWN = True
"""Links of a user's own, if they are made of formulas: see compiler/own.py."""

LANES = 16

SHORT = 255
"""No longer rows are computed abreast: from `few.LEAST_LEFT_OUT` on, entries may be left out."""


def short_of(kind: int, bits: int) -> int:
    """How many entries the longest such rows have, by the bits of a vector: of 256, a column of
    float32 takes two, and of 128 four, so that not all links have their sums in registers.
    """
    by_link = {LINEAR: SHORT, LOGISTIC: 128, LAPLACE: 128, SQUARE: 128, EXPONENTIAL: 128}
    narrow = by_link.get(kind, 64 if kind == NORMAL else 96)
    return {512: 128 if kind == NORMAL else SHORT, 256: narrow, 128: 64}[bits]


SHORT_BACK = 31
"""The same of the backward pass, which has no steps that rows would share: of two vectors of 512
bits, or four of 256, rows are faster one after another.
"""

OF_USUAL = (
    *("temperature", "per_t", "k", "rise", "anchor", "low", "high", "capped"),
    *("state", "by", "evaluations"),
)
"""Numbers that kernels/cpu/short has of a row, in the precision of its scores."""

SCORE, KEPT, COTANGENT = range(3)
PLANES = 3
"""The numbers of each entry of such rows."""

LANE = np.dtype(
    [
        *(
            (name, "f8", (LANES,))
            for name in (
                *("state", "k", "temperature", "alpha", "per_t", "wanted"),
                # The statistics. `live` counts finite scores, `top` scores of +inf, `bad` the
                # NaN. Mean, variance and their count, `usual`, tell where most of the scores are;
                # additive masks such as −1e9 have no say in that. Without ±inf, NaN and masks,
                # least and greatest are only bounds.
                *("pivot", "least", "greatest", "live", "top", "bad", "mean", "variance", "usual"),
                # Quantiles that a start is guessed from.
                *("bell", "own", "end", "alone"),
                # θ = anchor + Tδ, which a pass takes as `base`, `by`; its bracket in units of T
                # from the anchor, with the log-odds there; what a log-odd is worth, and how far a
                # step may leap; whether entries are yet to be prepared for the anchor.
                *("anchor", "delta", "base", "by", "low", "high", "low_odds", "high_odds"),
                *("width", "worth", "leap", "tries", "fresh"),
                # Whether evaluations may be rough ones: `below` is ΣF then, and `above` and `count`
                # are 0.
                "rough",
                # Whether something was unusual, so that Σp is to be held to k in any case; how many
                # entries were kept, 0 if all were, for no θ below the floor; whether they have
                # answers of their own; whether its first evaluations are made abreast; whether
                # p − t stands in the place of p already.
                *("strange", "few", "floor", "placed", "approached", "compared"),
                # The sums of the last pass: total and squares of the first one, the others of
                # an evaluation.
                *("total", "squares", "below", "above", "weight", "count", "slope"),
                # θ as two numbers; by how much weights are to be mended; on the way back ΣF′z, what
                # is left of a total, the sum of sizes, and the cotangents of k, T and α.
                *("hi", "lo", "moment", "rest", "size", "in_k", "in_t", "in_alpha"),
                # Whether kernels/cpu/short has found θ of a row, and its weights; that θ.
                *("solved", "solved_hi", "solved_lo"),
            )
        ),
        ("sums", "f8", (SUMS,)),  # of the pass under way
        ("own_of_usual", "f8", (len(OF_USUAL), LANES)),
    ]
)
"""The numbers of a group of rows, one after another: a loop over lanes is vector code."""

# What passes over a row, by the names of what makes it in loops.py and interleaved.py.
FORWARD = (
    "statistics",
    "full_statistics",
    "peak",
    "close",
    "first_evaluation",
    "evaluate",
    "write",
    "mend",
)
BACKWARD = ("weigh", "slope", "centre", "close_back")
OF_GROUPS = ("weigh_rows", "slope_rows", "lever_rows")
"""Of all rows of a group that is not abreast, in backward.py; the last where T is learned."""
BACKWARD_ROWS = (*BACKWARD, *OF_GROUPS)
IN_ALPHA, IN_ALPHA_ABREAST = ("bend",), ("bend_abreast",)
LOG_IN_ALPHA, LOSS_IN_ALPHA = ("log_bend",), ("tilt", "target_tilt")
"""The last passes if the cotangent of α is wanted: see alpha_loops.py."""
STATISTICS, FULL_STATISTICS, PEAK, CLOSE, FIRST_EVALUATION, EVALUATION, WRITE, MEND = range(
    len(FORWARD)
)
WEIGH, SLOPE, CENTRE, CLOSE_BACK, *_OF_GROUPS = range(len(BACKWARD_ROWS))
WEIGH_ROWS, SLOPE_ROWS, LEVER_ROWS = _OF_GROUPS
FORWARD_ROWS = (*FORWARD, "keep", "spread", "sum_up", "scale", "rough", "approach")
KEEP, SPREAD, SUM_UP, SCALE, ROUGH, APPROACH = range(len(FORWARD), len(FORWARD_ROWS))
"""Of rows that are not abreast: the entries of a bounded link that may have a weight; a softmax;
the share of a loss in a mean; a cheaper evaluation of a bounded link, and several of few entries.
"""

# Passes of losses and logarithms, by their makers in answer_loops.py. The ones of losses come after
# the passes that find the weights.
TARGETS = ("loss", "lever", "closely", "soft_loss", "tally", "from_bytes")
LABELLED = ("label_loss", "lever", "closely")
WRITTEN = ("written_label_cost", "written_cost"), ("written_label_loss", "written_loss")
"""Weights and loss at once, of a label or a target of weights: links of ONE_LOG, not abreast. The
last two add up Σ(p − t)z, too, which nobody wants of a T that is one number.
"""
LOG_BACKWARD = "log_weigh", "log_slope", "lever"
LABEL_HAZARD, LABEL_WEIGH, LABEL_SCALE = range(3)  # of logarithms of labels
LOSS, LEVER, CLOSELY, SOFT_LOSS, TALLY, FROM_BYTES = range(len(TARGETS))
WRITTEN_LABEL_LOSS, WRITTEN_LOSS = (len((*FORWARD_ROWS, *each)) for each in (LABELLED, TARGETS))
LOG_WEIGH, LOG_SLOPE, LOG_LEVER = range(len(LOG_BACKWARD))
LOG_BEND = len(LOG_BACKWARD)

# The functions of an answer of passes.py.
ENTRIES, SETTLED, ROW = range(3)

# The same for rows abreast, which are copied there and back; kernels/cpu/short has the usual ones.
FORWARD_ABREAST = (*FORWARD, "bring", "give", "scale", "open_usual", "usual", "put_usual")
BACKWARD_ABREAST = (*BACKWARD, "bring", "give")
BRING, GIVE, SCALE_ABREAST, OPEN_USUAL, USUAL, PUT_USUAL = range(len(FORWARD), len(FORWARD_ABREAST))
BRING_BACK, GIVE_BACK = range(len(BACKWARD), len(BACKWARD_ABREAST))

BY_LINK = {"first_evaluation", "evaluate", "rough", "approach", "write", "mend", "weigh", "centre"}
BY_LINK |= {"loss", "soft_loss", "label_loss", "closely", "log_weigh", "log_slope"}
BY_LINK |= {*WRITTEN[0], *WRITTEN[1], "open_usual", "usual", "weigh_rows"}
BY_LINK |= {*IN_ALPHA, *IN_ALPHA_ABREAST, *LOG_IN_ALPHA, *LOSS_IN_ALPHA}
"""The others are the same for all links."""

# A job, the integers that every thread on it reads: first those of runtime/layout.py; how many
# rows were given up; what `together` says; the shape, the address of a team, if there is one, and
# of passes and arrays. Where there is no ALPHA, one α of all rows comes with the job; where there
# is no THREE, nobody wants the cotangent of α. COSTLESS is not 0 after losses of weights that are
# not all above 0, as that of a row without a label.
GIVEN_UP, TOGETHER, N, SIZE, KIND, TEAM, PASSES = range(4, 11)
X, G, OUT, HI, LO, K, TEMPERATURE, ALPHA, ONE, TWO, THREE, LABELS, LIKELY, BYTES = range(11, 25)
COSTLESS = 25
WORDS = 26

SHARE = LO
"""Where losses find θ first: what p − t is divided by, a power of 2, for the slopes of their mean;
0 if by nothing.
"""

# What a thread has of its own: the lanes of a group of rows, the search's memo, the entries as
# prepared where there is no memory of an answer to keep them in, targets that came as bytes, the
# few entries of rows as they are turned to lanes, then the answers and the places of each row's,
# and what it shares with a team.
MEMO = LANE.itemsize // 8
HEAD = -(-(MEMO + 8) // 8) * 8


def together(n: int, arrays: float, abreast: bool) -> int:
    """How many rows of n are a group: as many as stay in the nearest cache with so many arrays.

    Less than 0 if they are computed abreast.
    """
    return -LANES if abreast else max(1, min(LANES, int(8192 / arrays) // n))


APPROACHED = 128
"""Entries of a row, if no more are left, which are turned to its lane."""


def turned_of(kind: int, size: int) -> int:
    """Words of memory for the entries of all lanes, of links that are approached."""
    return LANES * APPROACHED // 2 if size == 4 and kind in HAVE_ROUGH else 0


def few_of(n: int) -> int:
    """How many entries may be kept of a row, with answers of their own."""
    return min(n // 4, 2048)


def apart_of(few: int, size: int) -> int:
    """Words of memory for the weights and the places of so many; a copy may pass their end."""
    return -(-(few + AT_ONCE) * (size + 4) // 8)


def room(
    n: int, size: int, group: int, answers: bool, in_bytes: bool = False, keeps: int = -1
) -> int:
    """Words of memory a thread needs for rows of n numbers of so many bytes.

    `keeps` is the number of a bounded link whose entries with a weight are kept apart, or −1.
    """
    entries = PLANES * LANES if group < 0 else group * (not answers)
    others = sum(-(-arrays * n * size // 8) for arrays in (entries, abs(group) * in_bytes))
    kept = turned_of(keeps, size) + group * apart_of(few_of(n), size) if keeps >= 0 else 0
    return HEAD + others + kept
