"""Rows of which few entries may have a weight: the search, losses and answers go by these alone."""

import ctypes
import itertools
import math

import numpy as np
import pytest
import torch

import kofn
from kofn import links, losses
from kofn.kernels import contract
from kofn.kernels.contract import BOUNDED, KINDS
from kofn.kernels.cpu.rows import lanes, launch, layout
from kofn.kernels.cpu.runtime import native
from kofn.kernels.cpu.runtime.layout import AT_ONCE, HEAD, PART, SUMS
from kofn.kernels.cpu.runtime.memory import memory_of
from kofn.kernels.cpu.short import few
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


ALPHAS = {"linear": links.linear, "entmax": links.entmax(1.5), "a third": links.entmax(1.3)}


@pytest.mark.parametrize("name", ALPHAS)
@pytest.mark.parametrize("n", [65, 70, 97, 104, 129, 257, 300, PART + 9])
def test_nothing_is_written_beside_the_answer(name, n):
    """Copies of entries, and what pads them, stand where the answer will be."""
    rng, link, rows = np.random.default_rng(n), ALPHAS[name].inner, 3 if n > PART else 19
    for dtype, k, wide in itertools.product(["f4", "f8"], (0.3, 1.0, 2.0, n / 3), (0.1, 1.0, 9.0)):
        x = (wide * rng.standard_normal((rows, n)) - 50).astype(dtype)
        memory, theta = np.full(rows * n + 2 * AT_ONCE, 7, dtype), np.empty((2, rows), dtype)
        out = memory[: rows * n].reshape(rows, n)
        assert not launch.deal(launch.FORWARD, memory_of(x), link, x, k, 1.0, theta, out=out)
        assert (memory[rows * n :] == 7).all()
        assert np.allclose(out.sum(-1), k, rtol=4e-7)
        assert (out >= 0).all()


def test_rows_from_which_entries_are_left_out_are_not_abreast():
    assert few.LEAST_LEFT_OUT == layout.SHORT + 1


def entries_of_passes(link, x, k):
    """How many entries passes go over that evaluate rows, by which pass; T = 0.2."""
    plan = launch.plan_of(
        launch.FORWARD, contract.kind_of(link), 4, x.shape[-1], False, True, True, False, False
    )
    kept, which = plan.passes.copy(), [layout.EVALUATION, layout.FIRST_EVALUATION, layout.ROUGH]
    which, seen = [*which, layout.APPROACH], {}
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5, *[ctypes.c_double] * 5)

    def seeing(each):
        def one_pass(*given):
            seen.setdefault(each, []).append(given[3])
            signature(int(kept[each]))(*given)

        return signature(one_pass)

    seers = [seeing(each) for each in which]
    try:
        plan.passes[which] = [ctypes.cast(each, ctypes.c_void_p).value for each in seers]
        launch.weights(x, k, 0.2, link)
    finally:
        plan.passes[:] = kept
    return seen


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize(("n", "k"), [(300, 1.0), (1000, 1.5), (PART + 9, 200.0)])
def test_evaluations_go_over_what_is_kept(name, n, k):
    """Otherwise answers are the same, and take longer."""
    x = np.random.default_rng(0).standard_normal(n).astype("f4")
    seen = entries_of_passes(TABLE[name].inner, x, k)
    assert seen
    assert max(map(max, seen.values())) < n / 4


@pytest.mark.parametrize("link", ALPHAS.values())
def test_first_evaluations_are_abreast(link):
    """A pass for all rows of a group, of the links with a rough evaluation; few need more."""
    x = np.random.default_rng(0).standard_normal((16, 300)).astype("f4")
    seen = entries_of_passes(link.inner, x, 1.0)
    has_rough = contract.kind_of(link.inner) in layout.HAVE_ROUGH
    assert len(seen.pop(layout.APPROACH, [])) == has_rough
    assert (sum(map(len, seen.values())) < 16) == has_rough


