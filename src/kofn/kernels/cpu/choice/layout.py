"""Numbers that `largest`, `ranked` and their callers agree on; nothing here needs a compiler."""

from __future__ import annotations

from math import ceil

from kofn.kernels.cpu.runtime.layout import AT_ONCE, REGISTER

# A job, the integers that every thread on it reads: those of shares.py first. Of the numbers, the
# answers and the mask the addresses, 0 for no mask; k answers per row; then how numbers are taken,
# as contract.py has it, or the address of k ranks per row.
N, X, K, OUT, MASK, WAY = range(4, 10)
RANKS = WAY
WORDS = 10

# A job of ranked.py for numbers between two ranks, after X: the addresses of these numbers, or of
# their cotangents on the way back, of their slopes in the two, (2, rows), NaN in rows with one, and
# of the places of these, (2, rows); the two ranks.
BETWEEN, IN_EACH, PLACES, LOW, HIGH = range(6, 11)
QUANTILE_WORDS = 11

# A job of required.py, in the place of OUT and what follows: the addresses of the bias, of the mean
# of biases, and of the tokens that are in it; two ranks, and whether these were found.
BIAS, MEAN, TOKENS, FIRST, LAST, SETTLED = range(7, 13)
REQUIRED_WORDS = 13

# The jobs of binned.py, in the same places: the addresses of a number per token from which scores
# are subtracted, of the range of what is left, or of a width and the first bin, and of counts; and
# how many experts of a token may be far; how many bins.
CUTOFFS, SPAN, LEFT_OUT = MEAN, TOKENS, FIRST
HISTOGRAM, BINS = BIAS, K

# A job of mixture.py, after the same: the addresses of a bias or 0, and of memory for scores with
# it, of the indices and scores of the largest, of their softmax and a copy of it; whether there is
# a NaN, or a part gave up; on the way back, those of cotangents of weights and of scores, and
# before that of two arrays of counts, or 0. Then of each of three parts the addresses of its
# function, of its job and of its memory; there is no function for the largest of FEW entries.
BIASED, INDICES, CHOSEN, SHARES, COPY, SPOILT, SPREAD, SLOPES = range(8, 16)
COUNTS = SPREAD, SLOPES
FEW = 16
OF_LARGEST, OF_WEIGHTS, OF_SHARES, MIXTURE_WORDS = range(16, 26, 3)

ROWS = 16  # that are searched at once, one per lane
BLOCK = 16  # columns that are sorted at once
ABREAST = 1024  # the longest rows whose k-th scores are found so

LANES = AT_ONCE
SHORTEST = 256  # rows that are taken in parts


def parts_of(n: int, k: int) -> int:
    """Return in how many parts a row is taken, four times k or more; 0 where that is too many."""
    parts = LANES
    while parts < 4 * k:
        parts *= 2
    return parts if n >= SHORTEST and 2 * parts <= n else 0


def candidates_of(k: int) -> int:
    """Return how many numbers are copied out at most: of four parts for each of k, 1.2 k."""
    return 4 * k + LANES


def kept_of(n: int, k: int) -> int:
    """Return how many columns a search of rows abreast keeps, 0 where these are too many."""
    kept = BLOCK
    while kept < min(k, n + 1 - k):
        kept *= 2
    return kept if n <= SHORTEST or n * kept <= ABREAST * BLOCK else 0


def room_of_choices(n: int, k: float, size: int) -> int:
    """Return the words that a thread needs for hard choices: columns of rows abreast, twice."""
    whole = min(max(ceil(k), 1), n) if k > 0 else 1
    return 2 * kept_of(n, whole) * ROWS * size // 8


def ranks_from(n: int) -> int:
    """Return how many words of keys ranked.py has of a row; after them it has two ranks, and the
    places that have them.
    """
    return n + LANES


def apart_of(count: int) -> int:
    """Return how far the keys of experts are apart: no power of 2, at which caches hold few."""
    return -(-count // ROWS) * ROWS + ROWS


def room_of_required(n: int, k: int, count: int, size: int) -> int:
    """Return the words that required.py needs for the k-th largest of rows, 0 where it serves none:
    columns twice, rows with a bias, an answer, keys.
    """
    kept = kept_of(n, k)
    return kept and room_of_cutoffs(n, k, size) + -(-n * (1 + apart_of(count)) * size // 8)


def room_of_cutoffs(n: int, k: int, size: int) -> int:
    """Return the words that binned.py needs, 0 where it serves none: columns twice, rows with a
    bias.
    """
    kept = kept_of(n, k)
    return kept and (2 * kept + n) * ROWS * size // 8


def room_of(n: int, k: int) -> int:
    """Return the words that a thread needs: keys of a row, maxima, candidates twice, counts, and
    columns of rows abreast.
    """
    kept = kept_of(n, min(k, n)) if n < SHORTEST else 0
    columns = ROWS + REGISTER // 8 + 2 * kept * ROWS
    return n + 4 * LANES + parts_of(n, k) + 4 * candidates_of(k) + 4 * LANES + columns
