"""A matrix whose rows are read block by block: the answers of kofn.soft_assignment."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

import kofn
from kofn import links, soft_assignment, soft_assignment_prices, soft_topk, streaming
from kofn.streaming.assignment import columns, matrices, prices
from pairs import pairwise
from support import LINKS, ONE_OF_EACH, full_but

M, N = 40, 6


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Blocks of five rows."""
    monkeypatch.setattr(matrices, "BLOCK", 5 * N)
    monkeypatch.setattr(matrices, "LARGE", 5 * N)


def matrix(m=M, n=N, seed=0, spread=1.0):
    return np.random.default_rng(seed).standard_normal((m, n)) * spread


class Blocks:
    """A matrix that is made anew in each pass, in blocks of different sizes."""

    def __init__(self, x, ends=(0, 3, 3, 20, M)):
        self.x, self.ends, self.passes = x, ends, 0

    def __iter__(self):
        self.passes += 1
        for start, stop in zip(self.ends, self.ends[1:], strict=False):
            yield self.x[start:stop]


def masked(x):
    x = x.copy()
    x[np.random.default_rng(1).random(x.shape) < 0.3] = -math.inf
    x[:, 0] = np.where(np.isinf(x).all(1), 0.0, x[:, 0])
    return x


CASES = {
    "plain": (matrix(), 1, None),
    "k of 2": (matrix(), 2.5, None),
    "margins": (
        matrix(),
        np.linspace(0.5, 2, M),
        np.array([0.1, 0.3, 0.2, 0.1, 0.1, 0.2]) * np.linspace(0.5, 2, M).sum(),
    ),
    "masked": (masked(matrix()), 1, None),
    "a row without entries": (
        np.where(np.arange(M)[:, None] % 7 == 3, -math.inf, matrix()),
        1.0,
        None,
    ),
    "a column that takes nothing": (matrix(), 1, np.array([0, 8, 8, 8, 8, 8.0])),
    "columns that take all": (matrix(), 3, np.array([M, 8, 16, 8, M, 8.0])),
    "rows that take nothing, and all": (
        matrix(),
        np.where(np.arange(M) % 3 == 0, 0, np.where(np.arange(M) % 3 == 1, N, 2.0)),
        None,
    ),
    "far": (matrix(spread=1e3), 2, None),
    "equal": (np.zeros((M, N)), 2, None),
}


def whole(found):
    return np.concatenate(list(found))


@pairwise(
    name=list(CASES),
    link=full_but(ONE_OF_EACH),
    temperature=[1.0, 0.05],
    rounds=[None, 1, 3],
)
def test_weights_and_prices_are_those_of_the_matrix(name, link, temperature, rounds):
    x, k, capacity = CASES[name]
    how = {"link": link, "temperature": temperature, "rounds": rounds}
    wanted = soft_assignment(x, k, capacity, **how)
    found = streaming.soft_assignment(Blocks(x), k, capacity, **how)
    if rounds is not None:
        (wanted, miss), (found, distance) = wanted, found
        np.testing.assert_allclose(distance, miss, rtol=0, atol=1e-8)
    found = whole(found)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)
    entries = (x > -math.inf).any(1)
    np.testing.assert_allclose(found.sum(1), np.where(entries, k, 0.0), rtol=0, atol=1e-12 * N)
    rows, of_columns = streaming.soft_assignment_prices([x[:7], x[7:]], k, capacity, **how)
    assert (rows.shape, of_columns.shape) == ((M,), (N,))
    if rounds is not None or name == "equal":
        return
    expected = soft_assignment_prices(x, k, capacity, link=link, temperature=temperature)
    for mine, theirs in zip((rows, of_columns), expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(theirs))
        np.testing.assert_array_equal(mine[~np.isfinite(mine)], theirs[~np.isfinite(theirs)])
    slopes = np.sort(np.where(entries[:, None], wanted * (1 - wanted), 0.0).sum(0))
    if slopes[0] > 1e-3:
        np.testing.assert_allclose(of_columns, expected[1], rtol=0, atol=1e-6 * (1 + abs(x[0, 0])))