@pytest.mark.parametrize("together", [0.0, 1.0])
@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 200, 1000, 5000])
def test_what_is_kept_is_what_reaches_a_bound_in_its_order(n, number, together):
    """It is beside what nobody may write to, and nothing is kept where it would be too much."""
    rng, size = np.random.default_rng(n), np.dtype(number).itemsize
    code = launch.pass_code("loops", "keep", 0, size)
    for share, placed, label in itertools.product((0.01, 0.3, 0.9), (False, True), (-1, n // 2)):
        if label >= 0 and not placed:
            continue
        x, most = rng.random(n).astype(number), 3 * n // 8
        least = number(1 - share)
        room = most + AT_ONCE
        copies, sums = np.full(n * size + 64, 99, np.uint8), np.zeros(SUMS)
        indices = np.full(4 * room + 64, 99, np.uint8)
        at = indices.ctypes.data if placed else 0
        arrays = x.ctypes.data, at, copies.ctypes.data, n, sums.ctypes.data
        native.function(code)(*arrays, least, most, together, label, 0.0)
        expected = np.flatnonzero(x >= least)
        if label >= 0:
            expected = np.array([label, *expected[expected != label]])
        assert (copies[n * size :] == 99).all()
        assert (indices[4 * room * placed :] == 99).all()
        assert sums[1] > 0 or sums[0] == expected.size
        if expected.size <= most and n >= AT_ONCE:
            assert sums[1] == 0
        if sums[1] == 0:
            assert np.array_equal(copies[:-64].view(number)[: expected.size], x[expected])
            places = indices[:-64].view(np.int32)[: expected.size]
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
    few._gather(row)
    assert np.array_equal(out[: sum(counts)], np.concatenate(parts))


def lanes_of(rows_of_few, wanted, temperature, start, apart):
    """The state of a search that has begun at `start`, with those copies, and the copies."""
    group = np.zeros(1, layout.LANE)[0]
    copies = np.full((len(rows_of_few), apart), np.nan, "f4")  # what is beyond nobody may heed
    for r, row in enumerate(rows_of_few):
        copies[r, : len(row)] = row
        group["few"][r] = len(row)
    group["per_t"], group["temperature"], group["wanted"] = 1 / temperature, temperature, wanted
    group["base"] = group["anchor"] = np.float32(start)
    group["low"], group["high"], group["floor"] = -9.0, 9.0, -math.inf
    group["approached"][: len(rows_of_few)] = 1.0
    return group, copies


def approached(kind, group, copies):
    """What the pass makes of it, and of no memory beyond its own."""
    count, n = len(copies), int(group["few"].max())
    whole = -(-n // layout.LANES) * layout.LANES
    turned, after = np.full((whole + 4, layout.LANES), 7.0, "f4"), np.array([group])
    code = launch.pass_code("loops", "approach", kind, 4)
    arrays = copies.ctypes.data, copies.strides[0], turned.ctypes.data, n, after.ctypes.data
    native.function(code)(*arrays, count, 0.0, 0.0, 0.0, 0.0)
    assert (turned[whole:] == 7).all()
    return after[0]


@pytest.mark.parametrize("kind", layout.HAVE_ROUGH)
@pytest.mark.parametrize(("count", "wanted", "temperature"), [(16, 1.0, 1.0), (5, 3.5, 0.3)])
def test_few_entries_are_approached(kind, count, wanted, temperature):
    """By steps that end next to θ, or within bounds; the sums are those of the last."""
    rng, power = np.random.default_rng(count), 1 if kind == contract.LINEAR else 2
    sizes = rng.integers(6, layout.APPROACHED + 1, count)
    given = [(0.8 + temperature * rng.uniform(-0.9, 0.9, n)).astype("f4") for n in sizes]
    group, copies = lanes_of(given, wanted, temperature, 0.8, layout.APPROACHED + 16)
    group["approached"][3] = 0.0
    free = approached(kind, group, copies)
    theta, down = free["anchor"] + temperature * free["delta"], free["delta"] < -0.02
    up = free["delta"] > 0.02
    assert down[:count].any() or up[:count].any()
    # Where θ is below the start, a floor or a low end is above it; else a high end is below.
    odd = np.arange(layout.LANES) % 2 > 0
    group["floor"] = np.where(down & odd, (theta + group["anchor"]) / 2, group["floor"])
    group["low"] = np.where(down & ~odd, free["delta"] * 0.7, group["low"])
    group["high"][up] = free["delta"][up] / 2
    bound, before = down | up, group.copy()
    after = approached(kind, group, copies)
    assert (after["delta"] != free["delta"])[bound & (group["approached"] > 0)].all()
    for r, row in enumerate(given):
        if r == 3:
            continue
        delta = after["delta"][r]
        z = (row - (group["anchor"][r] + temperature * delta)) / temperature
        p = np.clip(z / power, 0, 1) ** power
        close = dict(rel=3e-6, abs=1e-5)
        assert after["below"][r] == pytest.approx(p.sum(), **close)
        assert after["above"][r] == after["count"][r] == 0
        inside = before["low"][r] < delta < before["high"][r]
        assert inside
        assert group["anchor"][r] + temperature * delta >= before["floor"][r]
        assert bound[r] or abs(p.sum() - wanted) < 0.02
        alone, own = lanes_of([row], wanted, temperature, 0.8, layout.APPROACHED + 16)
        for name in ("low", "high", "floor"):
            alone[name][0] = before[name][r]
        assert approached(kind, alone, own)["delta"][0] == delta  # whoever is beside it
    for name in layout.LANE.names:
        assert np.array_equal(after[name][..., 3], before[name][..., 3], equal_nan=True), name


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
