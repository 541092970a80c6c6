"""Rows of which few entries may have a weight: the search, losses and answers go by these alone."""

import ctypes
import itertools
import math

import numpy as np
import pytest
import torch

import kofn
from kofn import losses
from kofn.kernels import contract
from kofn.kernels.contract import BOUNDED, KINDS
from kofn.kernels.cpu.rows import lanes, launch, layout
from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.layout import AT_ONCE, HEAD, PART, SUMS
from kofn.links.table import TABLE
from pairs import pairwise

LINKS = sorted({each.link for each in KINDS if each.kind.number in BOUNDED} & {*TABLE})
N = 300  # not a multiple of AT_ONCE, and longer than rows abreast
MOST = layout.few_of(N)


def rows(dtype):
    """Rows of few entries near the greatest, of as many as may be kept, of more, and special."""
    rng = np.random.default_rng(0)
    x = 3 * rng.standard_normal((12, N))
    x[1] = x[1] / 100
    x[2], x[3] = -9.0, -9.0
    x[2, 5 : 5 + MOST], x[3, 5 : 6 + MOST] = 0.25, 0.25
    x[4, 3::2] = -math.inf
    x[5] = np.where(np.arange(N) % 7, -1e9, x[5])
    x[6] = 0.0
    x[7, N - 1] = 1e4
    x[8, 0], x[8, 1] = 20.0, 20.0
    x[9, 100] = math.inf
    x[10, 100] = math.nan
    x[11] *= 1e4
    return x.astype(dtype)


@pairwise(name=LINKS, k=[1, 0.3, 2], dtype=["float32", "float64"], temperature=[1.0, 0.2])
def test_weights_are_those_of_all_entries(name, k, dtype, temperature, monkeypatch):
    x = rows(dtype)
    found = kofn.soft_topk(x, k, link=name, temperature=temperature)
    for row, one in zip(x, found, strict=True):  # whatever they are searched with
        assert np.array_equal(
            kofn.soft_topk(row, k, link=name, temperature=temperature), one, equal_nan=True
        )
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    expected = kofn.soft_topk(x.astype("float64"), k, link=name, temperature=temperature)
    close = dict(rtol=0, atol=4e-7 if dtype == "float32" else 1e-12, equal_nan=True)
    assert np.allclose(found, expected, **close)
    assert np.allclose(found.sum(-1)[:9], k, rtol=3e-7)


def scores_of(shape, rng, n):
    """Rows by where θ is: as normal scores have it, far below that, far above, or anywhere."""
    x = {
        "normal": lambda: rng.standard_normal((6, n)),
        "uniform": lambda: rng.random((6, n)),  # θ is below
        "exponential": lambda: rng.exponential(size=(6, n)),
        "heavy": lambda: rng.standard_t(2, (6, n)),
        "two groups": lambda: rng.standard_normal((6, n)) + 5 * (rng.random((6, n)) < 0.1),
        "alike": lambda: rng.integers(0, 3, (6, n)) * 1.0,
        "outliers": lambda: np.where(np.arange(n) < 3, -300.0, rng.random((6, n))),
    }[shape]()
    x[0, ::3] = -math.inf
    x[1, 7], x[2, 9] = math.inf, math.nan
    x[3] += 1e4
    return x


SHAPES = ["normal", "uniform", "exponential", "heavy", "two groups", "alike", "outliers"]


@pairwise(
    name=LINKS,
    shape=SHAPES,
    n=[255, 256, 1000, 5000],
    share=[1 / 250, 1 / 32, 0.1, 0.3],
    dtype=["float32", "float64"],
    temperature=[1.0, 0.1, 10.0],
)
def test_the_search_leaves_out_only_what_has_no_weight(
    name, shape, n, share, dtype, temperature, monkeypatch
):
    x = scores_of(shape, np.random.default_rng(n), n).astype(dtype)
    k = max(1.5, n * share)
    assert not launch.weights(x, k, temperature, TABLE[name].inner)[2]  # what else would answer
    found = kofn.soft_topk(x, k, link=name, temperature=temperature)
    alone = kofn.soft_topk_threshold(x, k, link=name, temperature=temperature)  # without weights
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    expected = kofn.soft_topk(x.astype("float64"), k, link=name, temperature=temperature)
    eps = 6e-7 if dtype == "float32" else 1e-12
    assert np.allclose(found, expected, rtol=0, atol=eps, equal_nan=True)
    usual = [0, 3, 4, 5]
    assert np.allclose(found[usual].sum(-1), k, rtol=eps)
    z = (x.astype("float64") - alone[:, None])[usual] / temperature
    near = np.abs(TABLE[name].cdf(z) - expected[usual]).max(-1)
    assert (near <= 4 * np.finfo(dtype).eps * (1 + np.abs(alone[usual]) / temperature)).all()


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize(("n", "k"), [(300, 1.0), (1000, 1.5), (PART + 9, 200.0)])
def test_evaluations_go_over_what_is_kept(name, n, k):
    """Otherwise answers are the same, and take longer."""
    link = TABLE[name].inner
    plan = launch.plan_of(
        launch.FORWARD, contract.kind_of(link), 4, n, False, True, True, False, False
    )
    kept, seen = plan.passes.copy(), []
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5, *[ctypes.c_double] * 5)

    def seeing(address):
        def one_pass(*given):
            seen.append(given[3])
            signature(address)(*given)

        return signature(one_pass)

    which = [layout.EVALUATION, layout.FIRST_EVALUATION, layout.ROUGH]
    seers = [seeing(int(kept[each])) for each in which]
    try:
        plan.passes[which] = [ctypes.cast(each, ctypes.c_void_p).value for each in seers]
        x = np.random.default_rng(0).standard_normal(n).astype("f4")
        launch.weights(x, k, 0.2, link)
    finally:
        plan.passes[:] = kept
    assert seen
    assert max(seen) < n / 4