@pytest.mark.parametrize("link", ["exponential", "logistic"])
def test_rounds_find_rows_that_columns_which_take_all_have_settled(link):
    k, capacity = np.array([1.0, 1, 1, 1, 4, 4, 2, 2]), np.array([8.0, 3, 3, 2])
    for rounds in (2, 3):
        how = {"link": link, "rounds": rounds}
        wanted, _ = soft_assignment(matrix(8, 4), k, capacity, **how)
        found, _ = streaming.soft_assignment(matrix(8, 4), k, capacity, **how)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("link", full_but(ONE_OF_EACH, LINKS))
def test_hard_weights_are_those_of_the_matrix(link):
    x, k, capacity = CASES["margins"]
    k = np.round(k)
    capacity = capacity * k.sum() / capacity.sum()
    found = whole(streaming.soft_assignment(Blocks(x), k, capacity, hard=True, link=link))
    np.testing.assert_array_equal(found, soft_assignment(x, k, capacity, hard=True, link=link))


@pytest.mark.parametrize("temperature", [1e-3, pytest.param(1e-9, marks=pytest.mark.full)])
def test_a_low_temperature_has_its_margins(temperature):
    """Thresholds of columns are then those of hard choices, by the solver's code over blocks."""
    for link in ("exponential", "logistic"):
        w = whole(
            streaming.soft_assignment(Blocks(matrix()), 1, link=link, temperature=temperature)
        )
        np.testing.assert_allclose(w.sum(1), 1, rtol=0, atol=1e-9)
        np.testing.assert_allclose(w.sum(0), M / N, rtol=0, atol=1e-3)
        how = {"link": link, "temperature": temperature, "rounds": 2}
        found, distance = streaming.soft_assignment([matrix()], 1, **how)
        wanted, miss = soft_assignment(matrix(), 1, **how)
        np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-9)
        np.testing.assert_allclose(distance, miss, rtol=0, atol=1e-8)


@pytest.mark.parametrize("rounds", [None, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_entry_leaves_nothing(bad, rounds):
    x = matrix()
    x[30, 2] = bad
    found = streaming.soft_assignment(Blocks(x), 1, rounds=rounds)
    found, distance = (found, math.nan) if rounds is None else found
    assert np.isnan(whole(found)).all()
    assert math.isnan(distance)
    x = matrix()
    x[3] = -math.inf  # without the others' capacity, its weights of 0 would stay
    apart = streaming.soft_assignment(x, np.ones(M), np.ones(N), rounds=rounds)
    assert np.isnan(apart if rounds is None else apart[0]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_and_dtypes_are_those_of_the_blocks(dtype):
    x = torch.as_tensor(matrix()).to(dtype).requires_grad_()
    wanted = soft_assignment(x.detach().double(), 1, temperature=0.5)
    blocks = [x[:7], x[7:].T.contiguous().T]
    for found in (
        streaming.soft_assignment(blocks, 1, temperature=0.5),
        list(streaming.soft_assignment(Blocks(x), torch.ones(M), temperature=0.5)),
    ):
        assert all(each.dtype == dtype and not each.requires_grad for each in found)
        tolerance = 1e-9 if dtype == torch.float64 else 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(torch.cat(found).double(), wanted, rtol=0, atol=tolerance)


def test_weights_are_written_to_files(tmp_path):
    x = matrix().astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    scores = np.load(tmp_path / "x.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(tmp_path / "w.npy", "w+", np.float32, x.shape)
    assert streaming.soft_assignment(scores, 1, out=out) is out
    np.testing.assert_allclose(np.load(tmp_path / "w.npy"), soft_assignment(x, 1), atol=1e-7)
    turned = np.empty(x.shape[::-1]).T  # not contiguous
    streaming.soft_assignment(scores, 1, out=turned)
    np.testing.assert_allclose(turned, out, atol=1e-7)


@pytest.mark.parametrize("link", ["exponential", "logistic"])
def test_weights_of_new_rows_follow_from_the_prices_of_columns(link):
    x, how = matrix(), {"link": link, "temperature": 0.3}
    _, of_columns = streaming.soft_assignment_prices(Blocks(x), 1, **how)
    np.testing.assert_allclose(
        soft_topk(x[10:20] - of_columns, 1, **how), soft_assignment(x, 1, **how)[10:20], atol=1e-9
    )


def test_it_takes_few_passes_and_tells():
    seen, blocks = [], Blocks(matrix(400, N), (0, 100, 400))
    list(streaming.soft_assignment(blocks, 1, progress=lambda *now: seen.append(now)))
    passes = [what for what, done, n in seen if done == n == 400 * N]
    assert passes == ["survey"] + ["prices"] * (len(passes) - 2) + ["weights"]
    assert blocks.passes == len(passes) <= 8
    seen.clear()
    streaming.soft_assignment([matrix(400, N)], 1, rounds=3, progress=lambda *now: seen.append(now))
    assert sum(done == 400 * N for _, done, _ in seen) <= 3 * 9 + 3


class Made:
    """Rows that are made anew in each pass, 500 at a time."""

    def __init__(self, m, n=N):
        self.m, self.n = m, n

    def __iter__(self):
        rng = np.random.default_rng(0)
        return (rng.standard_normal((500, self.n)) for _ in range(0, self.m, 500))


def most_memory(call):
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("rounds", [None, 2])
def test_memory_does_not_grow_with_rows(rounds, monkeypatch):
    monkeypatch.setattr(matrices, "BLOCK", 500 * N)
    peaks = []
    for m in (500, 1000, 20_000):  # the first imports what is needed

        def call(m=m):
            found = streaming.soft_assignment(Made(m), 1, rounds=rounds)
            for _ in found if rounds is None else found[0]:
                pass

        peaks.append(most_memory(call))
    assert peaks[2] < 1.2 * peaks[1]


def test_rounds_hold_no_square_of_columns(monkeypatch):
    """Without them S is held, n² numbers."""
    monkeypatch.setattr(prices, "searched", None)
    monkeypatch.setattr(matrices, "BLOCK", 20_000)
    peak = most_memory(lambda: streaming.soft_assignment_prices(Made(500, 1000), 1, rounds=1))
    assert peak < 1000**2 * 8


def test_what_ends_at_once_is_not_solved_by_array_code(monkeypatch):
    monkeypatch.setattr(columns, "solve", None)
    for link in LINKS:
        for rounds in (None, 3):
            streaming.soft_assignment([matrix()], 2, link=link, temperature=0.3, rounds=rounds)


def test_a_link_of_the_users_own():
    cauchy = kofn.Link(
        cdf=lambda z: 0.5 + np.arctan(z) / math.pi, pdf=lambda z: 1 / (math.pi * (1 + z * z))
    )
    for rounds in (None, 2):
        wanted = soft_assignment(matrix(), 2, link=cauchy, rounds=rounds)
        found = streaming.soft_assignment(matrix(), 2, link=cauchy, rounds=rounds)
        for mine, theirs in zip(np.atleast_3d(found[0]), np.atleast_3d(wanted[0]), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_matrices_without_entries(shape):
    for rounds in (None, 2):
        found = streaming.soft_assignment([np.zeros(shape)], 0, rounds=rounds)
        found, distance = (found, 0.0) if rounds is None else found
        assert found[0].shape == shape
        assert distance == 0
    rows, of_columns = streaming.soft_assignment_prices(np.zeros(shape), 0)
    assert (rows.shape, of_columns.shape) == (shape[:1], shape[1:])
    assert np.isnan(rows).all()
    assert np.isnan(of_columns).all()
    assert streaming.soft_assignment([], 0) == []


def once():
    yield matrix()


class Shrinking(Blocks):
    def __iter__(self):
        self.ends = self.ends[:-1]
        return super().__iter__()


X = matrix()
REFUSED = {
    "one row": (lambda: streaming.soft_assignment(X[0], 1), ValueError, "scores must be matrices"),
    "shapes": (
        lambda: streaming.soft_assignment([X, X[:, 1:]], 1),
        ValueError,
        r"scores must be matrices of shape \(rows, 6\), as the first has; got shape \(40, 5\)",
    ),
    "integers": (lambda: streaming.soft_assignment(X.astype(int), 1), TypeError, "scores"),
    "a generator": (
        lambda: streaming.soft_assignment(once(), 1),
        TypeError,
        "scores must be .* not an iterator, which ends with the first pass; got",
    ),
    "a name": (lambda: streaming.soft_assignment("x.npy", 1), TypeError, "scores must be an array"),
    "other rows": (
        lambda: streaming.soft_assignment(Shrinking(X), 1),
        ValueError,
        "scores must give the same rows in each pass; got 20 rows, then 3",
    ),
    "k": (lambda: streaming.soft_assignment(X, 7), ValueError, r"k must be a number in \[0, 6\]"),
    "k of blocks": (lambda: streaming.soft_assignment(Blocks(X), 7), ValueError, "k must be a num"),
    "k of rows": (
        lambda: streaming.soft_assignment(X, np.ones(41)),
        ValueError,
        r"k has shape \(41,\)",
    ),
    "too few k": (
        lambda: streaming.soft_assignment(Blocks(X), np.ones(4)),
        ValueError,
        r"k has shape \(4,\); it must broadcast to one number per row",
    ),
    "too many k": (
        lambda: streaming.soft_assignment(Blocks(X), np.ones(41)),
        ValueError,
        r"k has shape \(41,\); it must broadcast to one number per row, \(40,\)",
    ),
    "capacity": (
        lambda: streaming.soft_assignment(X, 1, 5.0),
        ValueError,
        r"capacity must be 6.66667 \(or None\)",
    ),
    "too much": (
        lambda: streaming.soft_assignment(np.where(np.arange(N) < 5, X, -math.inf), 6),
        ValueError,
        "k must be at most 5",
    ),
    "capacities": (
        lambda: streaming.soft_assignment(X, 1, np.ones(5)),
        ValueError,
        r"capacity has shape \(5,\); it must broadcast to one number per column, \(6,\)",
    ),
    "temperature": (
        lambda: streaming.soft_assignment(X, 1, temperature=0),
        ValueError,
        "temperature",
    ),
    "temperatures": (
        lambda: streaming.soft_assignment(X, 1, temperature=np.ones(2)),
        TypeError,
        "temperature",
    ),
    "alpha": (
        lambda: streaming.soft_assignment(X, 1, link=links.entmax(np.array([1.5]))),
        TypeError,
        "link must have one alpha",
    ),
    "rounds": (lambda: streaming.soft_assignment(X, 1, rounds=0), ValueError, "rounds must be"),
    "hard rounds": (
        lambda: streaming.soft_assignment(X, 1, rounds=2, hard=True),
        ValueError,
        "hard must be False with rounds; got rounds=2",
    ),
    "out": (
        lambda: streaming.soft_assignment(X, 1, out=np.empty((N, M))),
        ValueError,
        r"out must have the shape of the scores, \(40, 6\); got \(6, 40\)",
    ),
    "out of blocks": (
        lambda: streaming.soft_assignment(Blocks(X), 1, out=np.empty((M, N))),
        TypeError,
        "out must be None for scores that are no array or list",
    ),
    "integers out": (
        lambda: streaming.soft_assignment(X, 1, out=np.empty((M, N), int)),
        TypeError,
        "out must have dtype",
    ),
    "progress": (
        lambda: streaming.soft_assignment(X, 1, progress=1),
        TypeError,
        "progress must be a function",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_the_argument(name):
    call, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        call()