@pytest.mark.parametrize("together", [0.0, 1.0])
@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 200, 1000, 5000])
def test_what_is_kept_is_what_reaches_a_bound_in_its_order(n, number, together):
    """It is beside what nobody may write to, and nothing is kept where it would be too much."""
    rng, size = np.random.default_rng(n), np.dtype(number).itemsize
    code = launch.pass_code("loops", "keep", 0, size)
    for share, placed, label in itertools.product((0.01, 0.3, 0.9), (0.0, 1.0), (-1, n // 2)):
        if label >= 0 and not placed:
            continue
        x, most = rng.random(n).astype(number), 3 * n // 8
        least = number(1 - share)
        room = most + AT_ONCE if placed else n
        words = room * (2 * size + 4) if placed else room * size
        memory, sums = np.full(words + 64, 99, np.uint8), np.zeros(SUMS)
        arrays = x.ctypes.data, 0, memory.ctypes.data, n, sums.ctypes.data
        native.function(code)(*arrays, least, most, placed, together, label)
        expected = np.flatnonzero(x >= least)
        if label >= 0:
            expected = np.array([label, *expected[expected != label]])
        assert (memory[words:] == 99).all()
        assert sums[1] > 0 or sums[0] == expected.size
        if expected.size <= most and n >= AT_ONCE:
            assert sums[1] == 0
        if sums[1] == 0:
            assert np.array_equal(memory[: room * size].view(number)[: expected.size], x[expected])
            places = memory[2 * room * size : words].view(np.int32)[: expected.size]
            assert not placed or np.array_equal(places, expected)


@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("counts", [(40_000, 40_000, 7), (0, 0, 5), (3, 0, 1, 65_536, 2), (9, 1)])
def test_what_parts_have_kept_is_gathered(number, counts):
    """Where it is not, Σp is not k, and a second search only takes longer."""
    n, size = (len(counts) - 1) * PART + max(counts[-1], 1), np.dtype(number).itemsize
    out, team = np.arange(n, dtype=number), np.zeros(HEAD + SUMS * len(counts))
    team[HEAD::SUMS] = counts
    parts = [out[i * PART : i * PART + each].copy() for i, each in enumerate(counts)]
    row = lanes.Row(0, 0, 0, size, 0, 0, out.ctypes.data, n, 0, team.ctypes.data, 0)
    lanes._gather(row)
    assert np.array_equal(out[: sum(counts)], np.concatenate(parts))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [PART + 1, 3 * PART + 77])
def test_a_threshold_of_a_long_row_is_that_of_all_its_parts(n, threads):
    """Without weights, whose sum would tell; most of what is kept is in the last parts."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name in LINKS:
            x = np.random.default_rng(1).standard_normal(n)
            x[: n // 2] -= 0.5
            theta = kofn.soft_topk_threshold(torch.tensor(x), n / 50, link=name).item()
            assert abs(TABLE[name].cdf(x - theta).sum() - n / 50) < 1e-9 * n
    finally:
        torch.set_num_threads(before)


@pairwise(name=LINKS, dtype=["float32", "float64"], temperature=[1.0, 0.2])
def test_losses_are_those_of_all_entries(name, dtype, temperature, monkeypatch):
    x = torch.tensor(rows(dtype)[:9])
    labels = torch.tensor([0, 63, 6, 5, 64, 7, N - 1, N - 1, 1])

    def all_of(x):
        x = x.clone().requires_grad_()
        each = losses.topk_loss(x, labels, link=name, temperature=temperature, reduction="none")
        return each.detach(), torch.autograd.grad(each.sum(), x)[0]

    found = all_of(x)
    monkeypatch.setenv("KOFN_KERNELS", "reference")
    expected = all_of(x.double())
    eps = 3e-7 if dtype == "float32" else 1e-12
    assert torch.allclose(found[0].double(), expected[0], rtol=eps, atol=eps)
    assert torch.allclose(found[1].double(), expected[1], rtol=0, atol=eps / temperature)
    assert torch.equal(found[1] == 0, expected[1] == 0)
